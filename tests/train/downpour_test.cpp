// Downpour SGD: one replica is serial SGD, several are what their journal says, in every order of messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/support.h"
#include "trireme/base/error.h"
#include "trireme/ps/consistency.h"
#include "trireme/train/servers/downpour.h"

namespace trireme::train {
namespace {

spec::Recipe downpour_recipe(spec::OptimizerKind kind, std::int64_t steps) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2, spec::Precision::kFp64);
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.optim = {.kind = kind, .learning_rate = 0.05};
  if (kind == spec::OptimizerKind::kSgd) recipe.optim.momentum = 0;
  recipe.train.steps = steps;
  return recipe;
}

TEST(Downpour, OneReplicaIsSerialTraining) {
  for (const auto kind : {spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad}) {
    const spec::Recipe recipe = downpour_recipe(kind, 4);
    const DownpourReport report = run_downpour(recipe, {.replicas = 1, .servers = 2, .copies = 2, .seed = 1});
    ASSERT_EQ(report.points.size(), 4u);
    EXPECT_EQ(report.staleness, 0);
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      for (const DownpourReport::Point& point : report.points) {
        const double loss = trainer.step().loss;
        EXPECT_NEAR(point.loss, loss, 1e-12 * loss);
      }
    });
  }
}

TEST(Downpour, ReplicasAreWhatTheirJournalSaysInEveryOrderOfMessages) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const auto kind = seed % 2 == 0 ? spec::OptimizerKind::kSgd : spec::OptimizerKind::kAdagrad;
    const DownpourOptions options{.replicas = 3,
                                  .servers = 2,
                                  .n_fetch = seed == 3 ? 2 : 1,
                                  .n_push = seed == 3 ? 3 : 1,
                                  .tau = seed - 1,
                                  .warm_start = seed == 2 ? 1 : 0,
                                  .seed = seed,
                                  .verify = true};
    const DownpourReport report = run_downpour(downpour_recipe(kind, 3), options);
    ASSERT_TRUE(report.twin_difference.has_value());
    EXPECT_LT(*report.twin_difference, 1e-9) << "seed " << seed;
    EXPECT_LE(report.most_stale, options.tau);
    std::int64_t parts = 0;
    for (const std::int64_t each : report.parts_of) parts += each;
    EXPECT_EQ(parts, 9);
    if (seed == 2) {
      EXPECT_GE(report.parts_of[0], 3);
    }
  }
}

TEST(Downpour, OnRealThreadsToo) {
  const DownpourReport report = run_downpour(downpour_recipe(spec::OptimizerKind::kAdagrad, 6),
                                             {.replicas = 2, .servers = 2, .tau = ps::kEventual, .verify = true});
  EXPECT_LT(report.twin_difference.value(), 1e-9);
}

TEST(Downpour, RefusesWhatServersCannotDo) {
  spec::Recipe recipe = downpour_recipe(spec::OptimizerKind::kAdamw, 2);
  EXPECT_THROW(check_downpour(recipe, {}), ConfigError);
  recipe.optim.kind = spec::OptimizerKind::kAdagrad;
  EXPECT_NO_THROW(check_downpour(recipe, {}));
  EXPECT_THROW(check_downpour(recipe, {.servers = 1, .copies = 2}), ConfigError);
  EXPECT_THROW(check_downpour(recipe, {.synchronous = true, .verify = true}), ConfigError);
}

}  // namespace
}  // namespace trireme::train
