# Compiler flags for every target, carried by the interface target ring_flags.
#
# CMake 3.25 does not know the C++20 dialect of nvcc 13 and refuses a directory-wide CMAKE_CXX_STANDARD with
# *_REQUIRED, so C++20 is asked for as a compile feature and nvcc gets its flag by hand.

set(RING_ARCH "native" CACHE STRING
    "CPU to compile for: native, portable (x86-64-v3 or armv8-a, as in packages), or any value of -march")
set(RING_SANITIZE "" CACHE STRING "Sanitizers to build with: empty, 'address,undefined' or 'thread'")
set(RING_SANITIZE_ROOMS "" CACHE STRING
    "Rooms to build with RING_SANITIZE, separated by ';'. Empty: all rooms")
option(RING_FUZZ "Instrument the libraries so that fuzz targets see which code an input covers" OFF)
option(RING_WERROR "Treat compiler warnings as errors" OFF)
option(RING_PCH "Precompile the headers of the standard library" ON)
option(RING_UNITY "Compile several files of a room at once, in half the time; OFF for work on the code" ON)

# RING_ARCH_LEVEL: what the compiler and the start-up check of the binary are told.
set(RING_ARCH_LEVEL "${RING_ARCH}")
if(RING_ARCH STREQUAL "portable")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(RING_ARCH_LEVEL "x86-64-v3")
  else()
    set(RING_ARCH_LEVEL "armv8-a")
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ ${CMAKE_CXX_COMPILER_VERSION} is too old. Ringmaster requires at least g++ 12 or clang 14")
endif()

add_library(ring_flags INTERFACE)
target_compile_features(ring_flags INTERFACE cxx_std_20)
target_include_directories(ring_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
# Where the standard headers are precompiled, g++ warns about its own std::string (-Wstringop-*, -Warray-bounds).
# g++ 12 warns about its own std::string (-Wrestrict) and AVX-512 headers (-W[maybe-]uninitialized), fixed in 13.
# Where files are compiled in groups, g++ takes anonymous namespaces for those of headers (-Wsubobject-linkage).
# Contraction into FMA stays on; everything that would change NaN or infinity handling stays off.
target_compile_options(ring_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -fno-math-errno -fno-trapping-math>
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<BOOL:${RING_PCH}>>:-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-array-bounds>
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict;-Wno-maybe-uninitialized;-Wno-uninitialized>
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<BOOL:${RING_UNITY}>>:-Wno-subobject-linkage>
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${RING_WERROR}>>:-Werror>)
if(RING_ARCH_LEVEL)
  target_compile_options(ring_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${RING_ARCH_LEVEL}>)
endif()

if(RING_SANITIZE)
  if(RING_SANITIZE MATCHES "thread" AND RING_SANITIZE MATCHES "address")
    message(FATAL_ERROR "RING_SANITIZE='${RING_SANITIZE}': thread and address cannot be combined. Choose one of them")
  endif()
  target_compile_options(ring_flags INTERFACE
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:RING_NOT_SANITIZED>>>>:-fsanitize=${RING_SANITIZE}
      -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(ring_flags INTERFACE -fsanitize=${RING_SANITIZE})
endif()
