// cli/plan/commands.h -- the commands below `trireme plan`, one file each; plan.cpp lists them.
//
// Depends on: CLI11.
#pragma once

#include "trireme/cli/commands.h"

namespace trireme::cli {

void add_plan_explain(CLI::App& plan, Context& context);
void add_plan_roofline(CLI::App& plan, Context& context);
void add_plan_scaling(CLI::App& plan, Context& context);
void add_plan_batch(CLI::App& plan, Context& context);
void add_plan_in_flight(CLI::App& plan, Context& context);

}  // namespace trireme::cli
