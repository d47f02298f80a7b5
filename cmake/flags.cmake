# Compiler flags for every target, carried by the interface target ring_flags.
#
# CMake 3.25 does not know the C++20 dialect of nvcc 13 and refuses a directory-wide CMAKE_CXX_STANDARD with
# *_REQUIRED, so C++20 is asked for as a compile feature and nvcc gets its flag by hand.

set(RING_ARCH "native" CACHE STRING
    "CPU architecture to compile for: native, or a portable level such as x86-64-v3 (packages use that)")
set(RING_SANITIZE "" CACHE STRING "Sanitizers to build with: empty, 'address,undefined' or 'thread'")
option(RING_WERROR "Treat compiler warnings as errors" OFF)

add_library(ring_flags INTERFACE)
target_compile_features(ring_flags INTERFACE cxx_std_20)
target_include_directories(ring_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
# Contraction into FMA stays on; everything that would change NaN or infinity handling stays off.
target_compile_options(ring_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -fno-math-errno -fno-trapping-math>
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${RING_WERROR}>>:-Werror>)
if(RING_ARCH AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|aarch64")
  target_compile_options(ring_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${RING_ARCH}>)
endif()
if(RING_SANITIZE)
  target_compile_options(ring_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RING_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(ring_flags INTERFACE -fsanitize=${RING_SANITIZE})
endif()
