// trireme train: a run from its recipe.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/elastic_recipe.h"
#include "trireme/cli/graph_options.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/elastic_member.h"
#include "trireme/comm/process.h"
#include "trireme/observe/trace_sink.h"
#include "trireme/spec/faults.h"

namespace trireme::cli {
namespace {

struct TrainOptions {
  RecipeOptions recipe;
  std::optional<int> ranks;
  std::string out, trace;
  bool resume = false, start_over = false, explain = false, memory = false, elastic = false;
  std::int64_t profile = 0;
  std::vector<std::string> inject;
  GraphOptions graph;  // with --plan
};

void say(const train::RunResult& result, const std::string& folder, std::ostream& out) {
  using End = train::RunResult::End;
  switch (result.end) {
    case End::kFinished:
      fmt::print(out, "finished {}: loss {:.4f}{}\n", counted(static_cast<std::size_t>(result.steps), "step"),
                 result.loss,
                 result.validation_loss ? fmt::format(", validation loss {:.4f}", *result.validation_loss) : "");
      fmt::print(out, "the run is in {}; see it with: trireme report {}\n", folder, folder);
      break;
    case End::kWasFinished:
      fmt::print(out, "{} is finished: {} done; raise train.steps to train on\n", folder,
                 result.steps == 1 ? "its step is" : fmt::format("all {} steps are", result.steps));
      break;
    case End::kInterrupted:
      fmt::print(out, "stopped after step {} of {} and saved; go on with: trireme train ... --out {} --resume\n",
                 result.step, result.steps, folder);
      break;
    case End::kWorldEnds:
      break;  // the next one goes on
  }
}

/// Ranks that are processes write a file each.
std::filesystem::path trace_path(const std::filesystem::path& path, const comm::Rank& rank) {
  if (comm::detect_launch().kind == comm::Launch::Kind::kSingle) return path;
  return path.parent_path() / fmt::format("{}-{}{}", path.stem().string(), rank.rank(), path.extension().string());
}

std::string spread_text(const spec::LayoutConfig& layout) {
  return fmt::format("{}tp {}, pp {}, cp {}", layout.dp ? fmt::format("dp {}, ", *layout.dp) : std::string(), layout.tp,
                     layout.pp, layout.cp);
}

bool is_first_process() {
  const comm::Launch launch = comm::detect_launch();
  return launch.kind == comm::Launch::Kind::kSingle || launch.rank == 0;
}

spec::Recipe recipe_of(TrainOptions& options, Context& context) {
  if (!options.elastic) {
    if (options.ranks) options.recipe.set(fmt::format("comm.ranks={}", *options.ranks));
    std::vector<std::string> said;
    spec::Recipe recipe = options.recipe.load(context, &said).value;
    for (const std::string& sentence : said) {
      if (is_first_process()) log_info("{}", sentence);
    }
    return recipe;
  }
  spec::Recipe recipe = options.recipe.load(context).value;
  const comm::Launch launch = comm::detect_launch();
  const bool started = launch.kind != comm::Launch::Kind::kSingle;
  const int ranks = started ? launch.ranks : options.ranks.value_or(recipe.comm.ranks.value_or(1));
  const spec::ParallelConfig before = parallel_config_of(recipe), fitted = spec::fit_ranks(before, ranks);
  if (!(fitted == before) && (!started || launch.rank == 0)) {
    log_info("{} is no layout for {}: going on with {}", spread_text(before.layout),
             counted(static_cast<std::size_t>(ranks), "rank"), spread_text(fitted.layout));
  }
  recipe = with_parallel_config(std::move(recipe), fitted);
  recipe.comm.ranks = started ? std::nullopt : std::optional(ranks);
  if (auto problems = find_all_problems(recipe); !problems.empty()) {
    throw config::ProblemsError("the recipe on these ranks", std::move(problems));
  }
  return recipe;
}

/// OpenMP reads it when it is loaded, which is with the runtime.
void set_wait_policy(const spec::TrainConfig& train) {
  if (!train.omp_wait_policy) return;
  ::setenv("OMP_WAIT_POLICY", *train.omp_wait_policy == spec::OmpWaitPolicy::kPassive ? "PASSIVE" : "ACTIVE", 1);
}

/// The world is over for this member, through no fault of its own.
struct WorldOver {
  std::string why;
};

/// What is left of a world when a rank of it died must not wait for anybody.
train::RunResult run_epoch(const train::Commands& commands, const train::RunRequest& request, comm::Rank& rank) {
  try {
    return commands.run(request, rank);
  } catch (const CommError& error) {
    rank.announce_failure(error.message());
    throw WorldOver{error.message()};
  } catch (const std::exception& error) {
    rank.announce_failure(error.what());
    throw;
  }
}

/// A member of an elastic world: a rank of one epoch after the other, until the run is finished.
int run_member(const comm::MemberOptions& where, const spec::Recipe& base, train::RunRequest request,
               Context& context) {
  const train::Commands& commands = load_train();
  comm::ElasticMember member(where);
  train::ElasticHooks hooks;
  if (const auto every = env("TRIREME_SNAPSHOT_EVERY")) hooks.snapshot_every = std::max(1, std::atoi(every->c_str()));
  hooks.wants_edge = [&] { return member.wants_edge(); };
  hooks.moved = [&](std::int64_t step) { member.moved(step); };
  request.elastic = &hooks;
  request.resume = true;  // a world goes on from where the one before was; the first one from where the run was
  std::string why;
  while (const auto place = member.wait_for_world(why)) {
    const auto fitted = fit_recipe(base, place->ranks);
    TRIREME_CHECK(fitted && fitted->ranks == place->ranks, "the coordinator found a layout for {} ranks", place->ranks);
    request.recipe = with_parallel_config(base, fitted->config);
    request.local_ranks = std::max(1, place->local_ranks);
    hooks.epoch = place->epoch;
    const std::filesystem::path kept = request.folder / "comm-costs.toml";
    const comm::RanksOptions ranks = member_ranks_options(
        request.recipe, std::filesystem::exists(kept) ? std::optional(kept.string()) : std::nullopt);
    try {
      const auto process = member.join(*place, ranks);
      const ThreadRank in_log(place->rank, place->ranks);
      const train::RunResult result = run_epoch(commands, request, process->rank());
      if (result.end == train::RunResult::End::kWorldEnds) {
        why = "the world is formed anew at a step edge";
        continue;
      }
      if (result.end == train::RunResult::End::kInterrupted) {
        member.stopped();
        if (place->rank == 0) say(result, request.folder.string(), context.out);
        return kExitInterrupted;
      }
      member.finished();
      if (place->rank == 0) say(result, request.folder.string(), context.out);
      return kExitFine;
    } catch (const WorldOver& over) {
      why = over.why;
    } catch (const CommError& error) {
      why = error.message();
    } catch (const ConfigError& error) {
      // What is wrong in the first world is wrong for all. Later it is this member's own affair: the others go on.
      if (place->epoch == 1) member.refused(error.message());
      throw;
    }
    log_info("epoch {} is over for rank {}: {}", place->epoch, place->rank, why);
  }
  return kExitFine;
}

int run_training(TrainOptions& options, Context& context) {
  if (!options.graph.strategy.empty()) {
    if (!options.recipe.file().empty())
      throw ConfigError(
          fmt::format("there is a recipe, {}, and a plan, {}", options.recipe.file(), options.graph.strategy),
          "a plan is trained without a recipe: leave out one of them");
    options.graph.graph = graph_of_plan(options.graph.strategy);
    options.graph.ranks = options.ranks.value_or(0);
    run_graph(options.graph, context);
    return kExitFine;
  }
  if (options.recipe.file().empty())
    throw ConfigError("there is neither a recipe nor a plan", "name a recipe, or say --plan FILE");
  if (options.start_over && !options.resume) {
    throw ConfigError("--start-over says what --resume does without a whole checkpoint", "add --resume");
  }
  spec::parse_faults(options.inject);  // says what is wrong before ranks are started
  const spec::Recipe recipe = recipe_of(options, context);
  const std::string folder =
      options.out.empty() ? (std::filesystem::path(recipe.run.out) / recipe.run.name).string() : options.out;
  set_wait_policy(recipe.train);
  const train::Commands& commands = load_train();
  if (options.memory) {
    const comm::Launch launch = comm::detect_launch();
    if (launch.kind != comm::Launch::Kind::kSingle && launch.rank != 0) return kExitFine;
    const auto laid_out = static_cast<int>(recipe.layout.dp.value_or(1) * recipe.layout.ranks_per_copy());
    const int ranks = std::max({laid_out, launch.ranks, recipe.comm.ranks.value_or(1)});
    fmt::print(context.out, "{}", commands.memory({.recipe = recipe, .ranks = ranks}));
    return kExitFine;
  }
  // What decides the order of sums stays as it was when the run began.
  const std::filesystem::path kept = std::filesystem::path(folder) / "comm-costs.toml";
  std::optional<std::string> costs;
  if (options.resume && std::filesystem::exists(kept)) costs = kept.string();
  std::unique_ptr<observe::TraceSink> trace;
  std::once_flag trace_made;
  train::RunRequest request{.recipe = recipe,
                            .folder = folder,
                            .resume = options.resume,
                            .start_over = options.start_over,
                            .explain = options.explain,
                            .profile = options.profile,
                            .local_ranks = local_ranks(recipe),
                            .inject = options.inject};
  if (const auto member = comm::member_from_env()) return run_member(*member, recipe, request, context);
  std::atomic<bool> interrupted = false;
  start_ranks(
      recipe,
      [&](comm::Rank& rank) {
        if (!options.trace.empty()) {
          std::call_once(trace_made, [&] {  // once a process: ranks that are threads share it
            trace = std::make_unique<observe::TraceSink>(trace_path(options.trace, rank));
            request.trace = trace.get();
          });
        }
        const train::RunResult result = commands.run(request, rank);
        if (result.end == train::RunResult::End::kInterrupted) interrupted = true;
        if (rank.rank() == 0) say(result, folder, context.out);
      },
      costs);
  return interrupted ? kExitInterrupted : kExitFine;
}

}  // namespace

void add_train_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("train", "Train the model that a recipe describes");
  command.footer(
      "The run's directory holds the effective recipe, metrics.jsonl with a line for each step, events.jsonl,\n"
      "TensorBoard files, the log and the checkpoints. Ctrl-C saves and ends the run after the step, with exit code "
      "130;\n"
      "--resume goes on.\n"
      "\n"
      "Examples:\n"
      "  trireme train recipes/tiny.toml\n"
      "  trireme train recipes/tiny.toml --ranks 2 --set train.steps=400 --out runs/longer\n"
      "  trireme train recipes/tiny.toml --out runs/longer --resume\n"
      "  mpirun -n 4 trireme train recipes/tiny.toml\n"
      "  trireme train --plan vgg16.plan --small --steps 10\n"
      "  trireme train recipes/gpt2-124m.toml --memory --set train.micro_batch_size=64");
  const auto options = std::make_shared<TrainOptions>();  // shared with the callback, which outlives this function
  options->recipe.add_to(command, RecipeOptions::File::kOptional);
  command
      .add_option("--plan", options->graph.strategy,
                  "instead of a recipe: train the operator graph of this plan as it says (trireme search -o)")
      .type_name("FILE");
  command.add_option("--images", options->graph.images, "with --plan: labelled images to train on (trireme graph run)")
      .type_name("FILE");
  command.add_flag("--small", options->graph.small, "with --plan: a sibling of the graph with few channels");
  command.add_option("--steps", options->graph.steps, "with --plan: steps of gradient descent").positive();
  command.add_option("--lr", options->graph.learning_rate, "with --plan: learning rate").not_negative();
  command.add_option("--batch", options->graph.batch, "with --plan: samples of a step; default: the graph's own")
      .positive();
  command.add_option("--ranks", options->ranks, "number of ranks (world size): short for --set comm.ranks=N")
      .positive();
  command.add_option("--out", options->out, "the run's directory; default: run.out/run.name of the recipe");
  command.add_flag("--explain", options->explain,
                   "print memory and traffic of a step, measured and by the papers' formulas, before the first");
  command.add_flag("--memory", options->memory,
                   "print the memory plan of each rank's GPU, line by line, and exit: neither a GPU nor the data "
                   "are needed");
  command
      .add_option("--profile", options->profile,
                  "profile this many steps on a GPU after the first few: profile.json in the run's directory, for "
                  "ui.perfetto.dev, and a table of where the time went beside what the hardware allows")
      .positive();
  command.add_option("--trace", options->trace,
                     "write a trace of every layer and message to FILE, for ui.perfetto.dev; ranks "
                     "that are processes write FILE-RANK");
  command.add_flag(
      "--resume", options->resume,
      "resume from the newest complete checkpoint in the run's directory; without any checkpoint, start at the "
      "beginning");
  command.add_flag("--start-over", options->start_over,
                   "with --resume, where every checkpoint is damaged: set what the run has written aside, in its "
                   "directory, and start at the beginning");
  command.add_flag("--elastic", options->elastic,
                   "fit the recipe's layout to another number of ranks: another data-parallel size first, then "
                   "smaller cp, pp and tp");
  command
      .add_option("--inject", options->inject,
                  "a fault to inject, once: \"kill rank 1 at step 50\" (docs/reliability.md)")
      .take_all();
  command.callback(
      [options, &context] { context.run = [options, &context] { return run_training(*options, context); }; });
}

}  // namespace trireme::cli
