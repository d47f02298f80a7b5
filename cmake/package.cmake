# What an installation has: the program, its configurations, pages and completions; and a Debian package of that.
include(GNUInstallDirs)

# An installed binary finds the libraries beside it, and theirs: DT_RPATH counts for both, DT_RUNPATH for the first only.
# The bundled libraries have their own folder, because lib/ of a Python environment may contain libraries of the same names.
set_target_properties(ringmaster PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/ringmaster")
target_link_options(ringmaster PRIVATE -Wl,--disable-new-dtags)
install(TARGETS ringmaster RUNTIME DESTINATION bin)
install(DIRECTORY configs DESTINATION share/ringmaster)
install(PROGRAMS scripts/quickstart.sh scripts/cuda_libraries.sh DESTINATION share/ringmaster/scripts)

# The program writes its own pages and completions.
install(CODE [[
  set(share "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share")
  set(program "$<TARGET_FILE:ringmaster>")
  execute_process(COMMAND ${program} man --output ${share}/man/man1 COMMAND_ERROR_IS_FATAL ANY)
  foreach(script bash:bash-completion/completions/ringmaster zsh:zsh/vendor-completions/_ringmaster
          fish:fish/vendor_completions.d/ringmaster.fish)
    string(REPLACE ":" ";" script ${script})
    list(POP_FRONT script shell file)
    get_filename_component(folder ${share}/${file} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    execute_process(COMMAND ${program} completion ${shell} OUTPUT_FILE ${share}/${file} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
]])

# `cpack -G DEB`: for machines with the release of the one that builds, whose own libraries it needs.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "Ringmaster")
set(CPACK_PACKAGE_CONTACT "Ringmaster's developers <ringmaster@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libopenblas0")  # opened when it is there
include(CPack)
