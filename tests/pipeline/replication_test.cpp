#include "trireme/pipeline/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "trireme/base/random.h"

namespace trireme::pipeline {
namespace {

/// The best of all plans, tried one by one.
double best_by_trying(std::span<const EntryProfile> entries, int workers, double bandwidth) {
  if (entries.empty()) return workers == 0 ? 0 : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t first = 1; first <= entries.size(); ++first) {
    for (int here = 1; here <= workers; ++here) {
      const bool ends = first == entries.size();
      const double link = ends ? 0 : 2 * entries[first - 1].activation_bytes / bandwidth;
      const double rest = best_by_trying(entries.subspan(first), workers - here, bandwidth);
      best = std::min(best, std::max({stage_seconds(entries.first(first), here, bandwidth), link, rest}));
    }
  }
  return best;
}

TEST(Replication, IsTheBestOfAllPlans) {
  for (std::size_t count = 1; count <= 7; ++count) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      std::vector<double> draws(3 * count);
      Random(seed, "tests/replication").fill_uniform(0, draws);
      std::vector<EntryProfile> entries(count);
      for (std::size_t i = 0; i < count; ++i) {
        entries[i] = {draws[3 * i], draws[3 * i + 1], 3 * draws[3 * i + 2]};
      }
      for (int workers = 1; workers <= 4; ++workers) {
        for (const double bandwidth : {0.5, 5.0, 50.0}) {
          const ReplicationPlan plan = plan_replication(entries, workers, bandwidth);
          EXPECT_DOUBLE_EQ(plan.seconds, best_by_trying(entries, workers, bandwidth));
          // The plan is what its time says, and holds every entry and worker once.
          double slowest = 0;
          std::size_t at = 0;
          int used = 0;
          for (const auto& [stretch, data_parallel] : plan.stages) {
            EXPECT_EQ(stretch.begin, at);
            if (at > 0) slowest = std::max(slowest, 2 * entries[at - 1].activation_bytes / bandwidth);
            const auto held = std::span(entries).subspan(stretch.begin, stretch.end - stretch.begin);
            slowest = std::max(slowest, stage_seconds(held, data_parallel, bandwidth));
            at = stretch.end;
            used += data_parallel;
          }
          EXPECT_EQ(at, count);
          EXPECT_EQ(used, workers);
          EXPECT_DOUBLE_EQ(slowest, plan.seconds);
        }
      }
    }
  }
}

/// The paper's finding for VGG-16: convolutions compute much and weigh little, the dense layers the other way round.
TEST(Replication, CopiesWhatComputesMuchAndKeepsWhatWeighsMuchTogether) {
  const std::vector<EntryProfile> entries{{10, 8, 0.1}, {10, 4, 0.1}, {10, 2, 0.2}, {1, 0.5, 100}, {0.5, 0.1, 20}};
  const ReplicationPlan plan = plan_replication(entries, 8, 1.0);
  EXPECT_EQ(plan.stages, (std::vector<ReplicatedStage>{{{0, 3}, 7}, {{3, 5}, 1}}));
  // With light weights and heavy activations nothing beats data parallelism.
  const std::vector<EntryProfile> light{{10, 100, 0.1}, {10, 100, 0.1}};
  EXPECT_EQ(plan_replication(light, 4, 1.0).stages, (std::vector<ReplicatedStage>{{{0, 2}, 4}}));
}

}  // namespace
}  // namespace trireme::pipeline
