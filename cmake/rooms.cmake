# One room = one folder = one static library. A room links only the rooms to its left, so an upward dependency does
# not link; tests/meta checks the same for #include lines.

# Headers that most files include. Precompiling them saves about half a second of each file's compile time.
set(RING_STANDARD_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstdint> <cstring>
                          <deque> <filesystem> <fstream> <functional> <iostream> <limits> <map> <memory> <mutex> <numeric>
                          <optional> <set> <span> <sstream> <string> <string_view> <thread> <utility> <variant> <vector>)

# ring_precompiled(OWNER [header...]): OWNER precompiles the headers above and the given ones, for targets with the same
# compiler flags that name OWNER in ring_precompile(). OWNER defines no macros, because all its users would have to
# define them too.
function(ring_precompiled owner)
  set(source ${PROJECT_BINARY_DIR}/generated/${owner}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${owner} OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${owner} PRIVATE ring_flags)
  if(RING_PCH)
    target_precompile_headers(${owner} PRIVATE ${RING_STANDARD_HEADERS} ${ARGN})
  endif()
endfunction()
function(ring_precompile target owner)
  if(RING_PCH)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
ring_precompiled(ring_precompiled_headers)

set(RING_COLD_FLAGS $<$<CONFIG:Release>:-O1>)
ring_precompiled(ring_precompiled_cold_headers)
target_compile_options(ring_precompiled_cold_headers PRIVATE ${RING_COLD_FLAGS})

