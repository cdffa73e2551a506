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

/// Buckets of gradients that are summed over the same ranks: dense ones over all copies of the model, those of experts
/// over fewer. Groups are named as in TrafficLine; bytes are of whole buckets, in the gradients' own types.
struct SummedGradients {
  std::string group;                   ///< that sums them, or with ZeRO shares them out; empty: nobody else has them
  std::string across;                  ///< ZeRO: that sums shards of several such groups; empty: there is one
  std::string everyone;                ///< find_unused: both together
  int ranks = 1, others = 1, all = 1;  ///< in each of these
  std::int64_t parameters = 0;
  std::int64_t fetched = 0;    ///< ZeRO 3: of weights, as often as a unit fetches them
  std::int64_t predicted = 0;  ///< ZeRO 1 and 2: of weights, as often as a schedule predicts them
  std::int64_t asked = 0;      ///< find_unused: parameters of which ranks tell each other who used them
  double kept_bytes = 0;       ///< of gradients as they are kept
  double reduced_bytes = 0;    ///< on their way to be summed
  double scattered_bytes = 0;  ///< ZeRO 2 and 3: likewise, as often as they are complete
};

/// Tensors that cross the borders of stages, of a micro-batch each: hidden states of the stream that the head reads
/// and of an encoder's beside it, or gradients of them, and token ids that pass an encoder by.
struct StageMessages {
  std::int64_t hidden = 0, source = 0, ids = 0;
};

/// One rank's part of a step.
struct TrafficTask {
  Job job;
  ParallelConfig config;  ///< dp given; micro_batch_size as in the rank's first micro-batch
  std::int64_t micros = 0;
  std::int64_t source_seq_len = 0;     ///< of an encoder's stream
  std::int64_t layers = 0;             ///< on this rank; of a model with an encoder its decoder's
  bool embedding = true, head = true;  ///< on this rank
  PassCount layer_passes;              ///< of all of them, added up
  PassCount embedding_passes, head_passes;
  PassCount encoder_passes, encoder_embedding_passes;  ///< likewise, of an encoder's layers
  PassCount expert_passes, encoder_expert_passes;      ///< of these layers, those with experts
  std::vector<SummedGradients> gradients;
  std::string expert_group;         ///< along which experts are sharded; empty: each rank has all of them
  std::string load_group;           ///< that sums the loads of experts; empty: this rank is alone
  int load_ranks = 1;               ///< in it
  std::int64_t copied_keys = 0;     ///< heads of keys that tp / kv_heads ranks hold, where that is less than tp
  std::int64_t copied_over_tp = 0;  ///< of which parts are computed by several tp ranks, after ZeRO's cut
  StageMessages sent, received;     ///< that the schedule has this rank send and receive
  double copied_bytes = 0;  ///< gradients of parameters that other ranks of the pipeline have too, times (n-1)/n
  int loss_terms = 1;       ///< of which stages add up sum and count
};

struct TrafficLine {
  std::string group;  ///< "tp", "cp", "data", "pp"
  std::string what;   ///< "4 all-reduces a layer"
  double wire_bytes = 0;
};
/// Rows of experts are those of balanced routing: of other routing a rank sends more or less.
std::vector<TrafficLine> traffic_of(const TrafficTask& task);

/// Bytes that one micro-batch's forward pass leaves on the rank for its backward (activations.h).
double saved_bytes(const TrafficTask& task);

}  // namespace trireme::plan
