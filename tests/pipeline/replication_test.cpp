#include "trireme/pipeline/replication.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/base/random.h"

namespace trireme::pipeline {
namespace {

/// The best of all plans on m components of the last of `levels`, tried one by one: a first stage on some components,
/// each a pipeline of the level below, then the rest.
double best_by_trying(std::span<const EntryProfile> entries, std::span<const LinkLevel> levels, int components) {
  if (levels.empty()) {
    double seconds = 0;
    for (const EntryProfile& entry : entries) seconds += entry.seconds;
    return seconds;
  }
  if (entries.empty()) return components == 0 ? 0 : std::numeric_limits<double>::infinity();
  const auto below = levels.first(levels.size() - 1);
  const double bandwidth = levels.back().bytes_per_second;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t first = 1; first <= entries.size(); ++first) {
    double weights = 0;
    for (const EntryProfile& entry : entries.first(first)) weights += entry.weight_bytes;
    const double inside = best_by_trying(entries.first(first), below, below.empty() ? 1 : below.back().count);
    for (int here = 1; here <= components; ++here) {
      const bool ends = first == entries.size();
      const double link = ends ? 0 : 2 * entries[first - 1].activation_bytes / bandwidth;
      const double stage = std::max(inside, 2 * (here - 1) * weights / bandwidth) / here;
      best = std::min(best, std::max({stage, link, best_by_trying(entries.subspan(first), levels, components - here)}));
    }
  }
  return best;
}

std::vector<EntryProfile> drawn_entries(std::size_t count, std::uint64_t seed) {
  std::vector<double> draws(3 * count);
  Random(seed, "tests/replication").fill_uniform(0, draws);
  std::vector<EntryProfile> entries(count);
  for (std::size_t i = 0; i < count; ++i) entries[i] = {draws[3 * i], draws[3 * i + 1], 3 * draws[3 * i + 2]};
  return entries;
}

/// Every entry and every worker is there once.
void expect_whole(const ReplicationPlan& plan, std::size_t entries, int workers) {
  std::size_t at = 0;
  std::vector<int> used;
  for (const auto& [stretch, of_stage] : plan.stages) {
    EXPECT_EQ(stretch.begin, at);
    EXPECT_LT(stretch.begin, stretch.end);
    at = stretch.end;
    used.insert(used.end(), of_stage.begin(), of_stage.end());
  }
  EXPECT_EQ(at, entries);
  std::ranges::sort(used);
  std::vector<int> all(static_cast<std::size_t>(workers));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(used, all);
}

TEST(Replication, IsTheBestOfAllPlans) {
  for (std::size_t count = 1; count <= 7; ++count) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const std::vector<EntryProfile> entries = drawn_entries(count, seed);
      for (int workers = 1; workers <= 4; ++workers) {
        for (const double bandwidth : {0.5, 5.0, 50.0}) {
          const LinkLevel level{workers, bandwidth};
          const ReplicationPlan plan = plan_replication(entries, std::span(&level, 1));
          EXPECT_DOUBLE_EQ(plan.seconds, best_by_trying(entries, std::span(&level, 1), workers));
          expect_whole(plan, count, workers);
          // The plan is what its time says.
          double slowest = 0;
          for (const auto& [stretch, of_stage] : plan.stages) {
            if (stretch.begin > 0)
              slowest = std::max(slowest, 2 * entries[stretch.begin - 1].activation_bytes / bandwidth);
            double seconds = 0, weights = 0;
            for (std::size_t i = stretch.begin; i < stretch.end; ++i) {
              seconds += entries[i].seconds;
              weights += entries[i].weight_bytes;
            }
            slowest = std::max(slowest, stage_seconds(seconds, weights, static_cast<int>(of_stage.size()), bandwidth));
          }
          EXPECT_NEAR(slowest, plan.seconds, 1e-12);
        }
      }
    }
  }
}

TEST(Replication, IsTheBestOfAllPlansOverLevelsOfLinks) {
  int nested = 0;
  for (std::size_t count = 1; count <= 5; ++count) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const std::vector<EntryProfile> entries = drawn_entries(count, 100 + seed);
      for (const auto& levels : {std::vector<LinkLevel>{{2, 50}, {2, 2}},
                                 {{3, 20}, {2, 1}},
                                 {{2, 5}, {3, 5}},
                                 {{4, 100}, {3, 0.5}},
                                 {{2, 50}, {2, 5}, {2, 0.5}}}) {
        int workers = 1;
        for (const LinkLevel& level : levels) workers *= level.count;
        const ReplicationPlan plan = plan_replication(entries, levels);
        EXPECT_DOUBLE_EQ(plan.seconds, best_by_trying(entries, levels, levels.back().count));
        expect_whole(plan, count, workers);
        nested += plan.stages.size() > 1;
      }
    }
  }
  EXPECT_GT(nested, 20) << "or the plans above are all data parallelism";
}

/// Two servers of four GPUs: a slow network between them is crossed by activations once, not by weights.
TEST(Replication, PutsStagesIntoServersAndCopiesInside) {
  const std::vector<EntryProfile> entries{{10, 1, 40}, {10, 1, 40}, {10, 1, 40}, {10, 1, 40}};
  const ReplicationPlan plan = plan_replication(entries, std::vector<LinkLevel>{{4, 100}, {2, 1}});
  EXPECT_EQ(plan.stages, (std::vector<ReplicatedStage>{{{0, 2}, {0, 1, 2, 3}}, {{2, 4}, {4, 5, 6, 7}}}));
  // Light weights: the servers are copies of each other, and a micro stays within one of them.
  const std::vector<EntryProfile> split{{10, 1, 0.01}, {10, 1, 300}};
  const ReplicationPlan copies = plan_replication(split, std::vector<LinkLevel>{{2, 20}, {2, 100}});
  EXPECT_EQ(copies.stages, (std::vector<ReplicatedStage>{{{0, 1}, {0, 2}}, {{1, 2}, {1, 3}}}));
}

/// The paper's finding for VGG-16: convolutions compute much and weigh little, the dense layers the other way round.
TEST(Replication, CopiesWhatComputesMuchAndKeepsWhatWeighsMuchTogether) {
  const std::vector<EntryProfile> entries{{10, 8, 0.1}, {10, 4, 0.1}, {10, 2, 0.2}, {1, 0.5, 100}, {0.5, 0.1, 20}};
  const LinkLevel eight{8, 1.0}, four{4, 1.0};
  const ReplicationPlan plan = plan_replication(entries, std::span(&eight, 1));
  EXPECT_EQ(plan.stages, (std::vector<ReplicatedStage>{{{0, 3}, {0, 1, 2, 3, 4, 5, 6}}, {{3, 5}, {7}}}));
  // With light weights and heavy activations nothing beats data parallelism.
  const std::vector<EntryProfile> light{{10, 100, 0.1}, {10, 100, 0.1}};
  EXPECT_EQ(plan_replication(light, std::span(&four, 1)).stages,
            (std::vector<ReplicatedStage>{{{0, 2}, {0, 1, 2, 3}}}));
}

}  // namespace
}  // namespace trireme::pipeline
