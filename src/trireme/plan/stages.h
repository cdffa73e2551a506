// plan/stages.h -- the pipeline that a run would execute, and what each of its ranks holds, computes and saves.
//
//   const StagePlan plan = stage_plan(job, config);       // the schedule's table, and what its chunks are
//   stage_loads(plan)[0].saved_layers                     // layers' worth of activations, at most
//
// Everything is read off the schedule itself: chunks of both directions (Chimera, DualPipe), weight versions
// (PipeDream, 2BW), micro-batches in flight. What is priced is what runs.
// Depends on: job, schedule.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/job.h"
#include "trireme/schedule/schedule.h"
#include "trireme/spec/stage_split.h"

namespace trireme::plan {

/// Chunks of each rank: what is asked for, and at least what the schedule is made of.
int chunks_per_rank(const ParallelConfig& config);
/// Whether weights are updated while micro-batches are in flight: time is then counted in the steady state.
bool is_asynchronous(const ParallelConfig& config);
/// Why the schedule cannot have the configuration's shape; empty: it can.
std::string schedule_problem(const Job& job, const ParallelConfig& config);

struct StagePlan {
  schedule::Schedule table;              ///< without transfers; of a single rank where there is no pipeline
  std::vector<spec::ChunkShare> chunks;  ///< what each chunk holds
};
/// The table alone, of so many steps; `micros` of each.
schedule::Schedule stage_table(const ParallelConfig& config, std::int64_t micros, int steps = 1);
StagePlan stage_plan(const Job& job, const ParallelConfig& config, std::int64_t micros, int steps = 1);
/// Of one step; of as many as fill the pipeline where it is never emptied.
StagePlan stage_plan(const Job& job, const ParallelConfig& config);
/// Steps after which a pipeline that is never emptied is in its steady state.
int steps_to_settle(const ParallelConfig& config, std::int64_t micros);

/// One rank of the pipeline.
struct StageLoad {
  int stage = 0;
  int layers = 0, embeddings = 0, heads = 0;  ///< held, the copies of a second direction among them
  /// Forward passes of a step: through layers, embedding, head; and through chunks, each with a message.
  double layer_passes = 0, embedding_passes = 0, head_passes = 0, chunk_passes = 0;
  double recompute_passes = 0;  ///< of them through layers, those that the schedule runs again (R)
  /// Micro-batches between forward and the end of backward at most, times the layers they have passed; of the embedding
  /// and of the head.
  double saved_layers = 0, saved_embeddings = 0, saved_heads = 0;
  /// Where the schedule runs chunks again (R): of micro-batches that wait for that, the inputs of chunks, while others'
  /// layers are saved.
  double saved_inputs = 0;
  /// Where the schedule runs chunks again, the most of one is not at the time of the most of another: what is saved at
  /// once, at each time at which no other saves more of everything.
  struct Saved {
    double layers = 0, embeddings = 0, heads = 0, inputs = 0;
    bool operator==(const Saved&) const = default;
  };
  std::vector<Saved> saved_at_once = {};
  double in_flight = 0;  ///< micro-batches, in shares of what the rank holds of one pass through the model
  /// Versions and predictions of weights beside the present ones, at most.
  double version_layers = 0, version_embeddings = 0, version_heads = 0;
  int steps_ahead = 0;  ///< by which forwards are ahead of updates, on any rank
};
std::vector<StageLoad> stage_loads(const schedule::Schedule& table, const std::vector<spec::ChunkShare>& chunks);
std::vector<StageLoad> stage_loads(const StagePlan& plan);
/// Of the pipeline that the run would execute; of virtual workers with splits of their own one after the other.
std::vector<StageLoad> stage_loads(const Job& job, const ParallelConfig& config);

}  // namespace trireme::plan
