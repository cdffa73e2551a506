// cli/commands.h -- the subcommands of the program.
//
// To add one: write cli/NAME.cpp with an add_NAME_command(), declare it here, and list it in kCommands. It describes
// its options and, in its callback, leaves in context.run what is to be done; all of the command line is then
// already checked. Results go to context.out, everything else through the log. A command is thin: what it does lives
// in the rooms.
// Depends on: command.h.
#pragma once

#include <functional>
#include <iosfwd>

#include "trireme/cli/command.h"

namespace trireme::cli {

struct Context {
  std::ostream& out;           // results; messages go through the log
  bool verbose = false;        // --verbose: also where errors were thrown
  bool level_is_set = false;   // by --verbose, --quiet or TRIREME_LOG: a recipe's log.level then stands back
  std::function<int()> run{};  // what the chosen command does; gives the exit code
};

using AddCommand = void (*)(Command& app, Context& context);

void add_train_command(Command& app, Context& context);
void add_supervise_command(Command& app, Context& context);
void add_elastic_command(Command& app, Context& context);
void add_launch_command(Command& app, Context& context);
void add_cluster_command(Command& app, Context& context);
void add_sweep_command(Command& app, Context& context);
void add_experiments_command(Command& app, Context& context);
void add_dashboard_command(Command& app, Context& context);
void add_tokenize_command(Command& app, Context& context);
void add_verify_command(Command& app, Context& context);
void add_eval_command(Command& app, Context& context);
void add_convert_command(Command& app, Context& context);
void add_quantize_command(Command& app, Context& context);
void add_inspect_command(Command& app, Context& context);
void add_tour_command(Command& app, Context& context);
void add_recipe_command(Command& app, Context& context);
void add_probe_command(Command& app, Context& context);
void add_generate_command(Command& app, Context& context);
void add_serve_command(Command& app, Context& context);
void add_schedule_command(Command& app, Context& context);
void add_bench_command(Command& app, Context& context);
void add_plan_command(Command& app, Context& context);
void add_graph_command(Command& app, Context& context);
void add_search_command(Command& app, Context& context);
void add_estimate_command(Command& app, Context& context);
void add_check_command(Command& app, Context& context);
void add_simulate_command(Command& app, Context& context);
void add_validate_planner_command(Command& app, Context& context);
void add_report_command(Command& app, Context& context);
void add_diff_command(Command& app, Context& context);
void add_hme_command(Command& app, Context& context);
void add_ampnet_command(Command& app, Context& context);
void add_ps_command(Command& app, Context& context);
void add_science_command(Command& app, Context& context);
void add_unsupervised_command(Command& app, Context& context);
void add_doctor_command(Command& app, Context& context);
void add_docs_command(Command& app, Context& context);
/// Below `tokenize`, which lists it.
void add_tokenize_train(Command& tokenize, Context& context);
/// Below `bench`, which lists it.
void add_bench_hardware(Command& bench, Context& context);
/// Below `ps`, which lists them.
void add_ps_lbfgs(Command& ps, Context& context);
void add_ps_drill(Command& ps, Context& context);
void add_ps_spot(Command& ps, Context& context);
/// Below `recipe`, which lists it.
void add_recipe_hyperparameters(Command& recipe, Context& context);
void add_recipe_new(Command& recipe, Context& context);
void add_recipe_import(Command& recipe, Context& context);

/// In the order of --help.
inline constexpr AddCommand kCommands[] = {
    &add_plan_command,
    &add_estimate_command,
    &add_check_command,
    &add_simulate_command,
    &add_validate_planner_command,
    &add_train_command,
    &add_supervise_command,
    &add_elastic_command,
    &add_launch_command,
    &add_sweep_command,
    &add_experiments_command,
    &add_dashboard_command,
    &add_tokenize_command,
    &add_eval_command,
    &add_generate_command,
    &add_serve_command,
    &add_report_command,
    &add_diff_command,
    &add_inspect_command,
    &add_verify_command,
    &add_convert_command,
    &add_quantize_command,
    &add_recipe_command,
    &add_schedule_command,
    &add_cluster_command,
    &add_bench_command,
    &add_probe_command,
    &add_science_command,
    &add_unsupervised_command,
    &add_hme_command,
    &add_ampnet_command,
    &add_ps_command,
    &add_doctor_command,
    &add_tour_command,
    &add_docs_command,
    &add_graph_command,
    &add_search_command,
};

}  // namespace trireme::cli
