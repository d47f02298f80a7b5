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
    message(FATAL_ERROR "${name} is required: install ${package} (scripts/install_deps.sh installs everything)")
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
ring_note(Eigen found "${Eigen3_VERSION}: matrix products, always there")

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

# --- optional: faster matrix products on the CPU ---------------------------------------------------------------------
add_library(ring_blas INTERFACE)
target_link_libraries(ring_blas INTERFACE Eigen3::Eigen)

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
    ring_note(${name} missing "optional, ${use}: ${package}")
  endif()
endmacro()

option(RING_OPENBLAS "Use OpenBLAS when it is installed" ON)
find_path(OPENBLAS_INCLUDE openblas_config.h PATH_SUFFIXES openblas-serial openblas-pthread openblas)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-serial openblas-pthread)
ring_optional(OpenBLAS OPENBLAS ring_blas OPENBLAS_INCLUDE OPENBLAS_LIBRARY "matrix products on CPUs" libopenblas-dev)
# Its headers only: the library is loaded when a run asks for it (see kernels/cpu/gemm_openblas.cpp).
set_target_properties(ring_blas PROPERTIES INTERFACE_LINK_LIBRARIES "Eigen3::Eigen;${CMAKE_DL_LIBS}")

option(RING_ONEDNN "Use oneDNN when it is installed" ON)
find_path(ONEDNN_INCLUDE oneapi/dnnl/dnnl.h)
find_library(ONEDNN_LIBRARY dnnl)
ring_optional(oneDNN ONEDNN ring_blas ONEDNN_INCLUDE ONEDNN_LIBRARY "matrix products on CPUs" libdnnl-dev)

# --- optional: several processes -------------------------------------------------------------------------------------
add_library(ring_gloo INTERFACE)
target_link_libraries(ring_gloo INTERFACE Threads::Threads)
option(RING_GLOO "Use Gloo for several processes on CPUs when it is installed" ON)
find_path(GLOO_INCLUDE gloo/context.h)
find_library(GLOO_LIBRARY gloo)
ring_optional(Gloo GLOO ring_gloo GLOO_INCLUDE GLOO_LIBRARY "several processes on CPUs" libgloo-dev)

# --- optional: CUDA --------------------------------------------------------------------------------------------------
set(RING_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (when nvcc is found), ON or OFF")
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
else()
  list(TRANSFORM RING_CUDA_ARCHS APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)  # machine code, no PTX
  ring_find_nvcc()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(RING_WITH_CUDA TRUE)
    list(JOIN RING_CUDA_ARCHS ", sm_" archs)
    ring_note(CUDA found "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm_${archs}")
  elseif(RING_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RING_CUDA=ON, but no working nvcc was found: install the CUDA Toolkit or set CUDACXX")
  else()
    ring_note(CUDA missing "optional, GPUs: the CUDA Toolkit (nvcc)")
  endif()
endif()

# --- optional: ccache ------------------------------------------------------------------------------------------------
find_program(RING_CCACHE ccache)
mark_as_advanced(RING_CCACHE)
if(RING_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RING_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${RING_CCACHE})
  ring_note(ccache found "faster rebuilds")
elseif(NOT RING_CCACHE)
  ring_note(ccache missing "optional, faster rebuilds: ccache")
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
