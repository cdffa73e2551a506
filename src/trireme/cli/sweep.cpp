// trireme sweep: a hyperparameter search over a recipe, its trials trained as processes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/base/wall_clock.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/sweep_run.h"
#include "trireme/experiment/trial_run.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using experiment::Experiment;
using experiment::ExperimentFolder;

struct SweepFlags {
  std::string file, out, name;
  std::vector<std::string> sets, parameters;
  std::optional<std::int64_t> steps;
  Experiment experiment;
  SlotFlags slots;
};

std::string search_names() {
  std::string names;
  for (const experiment::SearchKind& kind : experiment::search_kinds()) {
    names += (names.empty() ? "" : "|") + std::string(kind.name);
  }
  return names;
}

std::string search_help() {
  TextTable table({{"search"}, {"what it does"}});
  for (const experiment::SearchKind& kind : experiment::search_kinds()) {
    table.add({std::string(kind.name), std::string(kind.about)});
  }
  return table.text("", 100);
}

/// A parameter that the recipe does not have, or no setting that can be trained, is said before anything is made.
void try_settings(const fs::path& recipe, const Experiment& experiment) {
  const auto search = experiment::make_search(experiment.search, experiment.options);
  std::exception_ptr first;
  for (int i = 0; i < 20; ++i) {
    const auto job = search->next();
    if (!job) break;
    std::vector<std::string> sets = experiment.sets;
    for (const auto& [key, value] : job->setting) sets.push_back(key + "=" + value);
    sets.push_back(fmt::format("train.steps={}", experiment.options.max_steps));
    try {
      spec::load_recipe({.file = recipe.string(), .environment = spec::recipe_environment(), .sets = sets});
      return;
    } catch (const ConfigError&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

int run_sweep(SweepFlags& flags, Context& context) {
  Experiment& experiment = flags.experiment;
  if (flags.parameters.empty()) {
    throw ConfigError("a sweep varies something", "give --param 'optim.learning_rate=log(1e-4,1e-2)'");
  }
  experiment.options.space = experiment::parse_space(flags.parameters);
  experiment.sets = flags.sets;
  if (flags.steps) experiment.sets.push_back(fmt::format("train.steps={}", *flags.steps));
  const fs::path recipe = fs::absolute(flags.file);
  experiment.options.max_steps = experiment::max_steps_of(recipe, experiment.sets);
  experiment.slots_per_trial = flags.slots.per_trial;
  experiment.directory = fs::current_path();
  experiment.created = wall_seconds();
  experiment.name = flags.name.empty() ? recipe.stem().string() : flags.name;
  const fs::path out =
      flags.out.empty() ? fs::path("runs") / fmt::format("{}-sweep", experiment.name) : fs::path(flags.out);
  try_settings(recipe, experiment);
  if (!flags.slots.slurm) {
    experiment::check_gpus_of_slots(recipe, experiment.sets, flags.slots.slots.value_or(1), experiment::gpus_here());
  }
  ExperimentFolder(out).create(experiment, read_text_file(recipe, 16U << 20));
  return run_experiments({out}, flags.slots, context);
}

}  // namespace

void add_sweep_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("sweep", "Search hyperparameters: train many variants of a recipe, find the best");
  const auto flags = std::make_shared<SweepFlags>();  // shared with the callback
  Experiment& experiment = flags->experiment;
  command.add_option("FILE", flags->file, "The recipe, a TOML file").required();
  command.add_option("--set", flags->sets, "Change a key for every trial, as in trireme train")
      .one_at_a_time()
      .type_name("SECTION.KEY=VALUE");
  command
      .add_option(
          "--param", flags->parameters,
          "A key to vary, with its range: log(A,B), uniform(A,B), int(A,B), logint(A,B) or choice(X,Y); a third "
          "number counts the values of a grid; ' if KEY=VALUE' behind it: only there. May be given many times")
      .one_at_a_time()
      .type_name("KEY=RANGE");
  command.add_option("--search", experiment.search, "How settings are chosen and trials stopped (below)")
      .type_name(search_names());
  command
      .add_option("--trials", experiment.options.trials,
                  "trials; grid and hyperband know by themselves, pbt: the population")
      .positive();
  command.add_option("--steps", flags->steps, "steps of a whole training; default: the recipe's train.steps")
      .positive();
  command.add_option("--min-steps", experiment.options.min_steps, "steps before the first evaluation").positive();
  command.add_option("--eta", experiment.options.divisor, "1 of so many trials of a rung goes on (reduction factor)")
      .within(2, 100);
  command.add_option("--rungs", experiment.options.rungs, "rungs, fewer where the steps do not suffice").positive();
  add_choice<experiment::Mode>(command, "--mode", experiment.options.mode,
                               {{"aggressive", experiment::Mode::kAggressive},
                                {"standard", experiment::Mode::kStandard},
                                {"conservative", experiment::Mode::kConservative}},
                               "adaptive-asha: how early it dares to stop");
  command
      .add_option("--max-concurrent", experiment.options.concurrent, "adaptive-asha: trials at once, over all brackets")
      .positive();
  command.add_option("--rounds", experiment.options.rounds, "pbt, median: evaluations of a whole trial").positive();
  command.add_option("--seed", experiment.options.seed, "of the settings that are drawn");
  command.add_option("--priority", experiment.priority, "of its trials, beside other experiments on the same slots");
  command.add_option("--weight", experiment.weight, "of its fair share, likewise").positive();
  command.add_option("--name", flags->name, "what the experiment is called; default: the recipe's file");
  command.add_option("--out", flags->out, "the experiment's folder; default: runs/NAME-sweep");
  flags->slots.add_to(command);
  command.add_option("--slots-per-trial", flags->slots.per_trial, "slots, and ranks, of each trial (gang scheduling)")
      .positive();
  command.footer(fmt::format(
      "{}\n"
      "A trial is evaluated on the recipe's validation data; less loss is better. Ctrl-C saves every trial and pauses; "
      "a\n"
      "sweep that was killed goes on just so: trireme experiments resume DIR.\n"
      "\n"
      "Examples:\n"
      "  trireme sweep recipes/tiny.toml --param 'optim.learning_rate=log(1e-4,1e-1)' --trials 24 --slots 2 --out "
      "runs/lr\n"
      "  trireme sweep recipes/tiny.toml --search grid --param 'optim.learning_rate=log(1e-4,1e-1,4)' --param "
      "'optim.weight_decay=choice(0,0.1)'",
      search_help()));
  command.callback([flags, &context] { context.run = [flags, &context] { return run_sweep(*flags, context); }; });
}

}  // namespace trireme::cli
