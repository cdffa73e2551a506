# cmake -DPROGRAM=test_nn -DROOM=nn -DAPART=REGEX -DWAITING=REGEX -DTRIREME=... -DOUT=FILE -P discover_suites.cmake
#
# Lists the suites of a GoogleTest program for ctest, as "nn.Attention". Loading the tensor library takes a program most of a
# second, and starting under a sanitizer a tenth, which hundreds of tests would pay one by one. Suites that match APART are
# long: their tests are listed each by itself, so that they run side by side. Those that match WAITING leave the cores to
# others (tests/CMakeLists.txt).
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests ended with ${failed}")
endif()
string(REGEX REPLACE " *#[^\n]*" "" listed "${listed}")
string(REPLACE "\n" ";" lines "${listed}")
set(script "")
function(add_ctest name filter)
  if(name MATCHES "^(${WAITING})$")
    set(takes "PROCESSORS 1 RESOURCE_LOCK waits COST 400")
  else()
    set(takes "PROCESSORS 2")
  endif()
  string(APPEND script "add_test([==[${ROOM}.${name}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${filter}]==] --gtest_brief=1)\n"
                       "set_tests_properties([==[${ROOM}.${name}]==] PROPERTIES LABELS ${ROOM} TIMEOUT 600 ${takes} "
                       "ENVIRONMENT [==[TRIREME_PROGRAM=${TRIREME}]==])\n")
  set(script "${script}" PARENT_SCOPE)
endfunction()
set(suite "")
foreach(line ${lines})
  if(line MATCHES "^[^ ].*\\.$")
    string(REGEX REPLACE "\\.$" "" suite "${line}")
    if(APART AND suite MATCHES "^(${APART})$")
      continue()
    endif()
    add_ctest("${suite}" "${suite}.*")
  elseif(line MATCHES "^  ([^ ]+)$" AND APART)
    set(test ${CMAKE_MATCH_1})
    if(suite MATCHES "^(${APART})$")
      add_ctest("${suite}.${test}" "${suite}.${test}")
    endif()
  endif()
endforeach()
file(WRITE ${OUT} "${script}")
