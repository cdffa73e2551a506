# Language level, warnings, sanitizers, compiler cache and linker: what every target of the project is built with.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor
                                               -Woverloaded-virtual -fno-omit-frame-pointer)
target_link_options(trireme_flags INTERFACE -rdynamic)
if(TRIREME_SANITIZE)
  target_compile_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE})
  # GCC warns that the thread sanitizer does not model std::atomic_thread_fence; where the code relies on a fence it
  # says so, and uses a read-modify-write in sanitized builds instead.
  if(TRIREME_SANITIZE MATCHES "thread")
    target_compile_definitions(trireme_flags INTERFACE TRIREME_TSAN=1)
  endif()
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  # Needed for ccache to take results from builds with a precompiled header.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# The fastest linker that is there; the system's default otherwise.
find_program(MOLD_PROGRAM mold)
find_program(LLD_PROGRAM ld.lld)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
elseif(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()
