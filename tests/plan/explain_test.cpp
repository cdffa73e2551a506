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
  for (const DegreeChoice& decision : found.decisions) {
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
  for (const DegreeChoice& decision : found.decisions) {
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

/// Of operators but the head's, or of collectives.
template <typename Times, typename Value>
double sum_of(const Times& all, Value value) {
  double sum = 0;
  for (const auto& one : all) sum += one.name.starts_with("head") ? 0 : one.times * value(one);
  return sum;
}

TEST(Operators, AddUpToTheLayer) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const auto seconds = [](const auto& one) { return one.seconds; };
  for (const ParallelConfig& layout :
       {ParallelConfig{}, ParallelConfig{.layout = {.tp = 4, .sequence_parallel = true}},
        ParallelConfig{.layout = {.tp = 2, .cp = 8, .cp_kind = spec::ContextKind::kRing}},
        ParallelConfig{.layout = {.cp = 4, .cp_kind = spec::ContextKind::kUlysses}},
        ParallelConfig{.layout = {.cp = 16, .cp_kind = spec::ContextKind::kGather, .cp_ulysses = 2}}}) {
    const PassTimes layer = layer_times(hardware, llama8b(), layout);
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Parts& parts = pass == Pass::kForward ? layer.forward : layer.backward;
      const auto operators = layer_operators(hardware, llama8b(), layout, pass);
      EXPECT_NEAR(sum_of(operators, seconds), parts.total() - parts.communication, 1e-12) << to_text(layout);
      const auto collectives = layer_collectives(hardware, llama8b(), layout, pass);
      EXPECT_EQ(collectives.empty(), layout.layout.tp * layout.layout.cp == 1);
      EXPECT_NEAR(sum_of(collectives, [](const auto& one) { return one.exposed; }), parts.communication, 1e-12)
          << to_text(layout);
      for (const CollectiveTime& one : collectives) {
        EXPECT_LE(one.least, one.seconds) << one.name << ": faster than its links, " << to_text(layout);
        // Where latency is not most of it.
        if (one.bytes > 1e6) {
          EXPECT_GT(one.least, 0.2 * one.seconds) << one.name << ", " << to_text(layout);
        }
      }
    }
  }
}

TEST(Operators, HaveTheFlopsOfTheModel) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const ParallelConfig layout{.layout = {.tp = 4, .sequence_parallel = true}};
  const double counted = spec::count_flops(llama8b().shape, 4096).projections / llama8b().shape.num_layers / 4;
  for (const auto& [pass, times] : {std::pair{Pass::kForward, 1.0}, {Pass::kBackward, 2.0}}) {
    const double flops = sum_of(layer_operators(hardware, llama8b(), layout, pass), [](const OperatorTime& one) {
      return one.name == "attention" || one.name == "norms, activations, residuals" ? 0 : one.flops;
    });
    EXPECT_NEAR(flops, times * counted, 1e-9 * counted);
  }
}

/// Tensor parallelism sends two boundary tensors a pass, each once to every other rank and back: 2 (p-1)/p of it.
TEST(Operators, SendWhatTheFormulaSays) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const ParallelConfig layout{.layout = {.tp = 4}};
  const auto collectives = layer_collectives(hardware, llama8b(), layout, Pass::kForward);
  ASSERT_EQ(collectives.size(), 1U);
  const double tensor = 2.0 * 4096 * 4096;  // bf16, a micro-batch of one sequence
  EXPECT_DOUBLE_EQ(collectives[0].times, 2);
  EXPECT_DOUBLE_EQ(collectives[0].bytes, 2 * 3.0 / 4 * tensor);
  EXPECT_DOUBLE_EQ(collectives[0].least, collectives[0].bytes / hardware.link_bandwidth());
}

}  // namespace
}  // namespace trireme::plan
