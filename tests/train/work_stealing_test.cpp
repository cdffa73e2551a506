// Work stealing: ranks take each other's micro-batches, the gradient stays, and a slow rank costs little.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "tests/train/support.h"
#include "trireme/train/engine/work_stealing.h"

namespace trireme::train {
namespace {

spec::Recipe stealing_recipe(int ranks, std::int64_t micros, bool stealing) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2, spec::Precision::kFp64);
  recipe.layout.dp = ranks;
  recipe.batch.global_batch_tokens = ranks * micros * recipe.data.seq_len;
  recipe.train.micro_batch_size = 1;
  recipe.train.work_stealing = stealing;
  recipe.optim.kind = spec::OptimizerKind::kSgd;
  return recipe;
}

struct Steps {
  std::vector<double> losses, norms, noise;
  std::vector<at::Tensor> weights;
  std::vector<std::int64_t> stolen;  // by rank
  double seconds = 0;                // of the fastest step but the first
};

/// `pause(rank)`: how long each micro-batch of a rank takes; computing is nothing beside it.
Steps run_steps(const spec::Recipe& recipe, int steps, const std::function<double(int rank)>& pause) {
  Steps all;
  const int ranks = static_cast<int>(*recipe.layout.dp * recipe.layout.ranks_per_copy());
  all.stolen.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    const auto sleep = [&](double micros) {
      std::this_thread::sleep_for(std::chrono::duration<double>(micros * pause(rank.rank())));
    };
    trainer.on_micro([=](std::int64_t, double) { sleep(1); });
    // Without stealing a rank has its share at once.
    const double share =
        static_cast<double>(recipe.batch.global_batch_tokens / recipe.data.seq_len) / *recipe.layout.dp;
    if (!recipe.train.work_stealing) trainer.on_gradients([=](nn::Params&) { sleep(share); });
    double fastest = 1e9;
    std::int64_t stolen = 0;
    std::vector<StepReport> reports;
    for (int step = 0; step < steps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      reports.push_back(trainer.step());
      stolen += reports.back().stolen;
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (step > 0) fastest = std::min(fastest, seconds);
    }
    nn::Params& params = trainer.params();  // on all ranks together: weights may be on their way
    const std::lock_guard lock(mutex);
    all.stolen[static_cast<std::size_t>(rank.rank())] = stolen;
    if (rank.rank() != 0) return;
    for (const StepReport& report : reports) {
      all.losses.push_back(report.loss);
      all.norms.push_back(report.gradient_norm);
      all.noise.push_back(report.noise_scale.value_or(0));
    }
    for (const nn::Param& param : params) all.weights.push_back(param.master.clone());
    all.seconds = fastest;
  });
  return all;
}

TEST(WorkStealing, TheGradientIsTheOneWithoutIt) {
  for (const int zero : {0, 1}) {
    spec::Recipe plain = stealing_recipe(3, 5, false), stealing = stealing_recipe(3, 5, true);
    plain.layout.zero = stealing.layout.zero = zero;
    if (zero == 1) plain.layout.zero = 0;  // whole weights to compare with
    const auto slow_last = [](int rank) { return rank == 2 ? 0.004 : 0.0005; };
    const Steps expected = run_steps(plain, 4, [](int) { return 0.0; });
    const Steps found = run_steps(stealing, 4, slow_last);
    EXPECT_GT(found.stolen[0] + found.stolen[1], 0);
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-9 * expected.losses[i]);
      EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-9 * expected.norms[i]);
    }
    if (zero == 1) continue;
    for (std::size_t i = 0; i < expected.weights.size(); ++i) {
      const double scale = expected.weights[i].abs().max().item<double>();
      EXPECT_LE(found.weights[i].sub(expected.weights[i]).abs().max().item<double>(), 1e-9 * scale);
    }
  }
}

