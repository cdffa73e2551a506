#include "trireme/plan/stages.h"

#include <gtest/gtest.h>

#include "trireme/plan/memory.h"
#include "trireme/plan/published.h"
#include "trireme/plan/search.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/memory.h"

namespace trireme::plan {
namespace {

Job layers(int count, std::int64_t batch) {
  Job job;
  job.shape = shape_of({.num_layers = count, .hidden_size = 512, .num_heads = 8, .vocab_size = 1000});
  job.batch = batch;
  return job;
}

ParallelConfig staged(std::string_view kind, int stages, int turns) {
  return {.layout = {.pp = stages}, .pipeline = {.schedule = std::string(kind), .virtual_stages = turns}};
}

TEST(StageLoads, HoldWhatTheSchedulesHold) {
  for (const schedule::Kind& kind : schedule::kinds()) {
    for (const int stages : {2, 4, 8}) {
      const ParallelConfig config = staged(kind.name, stages, kind.default_chunks);
      const Job job = layers(4 * stages * kind.default_chunks, kind.asynchronous ? 1 : 4 * stages);
      if (!schedule_problem(job, config).empty()) continue;
      const StagePlan plan = stage_plan(job, config);
      const std::vector<StageLoad> loads = stage_loads(plan);
      const std::vector<int> peaks = schedule::peak_in_flight(plan.table);
      const schedule::Report report = schedule::check(plan.table);
      const int each = plan.chunks.front().layers;
      double held = 0;
      for (std::size_t rank = 0; rank < loads.size(); ++rank) {
        EXPECT_EQ(loads[rank].saved_layers, each * peaks[rank]) << kind.name << " rank " << rank;
        const double copies = static_cast<double>(schedule::chunks_of(plan.table, static_cast<int>(rank)).size());
        EXPECT_EQ(loads[rank].layers + loads[rank].version_layers, each * report.peak_weights[rank])
            << kind.name << " rank " << rank;
        EXPECT_EQ(loads[rank].layers, each * copies);
        held += loads[rank].layers;
      }
      // Both directions of Chimera and DualPipe hold the whole model.
      EXPECT_EQ(held, job.shape.num_layers * static_cast<double>(plan.table.routes.size())) << kind.name;
    }
  }
}

/// Second copies and versions of weights are bytes: `check` showed the same for all kinds.
TEST(StageLoads, CopiesAndVersionsOfWeightsCount) {
  const auto weights = [](const char* kind, int turns, std::int64_t batch) {
    const std::vector<RankMemory> ranks = rank_memories(layers(16, batch), staged(kind, 4, turns));
    return ranks[0][MemoryUse::kWeights] + ranks[0][MemoryUse::kWeightVersions];
  };
  const double once = weights("1f1b", 1, 16);
  const WeightCounts count = count_weights(layers(16, 1));
  EXPECT_DOUBLE_EQ(once, 2 * (4 * count.layer + count.embedding));
  // Rank 0 has the first chunk of one direction and the last of the other.
  for (const char* kind : {"chimera", "dualpipe"})
    EXPECT_DOUBLE_EQ(weights(kind, 2, 16), 2 * (8 * count.layer + count.embedding + count.head)) << kind;
  // The table is tied: sums of its gradients wait for as many updates as forwards are ahead, one more is new.
  const double sum = 4.0 * 1000 * 512;
  EXPECT_DOUBLE_EQ(weights("pipedream", 1, 1), 4 * once + 4 * sum);       // a version for each micro-batch in flight
  EXPECT_DOUBLE_EQ(weights("pipedream-2bw", 1, 16), 2 * once + 2 * sum);  // double-buffered
  EXPECT_DOUBLE_EQ(weights("stale", 1, 1), once + 4 * sum);
}

TEST(StageLoads, OfACacheAreThoseOfWholeSchedules) {
  for (const char* kind : kSearchedSchedules) {
    const int turns = schedule::find_kind(kind).default_chunks;
    for (const int stages : {2, 4}) {
      for (const int micros : {stages, 2 * stages, 4 * stages, 10 * stages}) {
        for (const int count : {2 * stages * turns, 5 * stages * turns + 1}) {
          const Job job = layers(count, micros);
          const ParallelConfig config = staged(kind, stages, turns);
          if (!schedule_problem(job, config).empty()) continue;
          ScheduleCache schedules(job);
          const std::vector<StageLoad> whole = stage_loads(job, config), &cached = schedules.loads(config).all;
          for (std::size_t rank = 0; rank < whole.size(); ++rank) {
            EXPECT_EQ(cached[rank].saved_layers, whole[rank].saved_layers) << kind << " " << stages << " " << micros;
            EXPECT_EQ(cached[rank].saved_heads, whole[rank].saved_heads) << kind << " " << stages << " " << micros;
            EXPECT_DOUBLE_EQ(cached[rank].layer_passes, whole[rank].layer_passes);
            EXPECT_DOUBLE_EQ(cached[rank].head_passes, whole[rank].head_passes);
            EXPECT_DOUBLE_EQ(cached[rank].chunk_passes, whole[rank].chunk_passes);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::plan
