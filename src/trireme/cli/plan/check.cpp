// trireme check: everything that can be known about a run before it starts, without a device.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/plan/print.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/comm/process.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/data/vocab_size.h"
#include "trireme/observe/machine.h"
#include "trireme/plan/check_recipe.h"
#include "trireme/spec/parameters.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCheckExamples = R"(Examples:
  trireme check recipes/tiny.toml --ranks 2
  trireme check big.toml --ranks 1024 --cluster dgx-h100 --no-files
  trireme check big.toml --ranks 1024 --cluster dgx-h100 --set layout.pp=8 --json)";

struct CheckCommand {
  RecipeOptions recipe;
  std::optional<int> ranks;
  std::string cluster;
  bool json = false, no_files = false;
};

/// Ranks of the recipe where the command line has none.
int ranks_of(const CheckCommand& options, const spec::Recipe& recipe) {
  if (options.ranks) return *options.ranks;
  if (recipe.comm.ranks) return *recipe.comm.ranks;
  return static_cast<int>(recipe.layout.ranks_per_copy() * recipe.layout.dp.value_or(1));
}

/// Where nothing says otherwise, ranks are what `trireme train` would start here: threads, unless a launcher has
/// started this process. On a cluster they are processes.
spec::RankKind rank_kind_of(const CheckCommand& options) {
  const bool launched = comm::detect_launch().kind != comm::Launch::Kind::kSingle;
  return launched || !options.cluster.empty() ? spec::RankKind::kProcesses : spec::RankKind::kThreads;
}

/// Both look at the layout; the one that knows the model gives hints that suit each other.
void drop_doubles(std::vector<config::Problem>& problems, const std::vector<config::Problem>& better) {
  std::erase_if(problems, [&](const config::Problem& problem) {
    return std::ranges::any_of(better, [&](const config::Problem& other) {
      return other.key == problem.key || (problem.key == "layout" && other.key == "layout.dp");
    });
  });
}

using Problems = std::vector<config::Problem>;

/// Runs `open`; what it throws is a problem of `key`. Whether it could be opened.
template <typename Open>
bool try_to_open(const char* key, Problems& problems, const Open& open) {
  try {
    open();
    return true;
  } catch (const Error& error) {
    problems.push_back({.key = key, .reason = error.message(), .hint = error.hint(), .where = {}});
    return false;
  }
}

/// Patterns of published names are known to the rooms with tensors only.
bool freezes_by_other_names(const spec::Recipe& recipe, const spec::ModelShape& shape) {
  if (recipe.train.freeze.empty()) return false;
  const std::vector<spec::ParameterShape> ours = spec::list_parameters(shape);
  return !std::ranges::all_of(recipe.train.freeze, [&](const std::string& pattern) {
    return std::ranges::any_of(ours, [&](const auto& parameter) { return spec::matches(pattern, parameter.name); });
  });
}

struct OpenedFiles {
  std::optional<spec::ModelShape> shape;  ///< of the recipe's model; none where there is none, or it cannot be opened
  std::vector<config::Problem> problems;
};

/// Opens what a run would open before its first step: data, tokenizer, weights to start from. Every file that is
/// missing, damaged, or does not suit the model is a problem.
OpenedFiles open_files(const spec::Recipe& given) {
  spec::Recipe recipe = given;
  OpenedFiles opened;
  if (recipe.model.init_from) {
    spec::Recipe weights = given;
    weights.train.freeze.clear();  // a problem of its own, as is the teacher
    weights.distill = {};
    const auto open = [&] { opened.shape = load_train().shape(weights); };
    if (!try_to_open("model.init_from", opened.problems, open)) return opened;
  }
  const auto open_tokenizer = [&] {
    if (recipe.data.tokenizer) data::load_tokenizer(*recipe.data.tokenizer);
  };
  const auto open_training = [&] {  // in the order of a run: data::settle_vocab_size() may say how large the model is
    if (opened.shape) {
      data::check_vocab_size(recipe, *opened.shape);
      recipe.model = spec::resolved(spec::config_of(*opened.shape));
    } else {
      data::settle_vocab_size(recipe);
    }
    data::open_samples(recipe, data::Split::kTrain);
  };
  const char* key = spec::has_data(recipe.data) ? "data.sources" : "data";
  // Data is held against its tokenizer, and would only repeat what is wrong with that.
  if (try_to_open("data.tokenizer", opened.problems, open_tokenizer) &&
      try_to_open(key, opened.problems, open_training) && recipe.eval.every > 0) {
    try_to_open("data.validation", opened.problems, [&] { data::open_samples(recipe, data::Split::kValidation); });
  }
  if (!opened.shape) opened.shape = spec::shape_of(recipe.model);
  if (opened.shape && recipe.distill.used()) {  // with the vocabulary that the data has
    spec::Recipe taught = recipe;
    taught.model = spec::resolved(spec::config_of(*opened.shape));
    taught.train.freeze.clear();
    try_to_open("distill.teacher", opened.problems, [&] { load_train().shape(taught); });
  }
  if (opened.shape && freezes_by_other_names(given, *opened.shape)) {
    try_to_open("train.freeze", opened.problems, [&] { load_train().shape(given); });
  }
  return opened;
}

