# One room = one folder = one static library. A room links only the rooms to its left, so an upward dependency does
# not link; tests/meta checks the same for #include lines.

# ring_room(NAME [DEPENDS room...] [LIBRARIES lib...]): library ring_NAME from every .cpp below NAME/, except kernel
# and device folders, which are built by ring_kernels() and by the room that owns them.
function(ring_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS;LIBRARIES;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  foreach(pattern IN LISTS ROOM_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  add_library(ring_${name} STATIC ${sources})
  list(TRANSFORM ROOM_DEPENDS PREPEND ring_)
  target_link_libraries(ring_${name} PUBLIC ring_flags ${ROOM_DEPENDS} PRIVATE ${ROOM_LIBRARIES})
endfunction()

# ring_kernels(BACKEND EXTENSION [LIBRARIES lib...]): object library, because a static one would lose the kernels:
# nothing names their registration objects, so the linker would drop them. Executables take them from ring_kernel_objects.
function(ring_kernels backend extension)
  cmake_parse_arguments(KERNELS "" "" "LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/${backend}/*.${extension}
                                      ${PROJECT_SOURCE_DIR}/kernels/attention/${backend}/*.${extension})
  if(sources)
    add_library(ring_kernels_${backend} OBJECT ${sources})
    target_link_libraries(ring_kernels_${backend} PUBLIC ring_flags ring_core ring_kernels PRIVATE ${KERNELS_LIBRARIES})
    target_sources(ring_kernel_objects INTERFACE $<TARGET_OBJECTS:ring_kernels_${backend}>)
    target_link_libraries(ring_kernel_objects INTERFACE ${KERNELS_LIBRARIES})
  endif()
endfunction()