# ring_unity(TARGET): compiles the target's files in groups, which reads shared headers once for each group. The names
# in its files' anonymous namespaces must therefore be unique in the target.
function(ring_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${RING_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# ring_room(NAME [COLD] [DEPENDS room...] [LIBRARIES lib...] [EXCLUDE regex...]): library ring_NAME from every .cpp below
# NAME/, except kernel and device folders, which ring_kernels() and ring_device_room() build. COLD: runs spend their time
# in other rooms, so that the room is compiled at -O1, which takes a quarter less time.
function(ring_room name)
  cmake_parse_arguments(ROOM "COLD" "" "DEPENDS;LIBRARIES;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  foreach(pattern IN LISTS ROOM_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  add_library(ring_${name} STATIC ${sources})
  list(TRANSFORM ROOM_DEPENDS PREPEND ring_)
  target_link_libraries(ring_${name} PUBLIC ring_flags ${ROOM_DEPENDS} PRIVATE ${ROOM_LIBRARIES})
  ring_instrument(ring_${name})
  ring_unity(ring_${name})
  if(RING_SANITIZE_ROOMS AND NOT name IN_LIST RING_SANITIZE_ROOMS)
    set_target_properties(ring_${name} PROPERTIES RING_NOT_SANITIZED ON)
  endif()
  if(ROOM_COLD)
    target_compile_options(ring_${name} PRIVATE ${RING_COLD_FLAGS})
    ring_precompile(ring_${name} ring_precompiled_cold_headers)
  else()
    ring_precompile(ring_${name} ring_precompiled_headers)
  endif()
endfunction()

# ring_instrument(TARGET): with RING_FUZZ, says which blocks run: to libFuzzer, or to tests/fuzz/coverage.cpp, which is
# built without sanitizers because it runs in every block.
add_library(ring_fuzz_coverage STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/fuzz/coverage.cpp)
target_compile_features(ring_fuzz_coverage PUBLIC cxx_std_20)
target_include_directories(ring_fuzz_coverage PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_options(ring_fuzz_coverage PRIVATE -O2)
function(ring_instrument target)
  if(NOT RING_FUZZ)
    return()
  elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  else()
    target_compile_options(${target} PRIVATE -fsanitize-coverage=trace-pc)
    target_link_libraries(${target} PUBLIC ring_fuzz_coverage)
  endif()
endfunction()

# ring_objects(TARGET SOURCES file... [LIBRARIES lib...]): object library whose objects every user of ring_kernel_objects
# links. A static one would lose kernels: nothing names their registration objects, so the linker would drop them.
function(ring_objects target)
  cmake_parse_arguments(OBJECTS "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT OBJECTS_SOURCES)
    return()
  endif()
  add_library(${target} OBJECT ${OBJECTS_SOURCES})
  target_link_libraries(${target} PUBLIC ring_flags ring_core ring_kernels PRIVATE ${OBJECTS_LIBRARIES})
  target_sources(ring_kernel_objects INTERFACE $<TARGET_OBJECTS:${target}>)
  target_link_libraries(ring_kernel_objects INTERFACE ring_kernels ring_core ${OBJECTS_LIBRARIES})
endfunction()

# ring_kernels(BACKEND EXTENSION [SOURCES file...] [LIBRARIES lib...]): the kernels of a backend. SOURCES: generated ones.
function(ring_kernels backend extension)
  cmake_parse_arguments(KERNELS "" "" "SOURCES;LIBRARIES" ${ARGN})
  set(all "")
  foreach(folder kernels kernels/attention kernels/linear_attention)
    set(paths ${PROJECT_SOURCE_DIR}/${folder}/${backend}/*.${extension})
    if(folder STREQUAL "kernels/attention")
      list(APPEND paths ${PROJECT_SOURCE_DIR}/${folder}/*/${backend}/*.${extension})  # those of a kind of attention
    endif()
    file(GLOB sources CONFIGURE_DEPENDS ${paths})
    if(extension STREQUAL "cu" AND RING_UNITY AND sources)
      ring_cuda_groups(sources ${folder}/${backend} ${sources})
    endif()
    list(APPEND all ${sources})
  endforeach()
  ring_objects(ring_kernels_${backend} SOURCES ${all} ${KERNELS_SOURCES} LIBRARIES ${KERNELS_LIBRARIES})
endfunction()

# ring_cuda_groups(OUT FOLDER source...): writes files that include a few of the sources each, and sets OUT to their list,
# because CMake 3.25 has no unity build for CUDA.
function(ring_cuda_groups out folder)
  list(LENGTH ARGN count)
  math(EXPR last "(${count} - 1) / 5")
  set(groups "")
  foreach(n RANGE ${last})
    math(EXPR begin "5 * ${n}")
    list(SUBLIST ARGN ${begin} 5 group)
    list(TRANSFORM group REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN group "" text)
    set(file ${PROJECT_BINARY_DIR}/generated/${folder}/group_${n}.cu)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND groups ${file})
  endforeach()
  set(${out} ${groups} PARENT_SCOPE)
endfunction()

# ring_attention_instances(OUT): writes files that instantiate attention's kernels for each head dim, without dropout
# and with it, and sets OUT to their list. A file for each head dim, because each takes long to compile.
function(ring_attention_instances out)
  set(files "")
  foreach(instance "mma_forward 64" "mma_forward 128" "mma_forward 256" "mma_backward 64" "mma_backward 128"
                   "mma_backward 256" "sm90_forward 64, 3" "sm90_forward 64, 2" "sm90_forward 128, 2"
                   "sm90_forward 256, 2" "sm90_backward Stationary::q, 64" "sm90_backward Stationary::q, 128"
                   "sm90_backward Stationary::q, 256" "sm90_backward Stationary::kv, 64"
                   "sm90_backward Stationary::kv, 128" "sm90_backward Stationary::kv, 256" "sm90_fused 64"
                   "sm90_fused 128")
    string(REGEX REPLACE "[^A-Za-z0-9]+" "_" name "${instance}")
    string(REGEX REPLACE " .*" "" header "kernels/attention/cuda/${instance}")
    string(REGEX MATCH " .*" arguments "${instance}")
    string(STRIP "${arguments}" arguments)
    set(text "#include \"${header}.cuh\"\n")
    foreach(drops false true)
      string(APPEND text "\nRING_INSTANTIATE(${arguments}, ${drops})\n")
    endforeach()
    set(file ${PROJECT_BINARY_DIR}/generated/attention/${name}.cu)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND files ${file})
  endforeach()
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# ring_device_room(FOLDER [LIBRARIES lib...]): a device's share of a room, such as core/cuda, which registers itself too.
function(ring_device_room folder)
  cmake_parse_arguments(ROOM "" "" "LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp ${PROJECT_SOURCE_DIR}/${folder}/*.cu)
  string(REPLACE "/" "_" name ${folder})
  ring_objects(ring_${name} SOURCES ${sources} LIBRARIES ${ROOM_LIBRARIES})
endfunction()

# ring_cublas_kernels(): matrix products on GPUs. Only the toolkit's headers are needed: the library is loaded at its first use.
function(ring_cublas_kernels)
  ring_objects(ring_kernels_cublas SOURCES ${PROJECT_SOURCE_DIR}/kernels/cublas/library.cpp
                                           ${PROJECT_SOURCE_DIR}/kernels/cublas/matmul.cpp
                                           ${PROJECT_SOURCE_DIR}/kernels/cublas/matmul_fp8.cpp
                                           ${PROJECT_SOURCE_DIR}/kernels/cublas/plan.cpp
               LIBRARIES CUDA::cudart_static ${CMAKE_DL_LIBS})
  target_compile_definitions(ring_kernels_cublas PRIVATE RING_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
endfunction()

# ring_cudnn_kernels(): attention through cuDNN, when it was found. The frontend's headers take long: less optimisation and
# no JSON keep that bearable, and nothing in them is hot. What library.cpp defines must not be seen by other libraries.
function(ring_cudnn_kernels)
  if(NOT RING_WITH_CUDNN)
    return()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/kernels/attention/cudnn)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp ${folder}/*.cu)
  ring_objects(ring_kernels_cudnn SOURCES ${sources} LIBRARIES CUDA::cudart_static ring_cudnn)
  set_source_files_properties(${folder}/library.cpp PROPERTIES COMPILE_OPTIONS -fvisibility=hidden)
  set_source_files_properties(${folder}/sdpa.cpp PROPERTIES COMPILE_OPTIONS -O1
                                                            COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB)
endfunction()

# ring_shipped_choices(): compiles the tables of measured choices into the kernels' room.
function(ring_shipped_choices)
  file(GLOB tables CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/choices/*.yaml)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tables})
  set(RING_SHIPPED_CHOICES "")
  foreach(table IN LISTS tables)
    file(READ ${table} text)
    string(APPEND RING_SHIPPED_CHOICES "${text}")
  endforeach()
  set(source ${PROJECT_BINARY_DIR}/generated/shipped_choices.cpp)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/shipped_choices.cpp.in ${source} @ONLY)
  target_sources(ring_kernels PRIVATE ${source})
endfunction()
