// plan/traffic.h -- what a step of a layout sends and keeps, by the papers' formulas: to be read beside what is
// measured.
//
// Every line says what it counts, in which group and under which condition. Wire bytes are what one rank sends to
// others: (p - 1)/p of the tensor for a gather, a reduce-scatter or an all-to-all, twice that for a sum.
// Depends on: base, spec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/layout_config.h"
#include "trireme/spec/model_shape.h"
#include "trireme/spec/train.h"

namespace trireme::plan {

/// One rank's part of a step.
struct TrafficTask {
  spec::ModelShape shape;
  spec::LayoutConfig layout;  ///< dp given
  spec::RecomputeKind recompute = spec::RecomputeKind::kNone;
  bool recompute_norms = false, save_mlp_activations = false;  ///< as in [train]
  std::int64_t sequence = 0, rows = 0, micros = 0;             ///< tokens a row, rows a micro
  std::int64_t layers = 0;                                     ///< on this rank
  bool embedding = true, head = true;                          ///< on this rank
  int compute_bytes = 4, sum_bytes = 4;      ///< of a weight and an activation; of what is added up in full
  int gradient_bytes = 4, reduce_bytes = 4;  ///< of a gradient as it is kept, and on its way
  std::int64_t parameters = 0;               ///< this rank's, in whole buckets
  std::int64_t copied_keys = 0;        ///< heads of keys that tp / kv_heads ranks hold, where that is less than tp
  std::int64_t copied_over_tp = 0;     ///< of which parts are computed by several tp ranks, after ZeRO's cut
  std::int64_t pipeline_messages = 0;  ///< that the schedule has this rank send
  std::int64_t head_chunks = 1;        ///< that the logits of a micro are made in
};

struct TrafficLine {
  std::string group;  ///< "tp", "cp", "data", "pp"
  std::string what;   ///< "4 all-reduces a layer"
  double wire_bytes = 0;
};
/// Empty lines for models with an encoder beside a decoder: the papers count one stack.
std::vector<TrafficLine> traffic_of(const TrafficTask& task);

/// Bytes that one micro's forward pass leaves for its backward, by what our layers keep: a token's inputs of norms and
/// matrices, its q, k, v, attention output and the MLP's middle; split as tp, sequence and context parallelism split
/// them.
double activation_bytes(const TrafficTask& task);

/// Model states of one rank by ZeRO's formulas (Rajbhandari et al. 2019, figure 1), in the types that are used here.
struct StateBytes {
  double parameters = 0, master_weights = 0, gradients = 0, optimizer = 0;
};
/// `elements` on the rank before ZeRO, over `ranks` that share them out; `moments` a parameter.
StateBytes state_bytes(double elements, int zero, int ranks, int compute_bytes, int sum_bytes, int moments);

}  // namespace trireme::plan