std::string ranks_text(int stage, int ranks_per_stage) {
  const int first = stage * ranks_per_stage;
  return ranks_per_stage == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, first + ranks_per_stage - 1);
}

std::string memory_table(const plan::Checkup& checkup) {
  constexpr auto kRight = TextTable::Align::kRight;
  const int each = checkup.estimate->config.ranks() / checkup.estimate->config.layout.pp;
  TextTable table({{"ranks", kRight},
                   {"stage", kRight},
                   {"layers", kRight},
                   {"weights", kRight},
                   {"gradients", kRight},
                   {"optimizer", kRight},
                   {"activations", kRight},
                   {"working", kRight},
                   {"buffers", kRight},
                   {"together", kRight},
                   {"in flight", kRight}});
  const auto size = [](double bytes) { return short_bytes(bytes); };
  for (const plan::RankMemory& one : checkup.stages) {
    const plan::MemoryParts parts = one.parts();
    table.add({ranks_text(one.stage, each), fmt::format("{}", one.stage), fmt::format("{}", one.layers),
               size(parts.weights), size(parts.gradients), size(parts.optimizer), size(parts.activations),
               size(parts.working), size(parts.buffers), size(parts.total()), fmt::format("{:.1f}", one.in_flight)});
  }
  return table.text("  ");
}

/// Whether the hardware is known for which times would be predicted: a processor's say nothing of a GPU.
bool knows_hardware(const CheckCommand& options, const spec::Recipe& recipe) {
  return !options.cluster.empty() || recipe.run.device == spec::DeviceKind::kCpu;
}

/// Ranks that would be threads of this process share this machine's memory: what is lacking, in words.
std::string lacks_here(const CheckCommand& options, const spec::Recipe& recipe, const plan::Checkup& checkup) {
  const auto there_is = static_cast<double>(observe::usable_memory());
  if (recipe.run.device != spec::DeviceKind::kCpu || rank_kind_of(options) != spec::RankKind::kThreads) return {};
  const int ranks = checkup.estimate->config.ranks();
  double bytes = 0;
  for (const plan::RankMemory& one : checkup.stages)
    bytes += one.peak() * ranks / static_cast<double>(checkup.stages.size());
  if (there_is <= 0 || bytes <= there_is) return {};
  return fmt::format("{} would take {} of memory here, and this machine has {}",
                     ranks == 1 ? "it" : fmt::format("its {} ranks", ranks), short_bytes(bytes), short_bytes(there_is));
}

std::string report(const CheckCommand& options, const spec::Recipe& recipe, const cost::Hardware& hardware,
                   const plan::Checkup& checkup) {
  const plan::Estimate& estimate = *checkup.estimate;
  const spec::ModelShape& shape = checkup.job->shape;
  std::string out =
      fmt::format("{} on {}: {}\n  model     {} parameters, {} sequences of {} tokens a step\n", options.recipe.file(),
                  counted(static_cast<std::size_t>(estimate.config.ranks()), "rank"), to_text(estimate.config),
                  short_count(static_cast<double>(spec::count_parameters(shape).total())), checkup.job->batch,
                  checkup.job->seq_len);
  if (const auto& proof = checkup.proof) {
    out += fmt::format(
        "  schedule  {}: {} passes and {} messages of {} micro-batches through {} on {}; complete, and free of "
        "deadlock "
        "{}\n",
        proof->kind, proof->passes, proof->messages, proof->micros,
        counted(static_cast<std::size_t>(proof->chunks), "chunk"),
        counted(static_cast<std::size_t>(proof->ranks), "stage"),
        proof->slots == 0
            ? "without any buffering"
            : fmt::format("where a channel holds {}", counted(static_cast<std::size_t>(proof->slots), "message")));
  } else {
    out += "  schedule  none: there is a single stage\n";
  }
  if (!knows_hardware(options, recipe)) {
    out += "  time      not predicted: the recipe is for GPUs, and --cluster does not say which (dgx-h100, ...)\n";
  } else {
    out += fmt::format("  time      {} a step predicted on {} x {}, {} tokens/s{}\n",
                       short_seconds(estimate.step_seconds()), estimate.config.ranks(), hardware.device.name,
                       short_count(checkup.job->tokens() / estimate.step_seconds()),
                       options.cluster.empty() ? " (no --cluster was given: plausible, not measured)" : "");
  }
  out += fmt::format("\npeak memory of each rank\n{}", memory_table(checkup));
  for (const std::string& note : checkup.notes) out += fmt::format("\nnote: {}", note);
  if (!checkup.notes.empty()) out += '\n';
  return out;
}

