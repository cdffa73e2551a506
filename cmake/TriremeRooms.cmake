# trireme_room(NAME LIBS...): compiles every .cpp below src/trireme/NAME as the object library trireme_NAME.
# Which rooms a room may include is checked by scripts/check-layers, from the table in docs/architecture.md.
function(trireme_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_plugin/")  # libraries of their own, loaded at run time
  add_library(trireme_${name} OBJECT ${sources})
  target_include_directories(trireme_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(trireme_${name} PRIVATE trireme_flags PUBLIC fmt::fmt Threads::Threads ${ARGN})
  target_precompile_headers(trireme_${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)
endfunction()