/// Ranks with parts of the same rows take the same micro-batches: tensor parallelism, and both kinds of context
/// parallelism.
TEST(WorkStealing, RanksThatShareRowsStealTogether) {
  for (const auto& [tp, cp, ulysses] : {std::tuple{2, 1, 1}, {1, 2, 1}, {1, 2, 2}, {2, 2, 1}}) {
    spec::Recipe plain = stealing_recipe(2, 4, false), stealing = stealing_recipe(2, 4, true);
    stealing.layout.tp = tp;
    stealing.layout.cp = cp;
    stealing.layout.cp_ulysses = ulysses;
    const Steps expected = run_steps(plain, 3, [](int) { return 0.0; });
    const int copy = tp * cp;
    const Steps found = run_steps(stealing, 3, [&](int rank) { return rank >= copy ? 0.15 : 0.0; });
    for (int rank = 0; rank < copy; ++rank) {
      EXPECT_GT(found.stolen[static_cast<std::size_t>(rank)], 0);
      EXPECT_EQ(found.stolen[static_cast<std::size_t>(rank)], found.stolen[0]) << "all of a copy, or none";
    }
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-9 * expected.losses[i]) << "tp " << tp << ", cp " << cp;
      EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-9 * expected.norms[i]);
    }
  }
}

/// It is measured on each rank's first micro-batch, which nobody takes from it.
TEST(WorkStealing, TheNoiseScaleIsTheOneWithoutIt) {
  spec::Recipe plain = stealing_recipe(3, 4, false), stealing = stealing_recipe(3, 4, true);
  plain.train.noise_scale = stealing.train.noise_scale = true;
  const Steps expected = run_steps(plain, 4, [](int) { return 0.0; });
  const Steps found = run_steps(stealing, 4, [](int rank) { return rank == 2 ? 0.02 : 0.0; });
  EXPECT_GT(found.stolen[0] + found.stolen[1], 0);
  ASSERT_EQ(found.noise.size(), expected.noise.size());
  ASSERT_GT(expected.noise.back(), 0);
  for (std::size_t i = 0; i < expected.noise.size(); ++i)
    EXPECT_NEAR(found.noise[i], expected.noise[i], 1e-6 * expected.noise[i]) << "step " << i;
}

/// Time is slept, not computed, so that a busy machine changes little.
TEST(WorkStealing, ARankTwiceAsSlowCostsAtMostFifteenPercent) {
  constexpr int kRanks = 8;
  constexpr std::int64_t kMicros = 24;
  constexpr double kPause = 0.02;
  const auto slow = [](int rank) { return rank == 3 ? 2 * kPause : kPause; };
  const auto even = [](int) { return kPause; };
  const double balanced = run_steps(stealing_recipe(kRanks, kMicros, true), 4, even).seconds;
  const Steps helped = run_steps(stealing_recipe(kRanks, kMicros, true), 4, slow);
  const double alone = run_steps(stealing_recipe(kRanks, kMicros, false), 4, slow).seconds;
  fmt::print("balanced {:.3f} s, one rank twice as slow {:.3f} s ({:.2f}x), without help {:.3f} s ({:.2f}x)\n",
             balanced, helped.seconds, helped.seconds / balanced, alone, alone / balanced);
  EXPECT_LE(helped.seconds, 1.15 * balanced);
  EXPECT_GE(alone, 1.5 * balanced);
}

TEST(WorkStealing, TakesAsMuchAtOnceAsFlexRR) {
  EXPECT_EQ(stolen_at_once(400, /*first=*/true), 10);
  EXPECT_EQ(stolen_at_once(400, /*first=*/false), 20);
  EXPECT_EQ(stolen_at_once(1, /*first=*/true), 1);
}

/// A rank without rows of its own begins with others'.
TEST(WorkStealing, MoreRanksThanMicroBatches) {
  spec::Recipe recipe = stealing_recipe(3, 1, true), plain = stealing_recipe(3, 1, false);
  recipe.batch.global_batch_tokens = plain.batch.global_batch_tokens = 2 * recipe.data.seq_len;
  const Steps found = run_steps(recipe, 2, [](int) { return 0.0; });
  const Steps expected = run_steps(plain, 2, [](int) { return 0.0; });
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-9 * expected.losses[i]);
}

}  // namespace
}  // namespace trireme::train
