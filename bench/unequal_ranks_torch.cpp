// bench/unequal_ranks_torch.cpp -- time to a loss on two fast and two slow ranks: synchronous data parallelism, HetSeq
// (a share of the batch for each rank), FlexRR (work stealing) and Downpour SGD.
//
//   build/release/bench/unequal_ranks_torch [--slow 3] [--loss 1.5] [--row-ms 3]
//
// Each mode trains the same small language model with Adagrad at the best of several learning rates, by when the mean
// loss of ten steps is below the wanted one. Ranks are threads; a row takes a rank the given time, slept, beside which
// computing is little: what is measured is who waits for whom. The peer is synchronous training without balancing.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include "bench/arguments.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4, kRows = 32;

struct Options {
  double slow = 3, loss = 1.5, row_ms = 3;
  int steps = 250;
};

spec::Recipe base_recipe(const Options& options, double rate) {
  spec::Recipe recipe;
  recipe.run.seed = 1;
  recipe.model.family = spec::Family::kLlama;
  recipe.model.vocab_size = recipe.model.max_seq_len = 16;
  recipe.model.hidden_size = 16;
  recipe.model.num_layers = 1;
  recipe.model.num_heads = recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = 8;
  recipe.model.ffn_size = 32;
  recipe.data.seq_len = 16;
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.data.synthetic.vocab_size = 16;
  recipe.batch.global_batch_tokens = kRows * recipe.data.seq_len;
  recipe.optim.kind = spec::OptimizerKind::kAdagrad;
  recipe.optim.learning_rate = rate;
  recipe.optim.grad_clip_norm = recipe.optim.weight_decay = 0;
  recipe.layout.dp = kRanks;
  recipe.train.micro_batch_size = 1;
  recipe.train.steps = options.steps;
  recipe.train.hash_every = recipe.checkpoint.every = 0;
  return recipe;
}

struct Outcome {
  std::optional<double> seconds;  // to the loss
  double step_ms = 0, staleness = 0, rate = 0;
};

Outcome train_mode(const spec::Recipe& recipe, const Options& options) {
  Outcome outcome{.rate = recipe.optim.learning_rate};
  const bool by_micro = recipe.train.work_stealing || recipe.train.mode == spec::TrainMode::kDownpour;
  comm::run_ranks(kRanks, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    const double row_s = options.row_ms / 1e3 * (rank.rank() < 2 ? 1 : options.slow);
    const auto sleep = [&](double rows) { std::this_thread::sleep_for(std::chrono::duration<double>(rows * row_s)); };
    const bool downpour = recipe.train.mode == spec::TrainMode::kDownpour;
    if (by_micro) trainer.on_micro([&](std::int64_t, double) { sleep(downpour ? kRows / kRanks : 1); });
    trainer.on_gradients([&](nn::Params&) {
      if (by_micro) return;
      const auto plan = train::plan_step(recipe, trainer.position(), trainer.engine().share());
      sleep(static_cast<double>(plan.microbatches.size()));
    });
    std::vector<double> losses;
    double seconds = 0, stale = 0;
    while (trainer.position().step < options.steps) {
      const auto begin = Clock::now();
      const train::StepReport report = trainer.step();
      seconds += report.seconds.value_or(std::chrono::duration<double>(Clock::now() - begin).count());
      stale += report.staleness.value_or(0);
      losses.push_back(report.loss);
      const std::size_t window = std::min<std::size_t>(losses.size(), 10);
      double mean = 0;
      for (std::size_t i = losses.size() - window; i < losses.size(); ++i)
        mean += losses[i] / static_cast<double>(window);
      if (rank.rank() == 0 && window == 10 && mean < options.loss && !outcome.seconds) outcome.seconds = seconds;
    }
    if (rank.rank() != 0) return;
    outcome.step_ms = 1e3 * seconds / options.steps;
    outcome.staleness = stale / options.steps;
  });
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::Arguments arguments("time to a loss on two fast and two slow ranks");
  arguments.add_option("--slow", options.slow, "how many times as long two of the ranks take");
  arguments.add_option("--loss", options.loss, "to reach");
  arguments.add_option("--row-ms", options.row_ms, "of a row on a fast rank");
  arguments.add_option("--steps", options.steps, "at most");
  if (const auto code = arguments.parse(argc, argv)) return *code;
  const auto best = [&](const std::function<void(spec::Recipe&)>& choose) {
    Outcome lowest;
    for (const double rate : {0.05, 0.1, 0.2}) {
      spec::Recipe recipe = base_recipe(options, rate);
      choose(recipe);
      const Outcome outcome = train_mode(recipe, options);
      if (!lowest.seconds || (outcome.seconds && *outcome.seconds < *lowest.seconds)) lowest = outcome;
    }
    return lowest;
  };
  std::optional<double> peer;
  const auto print = [&](const char* name, const Outcome& outcome) {
    if (!peer) peer = outcome.seconds;
    fmt::print("{:<34} step {:6.1f} ms   to loss {}: {}   {}   staleness {:.1f}   rate {}\n", name, outcome.step_ms,
               options.loss, outcome.seconds ? fmt::format("{:6.2f} s", *outcome.seconds) : "never",
               outcome.seconds && peer ? fmt::format("{:.2f}x", *peer / *outcome.seconds) : "-", outcome.staleness,
               outcome.rate);
  };
  print("synchronous, equal shares", best([](spec::Recipe&) {}));
  print("HetSeq: shares by speed", best([&](spec::Recipe& recipe) {
          recipe.layout.dp_batch_weights = {options.slow, options.slow, 1, 1};
        }));
  print("FlexRR: work stealing", best([](spec::Recipe& recipe) { recipe.train.work_stealing = true; }));
  print("Downpour SGD", best([](spec::Recipe& recipe) {
          recipe.train.mode = spec::TrainMode::kDownpour;
          recipe.downpour.tau = 1;  // a push hides behind the next part
        }));
  return 0;
}
