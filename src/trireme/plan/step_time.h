// plan/step_time.h -- how long a step takes: layers, pipeline, replicas, optimizer.
//
// Two ways to the pipeline's part: a closed form, for searches, and the replay of the very schedule that would run,
// for what a search ends with. They agree exactly where stages are equal and messages are free (tests/plan).
// Depends on: job, layer_time, cost, schedule.
#pragma once

#include "trireme/cost/hardware.h"
#include "trireme/plan/job.h"
#include "trireme/plan/layer_time.h"

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

/// What one micro-batch takes on one stage, over all its chunks.
struct StageTime {
  double forward = 0, backward = 0, backward_weight = 0;  ///< recomputation is part of backward
  double exposed = 0;                                     ///< of messages, for each micro-batch
  double total() const { return forward + backward + exposed; }
};

/// The stages of a layout.
std::vector<StageTime> stage_times(const cost::Hardware& hardware, const Job& job, const Layout& layout);

/// Of a message between stages, what runs beside computing.
double hidden_message_seconds(const cost::Hardware& hardware, const Job& job, const Layout& layout);

/// From the start of the first micro-batch to the end of the last.
double pipeline_closed_form(const Layout& layout, std::int64_t micros, const std::vector<StageTime>& stages);
/// The same by replaying the schedule; `link` is what a message takes beside computing.
double pipeline_replayed(const Layout& layout, std::int64_t micros, const std::vector<StageTime>& stages, double link);

enum class Pipeline : std::uint8_t { kClosedForm, kReplay };
StepTime estimate_step(const cost::Hardware& hardware, const Job& job, const Layout& layout, Pipeline pipeline);

}  // namespace trireme::plan
