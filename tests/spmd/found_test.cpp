// What searches find for the published models runs: on four ranks, at small sizes, three plans of each model that are
// more than data parallelism, equal to the whole graph under autograd.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "outcome.h"
#include "staged_outcome.h"
#include "tests/plan/graph/p100_nodes.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/search/search.h"

namespace trireme::spmd {
namespace {

using ::testing::IsEmpty;

struct Wanted {
  const char* name;
  pg::Index batch;         // fewer samples than devices: images, heads and channels are split
  bool has_halos = false;  // of one of the plans at least
};

class FoundPlans : public ::testing::TestWithParam<Wanted> {};

TEST_P(FoundPlans, ThreeThatAreMoreThanDataParallelismEqualTheWholeGraph) {
  const auto& [name, batch, has_halos] = GetParam();
  const pg::Pricing pricing(pg::p100_nodes(), pg::factored_mesh(4));
  const pg::Graph published = pg::with_backward(pg::build_model(name, batch));
  const pg::Graph small = pg::with_dtype(pg::small_model(name, batch), pg::DType::kFp64);
  const pg::Graph both = with_backward(small);
  const Values start = start_values(both, 1), forward_start = start_values(small, 1);
  std::set<std::string> ran;
  bool any_halo = false;
  for (const char* method : {"optcnn", "tofu", "flexflow", "rannc", "galvatron", "alpa", "torchgpipe"}) {
    if (ran.size() == 3) break;
    const pg::Found found = *pg::search(method, published, pricing, {.memory_bytes = 16e9});
    if (found.plan) {
      const pg::StagedPlan plan = transferred(pg::without_backward(published), *found.plan, small);
      ASSERT_EQ(plan.ranks(), 4) << method;
      if (plan.stages.size() == 1 && plan.stages[0].strategy == pg::data_parallel(both, plan.stages[0].strategy.mesh))
        continue;
      if (!ran.insert(to_text(small, plan)).second) continue;
      const Reference reference = run_micro_reference(small, forward_start, 5, 0, plan.micros);
      const StagedOutcome outcome = run_staged_once(small, plan, forward_start, reference);
      EXPECT_NEAR(outcome.loss, reference.loss, 1e-9) << method;
      EXPECT_LT(outcome.worst, 1e-9) << method << ": " << outcome.parameter;
      EXPECT_GT(outcome.compared, 3U) << method;
      EXPECT_THAT(outcome.deviations, IsEmpty()) << method;
      continue;
    }
    const pg::Strategy strategy = transferred(published, found.strategy, small);
    if (strategy == pg::data_parallel(both, strategy.mesh) || !ran.insert(to_text(small, strategy)).second) continue;
    const Outcome outcome = run_once(both, strategy, start, run_reference(both, start, 5, 0));
    EXPECT_NEAR(outcome.loss, outcome.expected, 1e-9) << method;
    EXPECT_LT(outcome.worst, 1e-9) << method << ": " << outcome.parameter;
    EXPECT_GT(outcome.compared, 3U) << method;
    EXPECT_THAT(outcome.deviations, IsEmpty()) << method;
    any_halo = any_halo || outcome.has_halo;
  }
  EXPECT_EQ(ran.size(), 3U) << "searches found no three different plans";
  EXPECT_TRUE(any_halo || !has_halos);
}

INSTANTIATE_TEST_SUITE_P(OfPublishedModels, FoundPlans,
                         ::testing::Values(Wanted{"alexnet", 2}, Wanted{"vgg16", 2, true}, Wanted{"resnet50", 2, true},
                                           Wanted{"inception-v3", 2}, Wanted{"lstm", 4}, Wanted{"gpt", 2}),
                         [](const auto& of) {
                           std::string text = of.param.name;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace trireme::spmd
