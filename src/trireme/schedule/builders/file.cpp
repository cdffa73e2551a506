// Schedules that people wrote themselves.
#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {

Schedule read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) throw IoError(fmt::format("cannot read the schedule {}", path), "is the path right?");
  return with_context(fmt::format("while reading the schedule {}", path), [&] { return read(text.str()); });
}

}  // namespace trireme::schedule
