// cli/tasks/science_tasks.h -- `trireme science tasks` and `emergence`.
//
// Depends on: command.h.
#pragma once

#include "trireme/cli/commands.h"

namespace trireme::cli {

/// Below `science`.
void add_science_tasks(Command& science, Context& context);

}  // namespace trireme::cli
