// bench/planner_local.cpp -- is the planner right about this machine? Predicted beside measured step times of real
// runs.
//
//   trireme bench hardware -o my.toml && build/release/bench/planner_local my.toml [STEPS] [ROUNDS]
//
// Models and layouts are others than those that `bench hardware` fits its constants to. Each run is done ROUNDS times,
// in turn with the others, and the median of all its steps counts: this is to be run on a machine that does nothing
// else.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/observe/run_reader.h"
#include "trireme/plan/check_recipe.h"

namespace trireme {
namespace {

struct Case {
  std::string name;
  spec::Recipe recipe;
  int ranks = 1;
};

constexpr const char* kModels[] = {
    R"(family = "llama"
vocab_size = 4096
max_seq_len = 256
hidden_size = 384
num_layers = 4
num_heads = 6
num_kv_heads = 6
head_dim = 64
ffn_size = 1024)",
    R"(family = "gpt2"
vocab_size = 1024
max_seq_len = 128
hidden_size = 192
num_layers = 6
num_heads = 6
num_kv_heads = 6
head_dim = 32
ffn_size = 768)",
};

std::vector<Case> cases(int ranks, int steps, const std::string& folder) {
  std::vector<Case> out;
  const std::string all = fmt::format("{}", ranks);
  const std::vector<std::pair<std::string, std::vector<std::string>>> layouts{
      {"dp " + all, {}},
      {"dp " + all + ", micro-batches of 2", {"train.micro_batch_size=2"}},
      {"tp " + all + ", sequence parallel", {"layout.tp=" + all, "layout.sequence_parallel=true"}},
      {"pp " + all + ", 1f1b", {"layout.pp=" + all, "train.micro_batch_size=2"}},
      {"pp " + all + ", gpipe", {"layout.pp=" + all, "pipeline.schedule=gpipe", "train.micro_batch_size=1"}},
      {"pp " + all + ", interleaved x2",
       {"layout.pp=" + all, "pipeline.schedule=interleaved", "pipeline.virtual_stages=2", "train.micro_batch_size=1"}},
  };
  for (std::size_t model = 0; model < std::size(kModels); ++model) {
    const int sequence = model == 0 ? 256 : 128;
    for (const char* precision : {"fp32", "bf16"}) {
      for (const auto& [name, sets] : layouts) {
        std::vector<std::string> all_sets{fmt::format("comm.ranks={}", ranks),
                                          fmt::format("precision.compute={}", precision),
                                          fmt::format("train.steps={}", steps),
                                          fmt::format("data.seq_len={}", sequence),
                                          fmt::format("batch.global_batch_tokens={}", sequence * 8),
                                          fmt::format("run.out={}", folder)};
        all_sets.insert(all_sets.end(), sets.begin(), sets.end());
        const std::string text = fmt::format(
            "[model]\n{}\n[data]\nsynthetic.kind = \"markov\"\nsynthetic.vocab_size = 64\n[comm]\ntransport = "
            "\"threads\"\n"
            "[train]\nhash_every = 0\n[checkpoint]\nevery = 1000000\n",
            kModels[model]);
        out.push_back({fmt::format("hidden size {}, {}, {}", model == 0 ? 384 : 192, precision, name),
                       spec::load_recipe({.text = text, .sets = all_sets}).value, ranks});
      }
    }
  }
  return out;
}

std::vector<double> run_once(const Case& one, const std::filesystem::path& folder) {
  const train::Commands& commands = cli::load_train();
  std::filesystem::remove_all(folder);
  cli::start_ranks(one.recipe, [&](comm::Rank& rank) {
    (void)commands.run({.recipe = one.recipe, .folder = folder, .resume = false, .local_ranks = one.ranks}, rank);
  });
  std::vector<double> seconds;
  for (const observe::StepRecord& step : observe::read_run(folder).steps) {
    if (step.step > 3) seconds.push_back(step.seconds);  // the first ones warm up
  }
  if (static_cast<std::int64_t>(seconds.size()) + 3 < one.recipe.train.steps.value_or(0)) {
    throw ConfigError(fmt::format("{} was stopped before its last step", one.name), "start the comparison again");
  }
  return seconds;
}

int compare(const std::string& cluster, int steps, int rounds) {
  const cost::Hardware hardware = cost::load_hardware(cluster);
  const int ranks = hardware.cluster.gpus;
  if (ranks < 2) throw ConfigError("a machine of one rank has no layouts to compare", "measure with --ranks 2 or more");
  set_log_level(LogLevel::kWarn);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("trireme-planner-local-{}", ::getpid());
  const std::vector<Case> all = cases(ranks, steps, folder.string());
  std::vector<bench::Times> measured(all.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t index = 0; index < all.size(); ++index) {
      for (const double seconds : run_once(all[index], folder / "run")) measured[index].seconds.push_back(seconds);
      std::cerr << fmt::format("round {} of {}, {}: {}\n", round + 1, rounds, all[index].name,
                               short_seconds(measured[index].median()));
    }
  }
  std::filesystem::remove_all(folder);
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"run"}, {"predicted", kRight}, {"measured", kRight}, {"quartiles", kRight}, {"error %", kRight}});
  std::vector<double> errors;
  for (std::size_t index = 0; index < all.size(); ++index) {
    const plan::Checkup checkup =
        plan::check_recipe(all[index].recipe, {.ranks = ranks, .hardware = hardware, .judge_memory = false});
    if (!checkup.estimate) throw config::ProblemsError(all[index].name, checkup.problems);
    const double predicted = checkup.estimate->step_seconds(), median = measured[index].median();
    errors.push_back(std::abs(predicted / median - 1));
    table.add({all[index].name, short_seconds(predicted), short_seconds(median),
               fmt::format("{} .. {}", short_seconds(measured[index].quantile(0.25)),
                           short_seconds(measured[index].quantile(0.75))),
               fmt::format("{:+.1f}", 100 * (predicted / median - 1))});
  }
  std::ranges::sort(errors);
  std::cout << table.text()
            << fmt::format("\nmedian error {:.1f} % of {} runs, worst {:.1f} %; {} ranks on {} cores\n",
                           100 * errors[errors.size() / 2], errors.size(), 100 * errors.back(), ranks, usable_cores());
  return 0;
}

}  // namespace
}  // namespace trireme

int main(int count, char** words) {
  std::string cluster;
  int steps = 12, rounds = 2;
  trireme::bench::Arguments app("Predicted beside measured step times of this machine");
  app.add_option("CLUSTER", cluster, "as trireme bench hardware -o writes it");
  app.add_option("STEPS", steps, "of a run").positive().show_default();
  app.add_option("ROUNDS", rounds, "how often each is run").positive().show_default();
  if (const auto status = app.parse(count, words)) return *status;
  if (cluster.empty()) return trireme::bench::cannot_run("give the file that trireme bench hardware -o writes");
  try {
    return trireme::compare(cluster, steps, rounds);
  } catch (const trireme::Error& error) {
    std::cerr << error.block(false);
    return 1;
  }
}
