# The same loops once per instruction set; what runs is picked when the program starts. A file's ending names its set: _plain
# (the compiler's default), _v3 (AVX2), _v4 (AVX-512), _v4bf16 (with its bfloat16 dot products).

# trireme_compile_for_sets(CONTRACT SOURCES...): the flags of each file's set. CONTRACT: -ffp-contract. Neither with the
# precompiled header, which would bring in inline functions compiled for the wrong set, nor in one unit with other files.
function(trireme_compile_for_sets contract)
  foreach(source ${ARGN})
    if(NOT source MATCHES "_(plain|v3|v4|v4bf16)\\.cpp$")
      continue()
    endif()
    set(set_of_file ${CMAKE_MATCH_1})  # the next MATCHES forgets it
    set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      set(_plain "")
      set(_v3 "-march=x86-64-v3")
      set(_v4 "-march=x86-64-v4;-mprefer-vector-width=512")
      set(_v4bf16 "${_v4};-mavx512bf16")
      set(level ${trireme_optimize_loops})
      if(set_of_file STREQUAL "plain")  # for CPUs before 2013, and for tests: not worth a minute of everyone's compile time
        set(level -O1)
      endif()
      if(TRIREME_SANITIZE)
        set(level -O0)
      endif()
      set_source_files_properties(${source} PROPERTIES
                                  COMPILE_OPTIONS "${level};-ffp-contract=${contract};${_${set_of_file}}")
    endif()
  endforeach()
endfunction()

# trireme_instruction_sets(OUT HEADER NAME SETS...): generates one source per set. Each includes HEADER, which compiles the
# loops into the table that the macro TRIREME_NAME_TABLE names: kNamePlain, kNameV3, kNameV4, kNameV4Bf16.
#
# The compiler fuses a product with a sum in one copy of a loop and not in another, and bits would depend on which copy an
# element meets: no contraction, the loops say where they fuse.
function(trireme_instruction_sets out header name)
  string(REGEX REPLACE "([a-z])([A-Z])" "\\1_\\2" file ${name})
  string(TOUPPER TRIREME_${file}_TABLE macro)
  string(TOLOWER ${file} file)
  set(_plain Plain)
  set(_v3 V3)
  set(_v4 V4)
  set(_v4bf16 V4Bf16)
  set(generated "")
  foreach(set_of_file ${ARGN})
    set(source ${PROJECT_BINARY_DIR}/instruction_sets/${file}_${set_of_file}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#define ${macro} k${name}${_${set_of_file}}\n#include \"${header}\"\n")
    list(APPEND generated ${source})
  endforeach()
  trireme_compile_for_sets(off ${generated})
  set(${out} ${generated} PARENT_SCOPE)
endfunction()
