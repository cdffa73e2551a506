// plan/step_time.h -- how long a step takes: layers, pipeline, replicas, optimizer.
//
// Every chunk of the schedule has the time of the layers it holds. Two ways to the pipeline's part: a closed form, for
// searches, and the replay of the very schedule that would run, for what a search ends with. They agree exactly where
// stages are equal and messages are free (tests/plan). No rank can compute for longer than the pipeline takes: a
// negative bubble is an internal error.
// Depends on: job, layer_time, stages, cost, schedule.
#pragma once

#include <vector>

#include "trireme/cost/hardware.h"
#include "trireme/plan/job.h"
#include "trireme/plan/layer_time.h"
#include "trireme/plan/schedule_cache.h"
#include "trireme/plan/stages.h"
#include "trireme/schedule/times.h"

namespace trireme::plan {

/// Seconds of a step, on the rank that all others wait for. The parts add up to the total.
struct StepTime {
  Parts work;            ///< of all micro-batches on the slowest stage, recomputation included
  double recompute = 0;  ///< of that, what is done twice
  double pipeline = 0;   ///< sends and receives between stages that nothing hides
  double bubble = 0;     ///< waiting for other stages
  double replicas = 0;   ///< reductions and gathers over dp that nothing hides
  double offload = 0;    ///< to and from the host, what nothing hides
  double optimizer = 0;
  bool replayed = false;
  double total() const { return work.total() + pipeline + bubble + replicas + offload + optimizer; }
};

/// What one micro-batch takes in one chunk. A forward sends its output on, a backward its input's gradient back.
struct ChunkTime {
  double forward = 0, backward = 0, backward_weight = 0;  ///< recomputation is part of backward
  double recompute = 0;                                   ///< where the schedule has it as a pass of its own
  double message = 0;                                     ///< that nothing hides, of each direction
  double dispatch = 0;  ///< of forward and of backward each: rows on their way to experts and back
  double experts = 0;   ///< share of the experts in what is computed
  int mixtures = 0;     ///< that send rows

  double total() const { return forward + backward + recompute + 2 * message; }
  /// Seconds of a pass; of a pair, the time of the other half is the other chunk's.
  schedule::Times passes() const {
    return {.forward = forward + message,
            .backward_input = backward - backward_weight + message,
            .backward_weight = backward_weight,
            .recompute = recompute,
            .exchange = mixtures > 0 ? dispatch / (2 * mixtures) : 0,
            .experts = experts,
            .mixtures = mixtures};
  }
};

/// Layer, embedding and head, from which every chunk follows.
struct LayerPasses {
  PassTimes layer, embedding, head;
  double message = 0;              ///< between stages, exposed
  double hidden_message = 0;       ///< what runs beside computing
  bool recomputes_stages = false;  ///< in passes of their own
  double mixed = 0;                ///< share of the layers that have experts
  ChunkTime of(const spec::ChunkShare& share) const;
};
LayerPasses layer_passes(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config);

/// By chunk of the schedule.
std::vector<ChunkTime> chunk_times(const LayerPasses& passes, const std::vector<spec::ChunkShare>& chunks);
/// Of one micro of its table, which may be a part of a micro-batch.
std::vector<schedule::Times> pass_times(const LayerPasses& passes, const schedule::Schedule& table,
                                        const std::vector<spec::ChunkShare>& chunks);

/// Seconds that a rank computes in a step, with the exposed messages of its passes.
double busy_seconds(const LayerPasses& passes, const StageLoad& load);

/// From the start of the first micro-batch to the end of the last, by a closed form; `loads` are of one step.
double pipeline_closed_form(const ParallelConfig& config, std::int64_t micros, const LayerPasses& passes,
                            const std::vector<StageLoad>& loads, ScheduleCache& schedules);
/// The same by replaying the schedule. Of one that is never emptied, the time between two steps.
double pipeline_replayed(const Job& job, const ParallelConfig& config, const LayerPasses& passes,
                         ScheduleCache& schedules);

enum class Pipeline : std::uint8_t { kClosedForm, kReplay };
StepTime estimate_step(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline,
                       ScheduleCache& schedules);
StepTime estimate_step(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline);

/// A step's computing, which ZeRO and offload do not change; a search finishes it for each of them.
struct Computing {
  StepTime time = {};             ///< work, messages, bubble
  double pipeline = 0;            ///< their sum
  double backward = 0;            ///< of one micro-batch on the slowest stage
  double dense = 0, experts = 0;  ///< weights of a rank in the fullest stage
  int directions = 1;             ///< copies of each weight within a pipeline
};
Computing computing_of(const Job& job, const ParallelConfig& config, const LayerPasses& passes,
                       const std::vector<StageLoad>& loads, const WeightCounts& weights, double pipeline);
/// With replicas, host and optimizer.
StepTime finish_step(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                     const Computing& computing);

}  // namespace trireme::plan
