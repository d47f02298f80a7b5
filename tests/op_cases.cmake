# The op cases are shared by the tests and the benchmarks. They form an object library, because cases register
# themselves at load time.
include_guard(GLOBAL)
file(GLOB op_case_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/cases/*.cpp)
add_library(ring_op_cases OBJECT ${CMAKE_CURRENT_LIST_DIR}/op_case.cpp ${op_case_sources})
# Tests of kernels spend most of their time here: random values, and the oracle of finite differences.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/op_case.cpp ${CMAKE_CURRENT_LIST_DIR}/cases/self_attention.cpp
                            PROPERTIES COMPILE_OPTIONS -O3)
target_link_libraries(ring_op_cases PUBLIC ring_flags ring_autograd)
ring_unity(ring_op_cases)
