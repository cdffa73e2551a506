#include "trireme/plan/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/published.h"

namespace trireme::plan {
namespace {

Job llama8b() {
  Job job;
  job.shape = spec::family_shape(spec::Family::kLlama);
  job.seq_len = 4096;
  job.batch = 64;
  return job;
}

TEST(Explain, GivesForEveryValueTheBestThatASearchWouldFind) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const SearchResult found = search(hardware, llama8b(), 16, {.top = 1, .replay = false, .decisions = true});
  ASSERT_FALSE(found.best.empty());
  for (const Decision& decision : found.decisions) {
    if (decision.name != "tp") continue;
    for (const Alternative& one : decision.alternatives) {
      const SearchResult given =
          search(hardware, llama8b(), 16, {.given = {.tp = std::stoi(one.value)}, .top = 1, .replay = false});
      EXPECT_EQ(one.layouts, given.tried);
      ASSERT_EQ(one.fits, !given.best.empty());
      EXPECT_DOUBLE_EQ(one.best.step_seconds(), given.best.front().step_seconds());
    }
  }
}

/// One configuration, one time, wherever it is told of; and no alternative is faster than the best.
TEST(Explain, AgreesWithTheTableOfTheBest) {
  const SearchResult found = search(cost::load_hardware("dgx-h100"), llama8b(), 16, {.top = 5, .decisions = true});
  const Estimate& best = found.best.front();
  EXPECT_TRUE(best.config.layout.pp == 1 || best.time.replayed);
  EXPECT_EQ(found.pareto.front().config, best.config);
  EXPECT_EQ(found.pareto.front().step_seconds(), best.step_seconds());
  const auto told = [&](const Estimate& one) {
    for (const auto* list : {&found.best, &found.pareto}) {
      for (const Estimate& other : *list) {
        if (other.config == one.config) {
          EXPECT_EQ(other.step_seconds(), one.step_seconds()) << to_text(one.config);
        }
      }
    }
  };
  for (const Estimate& one : found.pareto) told(one);
  for (const Decision& decision : found.decisions) {
    for (const Alternative& one : decision.alternatives) {
      if (!one.fits) continue;
      told(one.best);
      EXPECT_GE(one.best.step_seconds(), best.step_seconds()) << decision.name << " " << one.value;
    }
  }
}

TEST(Explain, NamesWhatIsLackingWhereNothingFits) {
  Job job = llama8b();
  cost::Hardware hardware = cost::load_hardware("dgx-h100");
  hardware.device.memory_gib = 2;
  const SearchResult found = search(hardware, job, 1, {.decisions = true});
  EXPECT_TRUE(found.best.empty());
  EXPECT_EQ(found.fitting, 0);
  EXPECT_THAT(why_not(found.decisions.front().alternatives.front().best.memory), testing::HasSubstr("GiB of 2.0"));
}

TEST(Operators, AddUpToTheLayersForward) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const ParallelConfig layout{.layout = {.tp = 4, .sequence_parallel = true}};
  double seconds = 0, flops = 0;
  for (const OperatorTime& one : forward_operators(hardware, llama8b(), layout)) {
    if (one.name == "head") continue;
    seconds += one.times * one.seconds;
    if (one.name != "attention" && one.name != "norms, activations, residuals") flops += one.times * one.flops;
  }
  const PassTimes layer = layer_times(hardware, llama8b(), layout);
  EXPECT_NEAR(seconds, layer.forward.total() - layer.forward.communication, 1e-12);
  const double counted = spec::count_flops(llama8b().shape, 4096).projections / llama8b().shape.num_layers / 4;
  EXPECT_NEAR(flops, counted, 1e-9 * counted);
}

}  // namespace
}  // namespace trireme::plan
