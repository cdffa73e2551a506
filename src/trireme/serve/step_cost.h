// serve/step_cost.h -- the time of an inference step from its plan, and of a whole load from its requests.
//
//   const StepCost cost = measure_step_cost(model, options);         // engine_cost.h, or points from anywhere
//   const Simulation load = simulate(scheduler_options, requests, cost);
//   load.requests[3].first_token - requests[3].arrives                // predicted time to the first token
//
// A step reads the weights once and computes rows: its time is a curve over the number of rows, flat while reading
// weights is the work and then linear, with another curve for the head's rows, and so much for each key that a query
// sees. The curves are points measured at a few sizes with straight lines between them. simulate() hands the very plans
// of Scheduler to it, in time of its own: what is predicted is what would run.
// Depends on: base, scheduler.h. No tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/serve/scheduler.h"

namespace trireme::serve {

struct StepCost {
  struct Point {
    std::int64_t rows = 1;
    double seconds = 0;
  };
  /// By rising numbers of rows, without keys of earlier steps. The first of each is one row.
  std::vector<Point> prefill;   ///< rows of one sequence, of which the last has logits
  std::vector<Point> decode;    ///< rows of as many sequences, all with logits
  double seconds_per_pair = 0;  ///< of a query and a key that it sees

  /// Of a plan with sequences in it. An InternalError without points.
  double seconds(const StepPlan& plan) const;
};

/// Keys that the queries of a sequence see, all of them, itself included.
double pairs_of(const PlannedSequence& planned);

struct SimulatedRequest {
  double arrives = 0;  ///< seconds; requests come in this order
  SequenceRequest request;
};
struct Simulation {
  struct Times {
    double first_token = 0, end = 0;  ///< seconds since the beginning
  };
  std::vector<Times> requests;  ///< in the order they were given
  double seconds = 0;           ///< until the last has ended
  double busy = 0;              ///< of these, in steps
  std::int64_t steps = 0;
};
/// Every request generates all of its tokens. A ConfigError for one that can never be served.
Simulation simulate(const SchedulerOptions& options, std::span<const SimulatedRequest> requests, const StepCost& cost);

}  // namespace trireme::serve
