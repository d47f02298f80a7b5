# generated/build_info.h: version, compiler, CPU level and what was found; generated/commit.cpp: the commit, which a build
# step refreshes before anything is compiled. The file changes only when its contents do.
#
# Included by CMakeLists.txt (sets the target up) and run with `cmake -P` at every build (writes the second file).

if(CMAKE_SCRIPT_MODE_FILE)
  set(RING_COMMIT "unknown")
  execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --exclude=* --abbrev=12
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0)
    set(RING_COMMIT "${commit}")
  endif()
  configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
  return()
endif()

function(ring_build_info)
  set(RING_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  set(RING_FOUND_ROWS "")
  foreach(row IN LISTS RING_SUMMARY)
    string(REPLACE "|" "\", \"" row "${row}")
    string(APPEND RING_FOUND_ROWS "    {\"${row}\"},\n")
  endforeach()
  list(JOIN RING_CUDA_ARCHS " " RING_CUDA_ARCHS_TEXT)
  foreach(option CUDA CUDNN OPENBLAS ONEDNN GLOO)
    set(RING_HAS_${option} false)
    if(RING_WITH_${option})
      set(RING_HAS_${option} true)
    endif()
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/build_info.h.in ${PROJECT_BINARY_DIR}/generated/build_info.h @ONLY)
  set(commit ${PROJECT_BINARY_DIR}/generated/commit.cpp)
  set(refresh ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DTEMPLATE=${PROJECT_SOURCE_DIR}/cmake/commit.cpp.in
      -DOUTPUT=${commit} -P ${PROJECT_SOURCE_DIR}/cmake/build_info.cmake)
  execute_process(COMMAND ${refresh})
  add_custom_target(ring_build_info ALL COMMAND ${refresh} BYPRODUCTS ${commit} VERBATIM)
endfunction()
