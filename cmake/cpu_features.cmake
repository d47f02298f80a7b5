# generated/cpu_features.h: what the chosen -march makes the compiler use, as a function that looks for it in the running CPU.
# Asked from the compiler itself, so that "native" and every level work alike.
function(ring_cpu_features)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=${RING_ARCH_LEVEL} -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE macros RESULT_VARIABLE status ERROR_VARIABLE error)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "RING_ARCH=${RING_ARCH}: ${CMAKE_CXX_COMPILER} does not support -march=${RING_ARCH_LEVEL}\n${error}")
  endif()
  set(RING_CPU_CHECKS "")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(RING_CPU_CHECKS "  __builtin_cpu_init();\n")
    foreach(pair "SSE4_2=sse4.2" "POPCNT=popcnt" "AVX=avx" "AVX2=avx2" "FMA=fma" "BMI=bmi" "BMI2=bmi2"
                 "AVX512F=avx512f" "AVX512BW=avx512bw" "AVX512DQ=avx512dq" "AVX512VL=avx512vl")
      string(REGEX MATCH "^[^=]+" macro ${pair})
      string(REGEX MATCH "[^=]+$" feature ${pair})
      if(macros MATCHES "#define __${macro}__ 1")
        string(APPEND RING_CPU_CHECKS "  if (!__builtin_cpu_supports(\"${feature}\")) return \"${feature}\";\n")
      endif()
    endforeach()
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/cpu_features.h.in ${PROJECT_BINARY_DIR}/generated/cpu_features.h @ONLY)
endfunction()
