// cli/tasks/science_tasks.h -- `trireme science tasks` and `emergence`.
//
// Depends on: command.h.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/commands.h"

namespace trireme::cli {

struct EmergenceSection {
  std::string charts, table;  ///< HTML; text
  std::size_t models = 0;
};
/// How the metrics of results (files that `trireme eval --tasks --json` printed) grow over the models' sizes.
EmergenceSection emergence_section(const std::vector<std::string>& results);

/// Below `science`.
void add_science_tasks(Command& science, Context& context);

}  // namespace trireme::cli
