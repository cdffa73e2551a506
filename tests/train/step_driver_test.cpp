// Which driver takes the steps, and what it may be asked for.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/files.h"
#include "tests/train/support.h"
#include "trireme/observe/rank_log.h"
#include "trireme/train/run/run.h"

namespace trireme::train {
namespace {

using spec::Family;

spec::Recipe staged_steps(const std::string& schedule, std::optional<std::int64_t> drain_every = std::nullopt) {
  spec::Recipe recipe = small_recipe(Family::kGpt2, spec::Precision::kFp64);
  recipe.model.tied = false;
  recipe.model.num_layers = 4;
  recipe.batch.global_batch_tokens = 4 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.layout.pp = 2;
  recipe.pipeline.schedule = schedule;
  recipe.pipeline.drain_every = drain_every;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  return recipe;
}

TEST(StepDriver, IsChosenByTheEngine) {
  const auto looks = [](const spec::Recipe& recipe, int ranks) {
    bool answer = false;
    with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      if (rank.rank() == 0) answer = trainer.driver().looks_before_update();
    });
    return answer;
  };
  EXPECT_TRUE(looks(small_recipe(Family::kGpt2), 1));
  EXPECT_TRUE(looks(small_recipe(Family::kGpt2), 2));
  EXPECT_TRUE(looks(staged_steps("1f1b"), 2));
  EXPECT_FALSE(looks(staged_steps("1f1b", 4), 2)) << "steps are validated after the fact";
  EXPECT_FALSE(looks(staged_steps("pipedream-2bw", 4), 2));
  with_trainers(small_recipe(Family::kGpt2), 1, [&](Trainer& trainer, comm::Rank&) {
    ASSERT_TRUE(trainer.run_ahead());
    EXPECT_TRUE(trainer.run_ahead()) << "it does already";
    EXPECT_FALSE(trainer.driver().looks_before_update());
  });
}

TEST(StepDriver, OfSeveralStepsTellsThemOneByOneAndRestsAfterTheLast) {
  with_trainers(staged_steps("pipedream-2bw", 3), 2, [&](Trainer& trainer, comm::Rank&) {
    for (std::int64_t step = 1; step <= 6; ++step) {
      EXPECT_EQ(trainer.step().position.step, step);
      EXPECT_EQ(trainer.position().step, step);
      EXPECT_EQ(trainer.at_rest(), step % 3 == 0);
      trainer.rest_soon();  // it is not in this driver's hands
    }
  });
}

/// Also of engines that compute several steps in one go, and of the one that is their reference.
TEST(StepDriver, ARehearsalChangesNothing) {
  const auto expect_same = [](const spec::Recipe& recipe, int ranks, MakeEngine& make, const char* what) {
    std::map<int, std::vector<double>> losses;
    std::mutex mutex;
    for (const int rehearsals : {0, 2}) {
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples, make);
        for (int i = 0; i < rehearsals; ++i) trainer.rehearse();
        for (int step = 0; step < 4; ++step) {
          const double loss = trainer.step().loss;
          const std::lock_guard lock(mutex);
          if (rank.rank() == 0) losses[rehearsals].push_back(loss);
        }
      });
    }
    EXPECT_EQ(losses[0], losses[2]) << what;
  };
  expect_same(small_recipe(Family::kGpt2), 2, make_engine, "data parallel");
  expect_same(staged_steps("1f1b"), 2, make_engine, "pipeline");
  expect_same(staged_steps("pipedream-2bw", 2), 2, make_engine, "asynchronous pipeline");
  spec::Recipe delayed = staged_steps("pipedream-2bw", 2);
  delayed.layout.dp = 1;
  expect_same(delayed, 1, make_delayed_engine, "delayed weights on one rank");
}

class RunMetrics : public OwnFolder {};

/// Every rank tells of every step, to its own file and to whoever traces the run.
TEST_F(RunMetrics, EveryRankTellsItsStepsByName) {
  struct Collecting final : EventSink {
    bool wants_spans() const noexcept override { return false; }
    void span(const Span&) noexcept override {}
    void metric(const Metric& metric) noexcept override {
      const std::lock_guard lock(mutex);
      values[{metric.rank, metric.step}][std::string(metric.name)] = metric.value;
    }
    std::mutex mutex;
    std::map<std::pair<int, std::int64_t>, std::map<std::string, double>> values;
  } sink;
  spec::Recipe recipe = small_recipe(Family::kGpt2);
  recipe.train.steps = 3;
  recipe.train.threads = 1;
  recipe.train.hash_every = recipe.checkpoint.every = 0;
  recipe.model.z_loss = 0.01;
  const RunRequest request{.recipe = recipe, .folder = folder_ / "run", .local_ranks = 2, .trace = &sink};
  comm::run_ranks(2, [&](comm::Rank& rank) { run(request, rank); });
  const auto ranks = observe::read_ranks(folder_ / "run");
  ASSERT_EQ(ranks.size(), 2U);
  for (const auto& [rank, steps] : ranks) {
    ASSERT_EQ(steps.size(), 3U);
    for (const observe::RankRecord& step : steps) {
      for (const char* name : {"step/seconds", "step/tokens_per_s", "step/compute_seconds", "memory/peak_bytes",
                               "memory/parameters_bytes", "memory/gradients_bytes", "comm/dp/all_reduce_bytes"}) {
        ASSERT_TRUE(step.metrics.contains(name)) << name;
        EXPECT_GT(step.metrics.at(name), 0) << name;
      }
      for (const char* name : {"step/data_seconds", "step/exposed_comm_seconds"}) {
        ASSERT_TRUE(step.metrics.contains(name)) << name;
        EXPECT_GE(step.metrics.at(name), 0) << name;
      }
      EXPECT_EQ(sink.values.at({rank, step.step}), step.metrics);
    }
    // Of two ranks each sends what all gradients are, in fp32, every step; sums of norms come on top.
    const double a_step =
        steps[2].metrics.at("comm/dp/all_reduce_bytes") - steps[1].metrics.at("comm/dp/all_reduce_bytes");
    EXPECT_GE(a_step, steps[2].metrics.at("memory/gradients_bytes"));
    EXPECT_LE(a_step, steps[2].metrics.at("memory/gradients_bytes") + 4096);
  }
}

}  // namespace
}  // namespace trireme::train
