# cmake --install: the program, the libraries, their headers, and find_package(trireme), with the component `runtime` for
# programs that train.
include(CMakePackageConfigHelpers)

install(TARGETS trireme_core EXPORT trireme LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(target trireme_runtime trireme_mpi trireme_ucx trireme_http_codec trireme_cuda)  # loaded by name at run time, so no part of the exported targets
  if(TARGET ${target})
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
if(TARGET trireme)
  install(TARGETS trireme RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The small libraries that libtrireme is linked with come along, so that the folder runs where their packages are not
# installed. Packagers, who want the system's, turn it off. LibTorch (1 GB) and OpenSSL, which wants updates, stay outside.
option(TRIREME_BUNDLE "cmake --install copies fmt, spdlog, toml++, PCRE2, utf8proc, xxHash, zstd and SQLite beside libtrireme" ON)
if(TRIREME_BUNDLE)
  install(CODE "set(trireme_library \"$<TARGET_FILE:trireme_core>\")
set(trireme_destination \"${CMAKE_INSTALL_LIBDIR}\")")
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/bundle_libraries.cmake)
endif()

# Found by name from any directory: base/data_files.h.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme)

foreach(room ${TRIREME_CORE_ROOMS})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/trireme/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme
          FILES_MATCHING PATTERN "*.h" PATTERN "*_plugin" EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/src/trireme/device/runtime.h ${PROJECT_SOURCE_DIR}/src/trireme/device/cuda_runtime.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme/device)

# The rooms with tensors. Their library is not part of the exported targets: which LibTorch it stands on is known only where
# it is used, so trireme-config.cmake makes trireme::runtime there.
set(trireme_installed_runtime OFF)
if(TARGET trireme_runtime)
  set(trireme_installed_runtime ON)
  foreach(room ${TRIREME_RUNTIME_ROOMS})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/trireme/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme
            FILES_MATCHING PATTERN "*.h" PATTERN "*_plugin" EXCLUDE)
  endforeach()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/trireme)
install(EXPORT trireme NAMESPACE trireme:: FILE trireme-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/trireme-config.cmake.in
                              ${PROJECT_BINARY_DIR}/trireme-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/trireme-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/trireme-config.cmake ${PROJECT_BINARY_DIR}/trireme-config-version.cmake
        DESTINATION ${package_dir})
