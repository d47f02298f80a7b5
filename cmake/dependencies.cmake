# Finds every dependency, names each with one target (ring_*), and prints what was found or is missing.
# Required ones stop the configuration with the package to install; optional ones leave an empty target behind.
# Debian's and Ubuntu's packages are the reference; other places are given with -DCMAKE_PREFIX_PATH=...

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
set(RING_SUMMARY "")

macro(ring_note name status detail)
  list(APPEND RING_SUMMARY "${name}|${status}|${detail}")
endmacro()

macro(ring_require found name package)
  if(NOT ${found})
    message(FATAL_ERROR "${name} is required. Install ${package}, or all packages with scripts/install_deps.sh")
  endif()
endmacro()

# ring_header_version(OUT HEADER MACRO...): "a.b.c" from the header's #define lines; empty when they are not there.
function(ring_header_version out header)
  set(version "")
  if(EXISTS ${header})
    foreach(name IN LISTS ARGN)
      file(STRINGS ${header} line REGEX "^#define +${name} +\"?[0-9.]+" LIMIT_COUNT 1)
      string(REGEX REPLACE "^#define +${name} +\"?([0-9.]+).*" "\\1" number "${line}")
      list(APPEND version ${number})
    endforeach()
  endif()
  list(JOIN version "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# ring_header_library(TARGET HEADER NAME PACKAGE): required, nothing to link.
function(ring_header_library target header name package)
  find_path(${target}_INCLUDE ${header})
  mark_as_advanced(${target}_INCLUDE)
  ring_require(${target}_INCLUDE ${name} ${package})
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
endfunction()

# --- required -------------------------------------------------------------------------------------------------------
find_package(Eigen3 3.3 QUIET NO_MODULE)
ring_require(Eigen3_FOUND Eigen libeigen3-dev)
ring_note(Eigen found "${Eigen3_VERSION}: matrix products on CPUs, as the fallback")

find_package(HDF5 QUIET COMPONENTS C)
ring_require(HDF5_FOUND HDF5 libhdf5-dev)
add_library(ring_hdf5 INTERFACE)
target_include_directories(ring_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(ring_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
ring_note(HDF5 found "${HDF5_VERSION}: token stores, checkpoints")

find_package(yaml-cpp QUIET)
ring_require(yaml-cpp_FOUND yaml-cpp libyaml-cpp-dev)
add_library(ring_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)  # since 0.8
  target_link_libraries(ring_yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  target_link_libraries(ring_yaml INTERFACE yaml-cpp)
endif()
ring_note(yaml-cpp found "${yaml-cpp_VERSION}: configuration")

find_package(spdlog QUIET)
ring_require(spdlog_FOUND spdlog libspdlog-dev)
add_library(ring_spdlog INTERFACE)
target_link_libraries(ring_spdlog INTERFACE spdlog::spdlog)
ring_note(spdlog found "${spdlog_VERSION}: logging")

find_path(SENTENCEPIECE_INCLUDE sentencepiece_trainer.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
mark_as_advanced(SENTENCEPIECE_INCLUDE SENTENCEPIECE_LIBRARY SENTENCEPIECE_TRAIN_LIBRARY)
if(SENTENCEPIECE_INCLUDE AND SENTENCEPIECE_LIBRARY AND SENTENCEPIECE_TRAIN_LIBRARY)
  set(SENTENCEPIECE_FOUND TRUE)
endif()
ring_require(SENTENCEPIECE_FOUND SentencePiece libsentencepiece-dev)
add_library(ring_sentencepiece INTERFACE)
target_include_directories(ring_sentencepiece SYSTEM INTERFACE ${SENTENCEPIECE_INCLUDE})
target_link_libraries(ring_sentencepiece INTERFACE ${SENTENCEPIECE_TRAIN_LIBRARY} ${SENTENCEPIECE_LIBRARY})
ring_note(SentencePiece found "tokenizers")

ring_header_library(ring_json nlohmann/json.hpp nlohmann-json nlohmann-json3-dev)
find_file(RING_JSON_VERSION_HEADER NAMES nlohmann/detail/abi_macros.hpp nlohmann/detail/macro_scope.hpp
          PATHS ${ring_json_INCLUDE} NO_DEFAULT_PATH)
mark_as_advanced(RING_JSON_VERSION_HEADER)
ring_header_version(version "${RING_JSON_VERSION_HEADER}" NLOHMANN_JSON_VERSION_MAJOR NLOHMANN_JSON_VERSION_MINOR
                    NLOHMANN_JSON_VERSION_PATCH)
ring_note(nlohmann-json found "${version}: manifests, metrics")

ring_header_library(ring_cli11 CLI/CLI.hpp CLI11 libcli11-dev)
ring_header_version(version ${ring_cli11_INCLUDE}/CLI/Version.hpp CLI11_VERSION)
ring_note(CLI11 found "${version}: command line")

ring_header_library(ring_xxhash xxhash.h xxHash libxxhash-dev)
target_compile_definitions(ring_xxhash INTERFACE XXH_INLINE_ALL)
ring_header_version(version ${ring_xxhash_INCLUDE}/xxhash.h XXH_VERSION_MAJOR XXH_VERSION_MINOR XXH_VERSION_RELEASE)
ring_note(xxHash found "${version}: checksums")

find_package(OpenSSL 3.0 QUIET COMPONENTS Crypto)
ring_require(OPENSSL_FOUND OpenSSL libssl-dev)
add_library(ring_crypto INTERFACE)
target_link_libraries(ring_crypto INTERFACE OpenSSL::Crypto)
ring_note(OpenSSL found "${OPENSSL_VERSION}: authentication of processes that join a run")

# --- optional ---------------------------------------------------------------------------------------------------------
# ring_optional(NAME OPTION TARGET INCLUDE LIBRARY USE PACKAGE): sets RING_WITH_<OPTION>, adds header, library and a
# definition of the same name to TARGET when OPTION is on and both were found.
macro(ring_optional name option target include library use package)
  mark_as_advanced(${include} ${library})
  set(RING_WITH_${option} FALSE)
  if(NOT RING_${option})
    ring_note(${name} off "RING_${option}=OFF")
  elseif(${include} AND ${library})
    set(RING_WITH_${option} TRUE)
    target_compile_definitions(${target} INTERFACE RING_WITH_${option})
    target_include_directories(${target} SYSTEM INTERFACE ${${include}})
    target_link_libraries(${target} INTERFACE ${${library}})
    ring_note(${name} found "${use}")
  else()
    ring_note(${name} missing "optional, for ${use}: install ${package}")
  endif()
endmacro()

# --- optional: compressed text ----------------------------------------------------------------------------------------
add_library(ring_unpack INTERFACE)
option(RING_ZLIB "Read text compressed by gzip if zlib is installed" ON)
find_path(RING_ZLIB_INCLUDE zlib.h)
find_library(RING_ZLIB_LIBRARY z)
ring_optional(zlib ZLIB ring_unpack RING_ZLIB_INCLUDE RING_ZLIB_LIBRARY "text compressed by gzip" zlib1g-dev)
option(RING_ZSTD "Read text compressed by zstd if zstd is installed" ON)
find_path(RING_ZSTD_INCLUDE zstd.h)
find_library(RING_ZSTD_LIBRARY zstd)
ring_optional(zstd ZSTD ring_unpack RING_ZSTD_INCLUDE RING_ZSTD_LIBRARY "text compressed by zstd" libzstd-dev)

# --- optional: Parquet tables ------------------------------------------------------------------------------------------
# Arrow's own packages, the folder that scripts/arrow.sh makes, or one that is given: include/ with the libraries in it or
# in lib/. docs/adr/0029-arrow.md
add_library(ring_parquet INTERFACE)
option(RING_PARQUET "Read Parquet tables if Arrow's libraries are installed" ON)
set(RING_ARROW "" CACHE PATH "Folder of Arrow, such as that of Python's pyarrow; empty: build/deps or a package")
set(RING_WITH_PARQUET FALSE)

function(ring_find_arrow)
  if(RING_ARROW AND NOT EXISTS ${RING_ARROW}/include/parquet/arrow/reader.h)
    message(FATAL_ERROR "RING_ARROW: '${RING_ARROW}' does not contain include/parquet/arrow/reader.h. Give Arrow's folder")
  endif()
  set(folders ${RING_ARROW} ${PROJECT_SOURCE_DIR}/build/deps/arrow)
  unset(ARROW_INCLUDE CACHE)  # looked for every time: the script may have brought it, or the option changed
  find_path(ARROW_INCLUDE parquet/arrow/reader.h HINTS ${folders} PATH_SUFFIXES include)
  ring_header_version(so "${ARROW_INCLUDE}/arrow/util/config.h" ARROW_SO_VERSION)
  foreach(library arrow parquet)
    string(TOUPPER ${library}_LIBRARY variable)
    unset(${variable} CACHE)
    find_library(${variable} NAMES lib${library}.so.${so} HINTS ${ARROW_INCLUDE}/.. ${ARROW_INCLUDE}/../lib)
  endforeach()
  mark_as_advanced(ARROW_INCLUDE ARROW_LIBRARY PARQUET_LIBRARY)
endfunction()

if(NOT RING_PARQUET)
  ring_note(Arrow off "RING_PARQUET=OFF")
else()
  ring_find_arrow()
  ring_header_version(version "${ARROW_INCLUDE}/arrow/util/config.h" ARROW_VERSION_STRING)
  if(ARROW_LIBRARY AND PARQUET_LIBRARY AND "${version}" VERSION_GREATER_EQUAL 22)
    set(RING_WITH_PARQUET TRUE)
    target_compile_definitions(ring_parquet INTERFACE RING_WITH_PARQUET)
    target_include_directories(ring_parquet SYSTEM INTERFACE ${ARROW_INCLUDE})
    target_link_libraries(ring_parquet INTERFACE ${PARQUET_LIBRARY} ${ARROW_LIBRARY})
    ring_note(Arrow found "${version}: Parquet tables")
  else()
    ring_note(Arrow missing "optional, for Parquet tables: install Arrow 22 or newer (Apache's libparquet-dev, or scripts/arrow.sh)")
  endif()
endif()

# --- optional: faster matrix products on the CPU ---------------------------------------------------------------------
add_library(ring_blas INTERFACE)
target_link_libraries(ring_blas INTERFACE Eigen3::Eigen)

option(RING_OPENBLAS "Use OpenBLAS if it is installed" ON)
find_path(OPENBLAS_INCLUDE openblas_config.h PATH_SUFFIXES openblas-serial openblas-pthread openblas)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-serial openblas-pthread)
ring_optional(OpenBLAS OPENBLAS ring_blas OPENBLAS_INCLUDE OPENBLAS_LIBRARY "matrix products on CPUs" libopenblas-dev)
# Its headers only: the library is loaded when a run asks for it (see kernels/cpu/gemm_openblas.cpp).
set_target_properties(ring_blas PROPERTIES INTERFACE_LINK_LIBRARIES "Eigen3::Eigen;${CMAKE_DL_LIBS}")

option(RING_ONEDNN "Use oneDNN if it is installed" ON)
find_path(ONEDNN_INCLUDE oneapi/dnnl/dnnl.h)
find_library(ONEDNN_LIBRARY dnnl)
ring_optional(oneDNN ONEDNN ring_blas ONEDNN_INCLUDE ONEDNN_LIBRARY "matrix products on CPUs" libdnnl-dev)

# --- optional: published tokenizers ----------------------------------------------------------------------------------
add_library(ring_unicode INTERFACE)
option(RING_UTF8PROC "Use utf8proc if it is installed" ON)
find_path(UTF8PROC_INCLUDE utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
ring_optional(utf8proc UTF8PROC ring_unicode UTF8PROC_INCLUDE UTF8PROC_LIBRARY "Unicode in tokenizer.json"
              libutf8proc-dev)
add_library(ring_pcre2 INTERFACE)
option(RING_PCRE2 "Use PCRE2 if it is installed" ON)
find_path(PCRE2_INCLUDE pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
ring_optional(PCRE2 PCRE2 ring_pcre2 PCRE2_INCLUDE PCRE2_LIBRARY "patterns of tokenizer.json that are not built in"
              libpcre2-dev)

# --- optional: several processes -------------------------------------------------------------------------------------
add_library(ring_gloo INTERFACE)
target_link_libraries(ring_gloo INTERFACE Threads::Threads)
option(RING_GLOO "Use Gloo for several processes on CPUs if it is installed" ON)
find_path(GLOO_INCLUDE gloo/context.h)
find_library(GLOO_LIBRARY gloo)
ring_optional(Gloo GLOO ring_gloo GLOO_INCLUDE GLOO_LIBRARY "several processes on CPUs" libgloo-dev)

# --- optional: pages and models over HTTP ------------------------------------------------------------------------------
add_library(ring_http INTERFACE)
option(RING_HTTP "Serve dashboards and models over HTTP if libmicrohttpd is installed" ON)
find_path(MICROHTTPD_INCLUDE microhttpd.h)
find_library(MICROHTTPD_LIBRARY microhttpd)
ring_optional(libmicrohttpd HTTP ring_http MICROHTTPD_INCLUDE MICROHTTPD_LIBRARY "launch --dashboard and serve"
              libmicrohttpd-dev)

# --- optional: CUDA --------------------------------------------------------------------------------------------------
set(RING_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (if nvcc and a GPU are found), ON or OFF")
set_property(CACHE RING_CUDA PROPERTY STRINGS AUTO ON OFF)
set(RING_CUDA_ARCHS "90a" CACHE STRING "CUDA architectures to generate code for, such as 90a or 80;90a")
set(RING_WITH_CUDA FALSE)

function(ring_find_nvcc)  # first look, so that a machine without CUDA hears nothing of it
  find_program(RING_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(RING_NVCC)
  if(RING_NVCC OR CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    include(CheckLanguage)
    if(RING_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      set(ENV{CUDACXX} ${RING_NVCC})
    endif()
    check_language(CUDA)
  endif()
endfunction()

if(RING_CUDA STREQUAL "OFF")
  ring_note(CUDA off "RING_CUDA=OFF")
elseif(RING_CUDA STREQUAL "AUTO" AND NOT EXISTS /dev/nvidiactl AND NOT EXISTS /dev/dxg)  # dxg: a GPU under WSL
  ring_note(CUDA off "this machine has no NVIDIA GPU. To build for another one: make CUDA=ON (-DRING_CUDA=ON)")
else()
  list(TRANSFORM RING_CUDA_ARCHS APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)  # machine code, no PTX
  ring_find_nvcc()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(RING_WITH_CUDA TRUE)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/core/cuda/devices.cpp PROPERTIES
                                COMPILE_DEFINITIONS RING_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
    list(JOIN RING_CUDA_ARCHS ", sm_" archs)
    ring_note(CUDA found "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm_${archs}")
  elseif(RING_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RING_CUDA=ON requires nvcc, but no working one was found. Install the CUDA Toolkit or set CUDACXX")
  else()
    ring_note(CUDA missing "optional, for GPUs: install the CUDA Toolkit (nvcc)")
  endif()
endif()

# --- optional: several GPUs ------------------------------------------------------------------------------------------
# Only the header is needed: the library is loaded when a run asks for it (see comm/nccl/library.cpp). NCCL_INCLUDE and
# NCCL_LIBRARY may be given.
add_library(ring_nccl INTERFACE)
option(RING_NCCL "Use NCCL for several GPUs if its header is installed" ON)
set(RING_WITH_NCCL FALSE)
if(RING_WITH_CUDA AND NOT RING_NCCL)
  ring_note(NCCL off "RING_NCCL=OFF")
elseif(RING_WITH_CUDA)
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  mark_as_advanced(NCCL_INCLUDE NCCL_LIBRARY)
  ring_header_version(version "${NCCL_INCLUDE}/nccl.h" NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
  if(NOT NCCL_INCLUDE OR "${version}" VERSION_LESS 2.18)
    ring_note(NCCL missing "optional, for several GPUs: install NCCL 2.18 or newer, libnccl-dev (or -DNCCL_INCLUDE=FOLDER)")
  else()
    set(RING_WITH_NCCL TRUE)
    target_compile_definitions(ring_nccl INTERFACE RING_WITH_NCCL)
    target_include_directories(ring_nccl SYSTEM INTERFACE ${NCCL_INCLUDE})
    target_link_libraries(ring_nccl INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS})
    if(NCCL_LIBRARY)  # where it is when the loader does not know
      target_compile_definitions(ring_nccl INTERFACE RING_NCCL_LIBRARY="${NCCL_LIBRARY}")
    endif()
    ring_note(NCCL found "header ${version}: several GPUs, loaded at run time")
  endif()
endif()

# --- optional: cuDNN's attention -------------------------------------------------------------------------------------
# Only headers are needed: the library is loaded when a run asks for it (see kernels/attention/cudnn/library.cpp). The
# frontend's headers come from scripts/cudnn_frontend.sh, from a package, or from a folder of the user's.
add_library(ring_cudnn INTERFACE)
target_link_libraries(ring_cudnn INTERFACE ${CMAKE_DL_LIBS})
option(RING_CUDNN "Use cuDNN's attention on GPUs if its headers and those of its frontend are installed" ON)
set(RING_CUDNN_FRONTEND "" CACHE PATH "Folder with cudnn_frontend.h; empty: build/deps or a package")
set(RING_WITH_CUDNN FALSE)

function(ring_find_cudnn)
  find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cudnn)
  find_library(CUDNN_LIBRARY libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(RING_CUDNN_FRONTEND AND NOT EXISTS ${RING_CUDNN_FRONTEND}/cudnn_frontend.h)
    message(FATAL_ERROR "RING_CUDNN_FRONTEND: '${RING_CUDNN_FRONTEND}' does not contain cudnn_frontend.h. Give its folder")
  endif()
  unset(CUDNN_FRONTEND_INCLUDE CACHE)  # looked for every time: the script may have brought it, or the option changed
  if(RING_CUDNN_FRONTEND)
    set(CUDNN_FRONTEND_INCLUDE ${RING_CUDNN_FRONTEND} CACHE PATH "")
  endif()
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/build/deps/cudnn_frontend/include)
  mark_as_advanced(CUDNN_INCLUDE CUDNN_LIBRARY CUDNN_FRONTEND_INCLUDE)
endfunction()

if(RING_WITH_CUDA AND NOT RING_CUDNN)
  ring_note(cuDNN off "RING_CUDNN=OFF")
elseif(RING_WITH_CUDA)
  ring_find_cudnn()
  ring_header_version(version "${CUDNN_INCLUDE}/cudnn_version.h" CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
  ring_header_version(frontend "${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h" CUDNN_FRONTEND_MAJOR_VERSION
                      CUDNN_FRONTEND_MINOR_VERSION CUDNN_FRONTEND_PATCH_VERSION)
  if(NOT CUDNN_INCLUDE OR "${version}" VERSION_LESS 9.13)
    ring_note(cuDNN missing "optional, for faster attention on GPUs: install the headers of cuDNN 9.13 or newer")
  elseif(NOT CUDNN_FRONTEND_INCLUDE OR "${frontend}" VERSION_LESS 1.16)
    ring_note(cuDNN missing "optional, for faster attention on GPUs: install nvidia-cudnn-frontend 1.16 (scripts/cudnn_frontend.sh)")
  else()
    set(RING_WITH_CUDNN TRUE)
    target_include_directories(ring_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
    if(CUDNN_LIBRARY)  # where it is when the loader does not know
      target_compile_definitions(ring_cudnn INTERFACE RING_CUDNN_LIBRARY="${CUDNN_LIBRARY}")
    endif()
    ring_note(cuDNN found "headers ${version}, frontend ${frontend}: attention on GPUs, loaded at run time")
  endif()
endif()

# --- optional: ccache ------------------------------------------------------------------------------------------------
find_program(RING_CCACHE ccache)
mark_as_advanced(RING_CCACHE)
if(RING_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these two, ccache does not serve files that use precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${RING_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${RING_CCACHE})
  ring_note(ccache found "faster rebuilds")
elseif(NOT RING_CCACHE)
  ring_note(ccache missing "optional, for faster rebuilds: install ccache")
endif()

function(ring_print_summary)
  set(what "${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, -march=${RING_ARCH_LEVEL}")
  if(RING_SANITIZE)
    string(APPEND what ", sanitizers ${RING_SANITIZE}")
  endif()
  message(STATUS "")
  message(STATUS "Ringmaster ${PROJECT_VERSION}: ${what}")
  foreach(row IN LISTS RING_SUMMARY)
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 status)
    list(GET row 2 detail)
    string(SUBSTRING "${name}                  " 0 16 name)
    string(SUBSTRING "${status}          " 0 9 status)
    message(STATUS "  ${name}${status}${detail}")
  endforeach()
  message(STATUS "")
endfunction()
