// plan/traffic.h -- what a step of a layout sends and keeps, by the papers' formulas: to be read beside what is
// measured.
//
// Every line says what it counts, in which group and under which condition. Wire bytes are what one rank sends to
// others: (p - 1)/p of the tensor for a gather, a reduce-scatter or an all-to-all, twice that for a sum.
// Depends on: job, activations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/job.h"

namespace trireme::plan {

/// How often something runs in a step, in micro-batches. `again`: the forward of a stage, for its backward.
struct PassCount {
  double forward = 0, again = 0, backward = 0;

  PassCount& operator+=(const PassCount& other) {
    forward += other.forward;
    again += other.again;
    backward += other.backward;
    return *this;
  }
  friend PassCount operator*(const PassCount& count, double times) {
    return {count.forward * times, count.again * times, count.backward * times};
  }
  friend PassCount operator+(PassCount a, const PassCount& b) { return a += b; }
};

/// One rank's part of a step.
struct TrafficTask {
  Job job;
  ParallelConfig config;  ///< dp given; micro_batch_size as in the rank's first micro-batch
  std::int64_t micros = 0;
  std::int64_t layers = 0;             ///< on this rank
  bool embedding = true, head = true;  ///< on this rank
  PassCount layer_passes;              ///< of all of them, added up
  PassCount embedding_passes, head_passes;
  std::int64_t parameters = 0;  ///< this rank's, in whole buckets
  std::int64_t fetched = 0;     ///< ZeRO 3: of weights, as often as a unit fetches them
  std::int64_t predicted = 0;   ///< ZeRO 1 and 2: of weights, as often as a schedule predicts them
  // Bytes of this rank's gradients, in whole buckets, each in its own type:
  double gradient_bytes = 0;           ///< as they are kept
  double reduced_bytes = 0;            ///< on their way to be summed
  double scattered_bytes = 0;          ///< ZeRO 2 and 3: likewise, as often as they are complete
  std::int64_t asked = 0;              ///< find_unused: parameters of which ranks tell each other who used them
  std::int64_t copied_keys = 0;        ///< heads of keys that tp / kv_heads ranks hold, where that is less than tp
  std::int64_t copied_over_tp = 0;     ///< of which parts are computed by several tp ranks, after ZeRO's cut
  std::int64_t pipeline_messages = 0;  ///< micro-batches that the schedule has this rank send
  std::int64_t pipeline_receives = 0;  ///< likewise, receive
};

struct TrafficLine {
  std::string group;  ///< "tp", "cp", "data", "pp"
  std::string what;   ///< "4 all-reduces a layer"
  double wire_bytes = 0;
};
/// Empty lines for models with an encoder beside a decoder: the papers count one stack.
std::vector<TrafficLine> traffic_of(const TrafficTask& task);

/// Bytes that one micro-batch's forward pass leaves on the rank for its backward (activations.h).
double saved_bytes(const TrafficTask& task);

}  // namespace trireme::plan
