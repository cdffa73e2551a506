# What the tensor-free rooms are written with. One list for all of them, so that they can share a precompiled header.
add_library(trireme_deps INTERFACE)
target_include_directories(trireme_deps INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(trireme_deps INTERFACE fmt::fmt spdlog::spdlog tomlplusplus::tomlplusplus
                                             nlohmann_json::nlohmann_json Threads::Threads PkgConfig::PCRE2
                                             PkgConfig::UTF8PROC PkgConfig::XXHASH PkgConfig::ZLIB PkgConfig::ZSTD
                                             PkgConfig::SQLITE)

# trireme_sources(OUT ROOM): every .cpp below src/trireme/ROOM, less main.cpp and the folders named *_plugin/, which become
# the program and libraries of their own.
function(trireme_sources out name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/trireme/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_plugin/|/main\\.cpp$")
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# trireme_room(ROOM [OPTIMIZE -On] LIBS...): the room as the object library trireme_ROOM; nothing while it has no sources.
# A room with tensors names trireme_torch among its libraries.
# Which rooms a room may include is checked by scripts/check-layers, from the table in docs/architecture.md.
function(trireme_room name)
  cmake_parse_arguments(room "" OPTIMIZE "" ${ARGN})
  trireme_sources(sources ${name})
  if(NOT sources)
    return()
  endif()
  trireme_unity(sources trireme_${name} ${PROJECT_SOURCE_DIR}/src ${sources})
  add_library(trireme_${name} OBJECT ${sources})
  target_link_libraries(trireme_${name} PRIVATE trireme_flags PUBLIC trireme_deps ${room_UNPARSED_ARGUMENTS})
  target_compile_options(trireme_${name} PRIVATE ${room_OPTIMIZE})
  if(trireme_torch IN_LIST ARGN)
    trireme_precompile(trireme_${name} rooms_torch.h ${room_OPTIMIZE})
  else()
    trireme_precompile(trireme_${name} rooms.h ${room_OPTIMIZE})
  endif()
endfunction()

# trireme_unity(OUT TARGET ROOT SOURCES...): with TRIREME_UNITY units of eight files each in place of SOURCES. CMake's own
# (UNITY_BUILD) include files by absolute paths, so that no two clones could share results of the compiler cache; these
# name them from ROOT, a folder of includes. A file compiled with options of its own stays by itself.
function(trireme_unity out target root)
  if(NOT TRIREME_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(units "")
  set(batch "")
  set(number 0)
  foreach(source ${ARGN} END)
    if(source MATCHES "_(plain|v3|v4|v4bf16)\\.cpp$|/abi_test\\.cpp$")
      list(APPEND units ${source})
    elseif(NOT source STREQUAL END)
      file(RELATIVE_PATH name ${root} ${source})
      list(APPEND batch "#include \"${name}\"")
    endif()
    list(LENGTH batch length)
    if(length EQUAL 8 OR (source STREQUAL END AND batch))
      list(JOIN batch "\n" text)
      set(unit ${CMAKE_CURRENT_BINARY_DIR}/Unity/unity_${target}_${number}.cpp)
      file(CONFIGURE OUTPUT ${unit} CONTENT "${text}\n" @ONLY)
      list(APPEND units ${unit})
      set(batch "")
      math(EXPR number "${number} + 1")
    endif()
  endforeach()
  set(${out} ${units} PARENT_SCOPE)
endfunction()

# trireme_precompile(TARGET HEADER [FLAGS]): HEADER of cmake/pch. The first target that asks for one with these flags makes it,
# the others share it. One made at another level of optimization is refused by GCC 13. Named in brackets, it has no absolute
# path, which would keep clones from sharing the compiler cache.
function(trireme_precompile target header)
  get_property(owner GLOBAL PROPERTY "trireme_precompiled:${header}:${ARGN}")
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch)
    target_precompile_headers(${target} PRIVATE <${header}>)
    set_property(GLOBAL PROPERTY "trireme_precompiled:${header}:${ARGN}" ${target})
  endif()
endfunction()

# trireme_targets_below(OUT FOLDER): every target of FOLDER and of the folders in it.
function(trireme_targets_below out folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below ${folders})
    trireme_targets_below(more ${below})
    list(APPEND targets ${more})
  endforeach()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

# trireme_target_of_folder(NAME FOLDER LESS...): the target NAME builds every target below FOLDER, which is not part of
# `all`, but those named LESS.
function(trireme_target_of_folder name folder)
  trireme_targets_below(targets ${folder})
  if(ARGN)
    list(REMOVE_ITEM targets ${ARGN})
  endif()
  add_custom_target(${name})
  if(targets)
    add_dependencies(${name} ${targets})
  endif()
endfunction()
