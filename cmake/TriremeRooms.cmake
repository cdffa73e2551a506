# What the tensor-free rooms are written with. One list for all of them, so that they can share a precompiled header.
add_library(trireme_deps INTERFACE)
target_include_directories(trireme_deps INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(trireme_deps INTERFACE fmt::fmt spdlog::spdlog tomlplusplus::tomlplusplus
                                             nlohmann_json::nlohmann_json Threads::Threads PkgConfig::PCRE2
                                             PkgConfig::UTF8PROC PkgConfig::XXHASH)

# trireme_sources(OUT ROOM): every .cpp below src/trireme/ROOM, less main.cpp and the folders named *_plugin/, which become
# the program and libraries of their own.
function(trireme_sources out name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/trireme/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_plugin/|/main\\.cpp$")
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# trireme_room(ROOM LIBS...): the room as the object library trireme_ROOM; nothing while it has no sources.
# Which rooms a room may include is checked by scripts/check-layers, from the table in docs/architecture.md.
function(trireme_room name)
  trireme_sources(sources ${name})
  if(NOT sources)
    return()
  endif()
  add_library(trireme_${name} OBJECT ${sources})
  target_link_libraries(trireme_${name} PRIVATE trireme_flags PUBLIC trireme_deps ${ARGN})
  if(name STREQUAL "base")
    target_precompile_headers(trireme_base PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)
  else()
    target_precompile_headers(trireme_${name} REUSE_FROM trireme_base)
  endif()
endfunction()