ordered_json to_json(const plan::Checkup& checkup, const std::vector<config::Problem>& problems) {
  ordered_json out{{"fine", problems.empty()}, {"problems", ordered_json::array()}, {"notes", checkup.notes}};
  for (const config::Problem& problem : problems)
    out["problems"].push_back(
        {{"key", problem.key}, {"reason", problem.reason}, {"fix", problem.hint}, {"where", problem.where}});
  if (const auto& proof = checkup.proof)
    out["schedule"] = {{"kind", proof->kind},     {"stages", proof->ranks},
                       {"chunks", proof->chunks}, {"micros", proof->micros},
                       {"passes", proof->passes}, {"messages", proof->messages},
                       {"slots", proof->slots},   {"complete_and_free_of_deadlock", true}};
  if (!checkup.estimate) return out;
  const plan::Estimate& estimate = *checkup.estimate;
  out["step_seconds"] = estimate.step_seconds();
  out["memory_bytes_peak"] = estimate.memory.peak();
  out["memory_bytes_device"] = estimate.memory.device;
  out["fits"] = estimate.memory.fits;
  out["layout"] = cli::to_json(estimate.config);
  const int each = estimate.config.ranks() / estimate.config.layout.pp;
  out["ranks"] = ordered_json::array();
  for (const plan::RankMemory& one : checkup.stages) {
    out["ranks"].push_back({{"first_rank", one.stage * each},
                            {"last_rank", one.stage * each + each - 1},
                            {"stage", one.stage},
                            {"layers", one.layers},
                            {"in_flight", one.in_flight},
                            {"bytes", memory_json(one.parts())},
                            {"bytes_together", one.peak()}});
  }
  return out;
}

int check(CheckCommand& options, Context& context) {
  if (options.ranks) options.recipe.set(fmt::format("comm.ranks={}", *options.ranks));
  std::vector<config::Problem> problems;
  const spec::LoadedRecipe loaded = options.recipe.read(problems);
  const cost::Hardware hardware = cost::load_hardware(options.cluster.empty() ? "local" : options.cluster);
  const spec::Recipe& recipe = loaded.value;
  OpenedFiles files;
  // Where the recipe's own values are wrong, files are not held against them.
  if (!options.no_files && problems.empty()) files = open_files(recipe);
  plan::Checkup checkup;
  if (files.shape || !recipe.model.init_from) {
    checkup = plan::check_recipe(recipe, {.ranks = ranks_of(options, recipe),
                                          .hardware = hardware,
                                          .estimates = problems.empty(),
                                          .judge_memory = !options.cluster.empty(),
                                          .shape = files.shape,
                                          .rank_kind = rank_kind_of(options)});
  } else if (options.no_files) {
    checkup.notes.push_back(
        fmt::format("model.init_from: {} says the shape, and was not opened; nothing but the "
                    "recipe's own values was checked",
                    *recipe.model.init_from));
  }
  if (recipe.distill.used())
    checkup.notes.push_back("distill.teacher: its weights and its forward pass are not in the estimates");
  drop_doubles(problems, checkup.problems);
  config::add_cross_problems(checkup.problems, loaded.origins, options.recipe.input(), problems);
  config::add_cross_problems(files.problems, loaded.origins, options.recipe.input(), problems);
  if (options.json) {
    context.out << to_json(checkup, problems).dump(2) << '\n';
    return problems.empty() ? kExitFine : kExitUsage;
  }
  if (checkup.estimate) {
    context.out << report(options, recipe, hardware, checkup);
  } else {
    for (const std::string& note : checkup.notes) fmt::print(context.out, "note: {}\n", note);
  }
  if (!problems.empty()) throw config::ProblemsError(options.recipe.file(), std::move(problems));
  const std::string lacking = checkup.estimate ? lacks_here(options, recipe, checkup) : std::string();
  fmt::print(context.out, "\n{}{}\n", options.no_files ? "it can run, if its files are fine" : "it can run",
             lacking.empty() ? "" : ", but not on this machine: " + lacking);
  return kExitFine;
}

}  // namespace

void add_check_command(Command& app, Context& context) {
  Command& command = app.add_subcommand(
      "check",
      "Before a run, without a GPU: every problem with a fix, files opened, the schedule proven, memory of each rank, "
      "step time");
  const auto options = std::make_shared<CheckCommand>();  // shared with the callback, which outlives this function
  options->recipe.add_to(command, RecipeOptions::File::kRequired);
  command.add_option("--ranks", options->ranks, "How many ranks the run will have; default: what the recipe says")
      .positive()
      .type_name("N");
  command
      .add_option("--cluster", options->cluster,
                  "What it will run on, by name (dgx-h100, ...) or the path of a file; whether memory suffices is "
                  "judged where this is given")
      .type_name("NAME");
  command.add_flag("--no-files", options->no_files,
                   "Do not open data, tokenizer and the weights to start from: for a recipe whose files are on another "
                   "machine");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(kCheckExamples);
  command.callback([&context, options] { context.run = [&context, options] { return check(*options, context); }; });
}

}  // namespace trireme::cli
