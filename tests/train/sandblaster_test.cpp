// train.mode = "sandblaster": iterations of L-BFGS on parameter shards are those of one process, whoever computes which
// portion, and go on from a checkpoint with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/train/support.h"
#include "trireme/checkpoint/saver.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

spec::Recipe sandblaster_recipe(int ranks, std::int64_t steps) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2, spec::Precision::kFp64);
  recipe.batch.global_batch_tokens = 10 * 12;
  recipe.train.mode = spec::TrainMode::kSandblaster;
  recipe.train.micro_batch_size = 1;
  recipe.layout.dp = ranks;
  recipe.train.steps = steps;
  recipe.train.hash_every = recipe.checkpoint.every = 0;
  return recipe;
}

struct SandblasterCourse {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  std::vector<int> portions = std::vector<int>(8);  // by rank
};

/// `between`: after how many steps the state is saved and read again, by new trainers of `then` ranks; 0: never.
SandblasterCourse run_sandblaster_ranks(const spec::Recipe& recipe, int ranks, std::int64_t steps,
                                        const std::function<double(int rank)>& pause = nullptr,
                                        std::int64_t between = 0, int then = 0) {
  SandblasterCourse course;
  std::mutex mutex;
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("sandblaster-{}", ::getpid());
  fs::remove_all(folder);
  const auto run = [&](int count, std::int64_t from, std::int64_t until) {
    spec::Recipe here = recipe;
    here.layout.dp = count;
    with_trainers(here, count, [&](Trainer& trainer, comm::Rank& rank) {
      if (pause) {
        trainer.on_micro([&](std::int64_t, double) {
          std::this_thread::sleep_for(std::chrono::duration<double>(pause(rank.rank())));
          const std::lock_guard lock(mutex);
          ++course.portions[static_cast<std::size_t>(rank.rank())];
        });
      }
      if (from > 0) {
        checkpoint::load(formats::CheckpointFolder(folder / formats::checkpoint_name(from)), trainer.state());
        trainer.loaded();
      }
      while (trainer.position().step < until) {
        const StepReport report = trainer.step();
        if (rank.rank() == 0) course.losses.push_back(report.loss);
      }
      EXPECT_TRUE(trainer.at_rest());
      if (until < steps) {
        checkpoint::Saver saver(trainer.state(), rank.world(), {});
        saver.save({.folder = folder, .step = until});
      }
      if (rank.rank() != 0 || until < steps) return;
      for (const nn::Param& param : trainer.params()) course.weights.push_back(param.master.clone());
    });
  };
  if (between > 0) run(ranks, 0, between);
  run(then > 0 ? then : ranks, between, steps);
  fs::remove_all(folder);
  return course;
}

TEST(SandblasterRanks, EqualOneProcess) {
  for (const int ranks : {1, 2, 3}) {
    const VerifyResult result = verify_beside_one_rank(sandblaster_recipe(ranks, 6), ranks, 6);
    EXPECT_TRUE(result.equal) << ranks << " ranks: " << result.weights.name << " differs by "
                              << result.weights.relative;
    EXPECT_LE(result.weights.relative, 1e-12);
    ASSERT_EQ(result.steps.size(), 6u);
    for (std::size_t i = 1; i < 6; ++i) EXPECT_LT(result.steps[i].loss, result.steps[i - 1].loss);
  }
}

/// Portions are added in their order and dot products made in twice the precision: the number of ranks, shards and
/// slow machines changes no bit.
TEST(SandblasterRanks, WhoComputesWhatChangesNoBitAndASlowRankComputesLess) {
  const SandblasterCourse one = run_sandblaster_ranks(sandblaster_recipe(1, 5), 1, 5);
  const SandblasterCourse three =
      run_sandblaster_ranks(sandblaster_recipe(3, 5), 3, 5, [](int rank) { return rank == 1 ? 0.1 : 0.0; });
  EXPECT_EQ(one.losses, three.losses);
  for (std::size_t i = 0; i < one.weights.size(); ++i) EXPECT_TRUE(one.weights[i].equal(three.weights[i])) << i;
  EXPECT_LT(three.portions[1], three.portions[0]);
}

/// The vectors of L-BFGS are in the checkpoint, by shard; as many ranks or others go on from it.
TEST(SandblasterRanks, GoOnFromACheckpointWithTheSameBits) {
  spec::Recipe recipe = sandblaster_recipe(2, 6);
  recipe.checkpoint.every = 3;
  const SandblasterCourse whole = run_sandblaster_ranks(recipe, 2, 6);
  for (const int then : {2, 3, 1}) {
    const SandblasterCourse resumed = run_sandblaster_ranks(recipe, 2, 6, nullptr, 3, then);
    EXPECT_EQ(whole.losses, resumed.losses) << "then on " << then;
    for (std::size_t i = 0; i < whole.weights.size(); ++i) EXPECT_TRUE(whole.weights[i].equal(resumed.weights[i]));
  }
}

/// On one batch L-BFGS comes lower in as many steps than plain descent of the same recipe.
TEST(SandblasterRanks, LowersTheLossOfABatchInFp32Too) {
  spec::Recipe recipe = sandblaster_recipe(2, 15);
  recipe.precision.compute = spec::Precision::kFp32;
  const SandblasterCourse course = run_sandblaster_ranks(recipe, 2, 15);
  EXPECT_LT(course.losses.back(), 0.75 * course.losses.front());
}

TEST(SandblasterRanks, ARankThatFailsEndsTheOthers) {
  const auto begin = std::chrono::steady_clock::now();
  for (const int failing : {0, 1}) {
    try {
      with_trainers(sandblaster_recipe(2, 3), 2, [&](Trainer& trainer, comm::Rank& rank) {
        trainer.on_micro([&](std::int64_t, double) {
          if (rank.rank() == failing) throw IoError("the disk is gone");
        });
        trainer.step();
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::HasSubstr("the disk is gone"));
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
}

}  // namespace
}  // namespace trireme::train
