// cli/plan/commands.h -- the commands below `trireme plan` and `trireme simulate`, one file each.
//
// Depends on: command.h.
#pragma once

#include "trireme/cli/commands.h"

namespace trireme::cli {

void add_plan_explain(Command& plan, Context& context);
void add_plan_roofline(Command& plan, Context& context);
void add_plan_scaling(Command& plan, Context& context);
void add_plan_batch(Command& plan, Context& context);
void add_plan_in_flight(Command& plan, Context& context);
void add_plan_virtual_workers(Command& plan, Context& context);

/// Below `simulate`.
void add_simulate_asynchronous(Command& simulate, Context& context);
void add_simulate_spot(Command& simulate, Context& context);

}  // namespace trireme::cli
