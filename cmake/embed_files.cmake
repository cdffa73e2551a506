# cmake -DOUT=FILE.cpp -DFOLDER=page -P embed_files.cmake: every file of FOLDER as a text in a table, for dashboard/assets.h.
file(GLOB files ${FOLDER}/*)
list(SORT files)
set(table "")
set(texts "")
set(number 0)
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  file(READ ${file} text)
  string(FIND "${text}" ")trireme\"" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} holds )trireme\", which ends a text of the table")
  endif()
  string(APPEND texts "constexpr std::string_view kText${number} = R\"trireme(${text})trireme\";\n")
  string(APPEND table "    {\"${name}\", kText${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT}.new "// Made by cmake/embed_files.cmake from ${FOLDER}: edit the files there.
#include \"trireme/dashboard/assets.h\"

namespace trireme::dashboard {
namespace {

${texts}
constexpr Asset kAssets[] = {
${table}};

}  // namespace

std::span<const Asset> assets() { return kAssets; }

}  // namespace trireme::dashboard
")
file(RENAME ${OUT}.new ${OUT})
