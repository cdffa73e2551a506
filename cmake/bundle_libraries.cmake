# Run by cmake --install: copies the shared libraries that trireme_library stands on to trireme_destination, by the names
# that the loader asks for. Those of the C and C++ compilers are on every machine.
file(GET_RUNTIME_DEPENDENCIES LIBRARIES "${trireme_library}" RESOLVED_DEPENDENCIES_VAR found
     UNRESOLVED_DEPENDENCIES_VAR missing
     PRE_INCLUDE_REGEXES "^lib(fmt|spdlog|tomlplusplus|pcre2-8|utf8proc|xxhash|zstd|sqlite3)\\.so" PRE_EXCLUDE_REGEXES ".*")
if(missing)
  message(FATAL_ERROR "cannot find ${missing}, which ${trireme_library} is linked with")
endif()
foreach(library ${found})
  get_filename_component(name ${library} NAME)
  file(REAL_PATH ${library} file)
  file(INSTALL ${file} DESTINATION "${CMAKE_INSTALL_PREFIX}/${trireme_destination}" RENAME ${name}
       PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()
