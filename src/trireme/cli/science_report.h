// cli/science_report.h -- `trireme science report`: noise scale, scaling law and tasks of own runs on one page.
//
// Depends on: command.h.
#pragma once

#include "trireme/cli/commands.h"

namespace trireme::cli {

/// Below `science`.
void add_science_report(Command& science, Context& context);

}  // namespace trireme::cli
