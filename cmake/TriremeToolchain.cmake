# Language level, warnings, sanitizers, compiler cache, linker and folders: what every target is built with.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# No -march=native: one binary for all machines; kernels choose their instruction set when they run.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(trireme_optimize_loops -O3)  # kernels, reductions: where a loop over elements is most of the time
set(trireme_optimize_tests -O0)
# Sanitizers print lines, not variables; full debug information would cost them a quarter of their compile time. The address
# sanitizer compiles in two thirds of the time unoptimised; the thread sanitizer gains nothing by it.
if(TRIREME_SANITIZE MATCHES "thread")
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
  set(trireme_optimize_loops -O1)  # GCC 12 crashes over instrumented kernels at -O3 (interprocedural constants)
elseif(TRIREME_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
else()
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
endif()

set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
# Installed, the program finds its libraries, and they each other, wherever the tree is moved to.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN")

# Members left out of an initialiser keep their defaults: that is how our structs are meant to be used, so no warning.
set(may_shadow $<BOOL:$<TARGET_PROPERTY:TRIREME_MAY_SHADOW>>)
set(warnings -Wall -Wextra -Wpedantic -Werror $<$<NOT:${may_shadow}>:-Wshadow> -Wnon-virtual-dtor -Woverloaded-virtual
             -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these for plain std::string code that it has inlined (its bug 105651), GCC 13 for fmt's buffers.
  list(APPEND warnings -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()
add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings};-fno-omit-frame-pointer>")
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
  # Without these ccache takes no result from a build with a precompiled header. The base folder lets clones share.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                  CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

# The fastest linker that is there; the system's default otherwise.
find_program(MOLD_PROGRAM mold)
find_program(LLD_PROGRAM ld.lld)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
elseif(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()
