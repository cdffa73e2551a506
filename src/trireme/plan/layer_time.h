// plan/layer_time.h -- how long one layer takes for one micro-batch on one rank, operator by operator.
//
// GEMMs by the rounded roofline, attention fused or not, everything else by the bytes it moves, and the
// collectives of tensor and context parallelism. Bytes are counted from the operators themselves: what a norm, an
// activation, a residual sum reads and writes.
// Depends on: activations, cost, job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/cost/hardware.h"
#include "trireme/plan/job.h"

namespace trireme::plan {

/// Seconds, by what is done.
struct Parts {
  double matmul = 0, attention = 0, streaming = 0, communication = 0;
  double total() const { return matmul + attention + streaming + communication; }
  Parts& operator+=(const Parts& other);
  friend Parts operator+(Parts left, const Parts& right) { return left += right; }
  friend Parts operator*(double factor, const Parts& parts);
};

struct PassTimes {
  Parts forward, backward, recompute;
  double backward_weight = 0;  ///< of the backward, what weights' gradients take
  double dispatch = 0;         ///< of forward and of backward each, what rows of experts on their way take
  double experts = 0;          ///< of the forward, the GEMMs of routed experts
  Parts all() const { return forward + backward + recompute; }
};

enum class Pass : std::uint8_t { kForward, kBackward };

/// One operator of a layer's pass, or several alike.
struct OperatorTime {
  std::string name;
  double times = 1;             ///< how many a layer has in the mean
  double flops = 0, bytes = 0;  ///< of one
  double seconds = 0;           ///< of one, as predicted
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
};
/// Those of a layer, and the head. Backward has two GEMMs for each of forward: grad_input and grad_weight.
std::vector<OperatorTime> layer_operators(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                                          Pass pass);

/// One collective of a layer's pass, or several alike.
struct CollectiveTime {
  std::string name;
  double times = 1;    ///< how many a layer has in the mean
  double bytes = 0;    ///< that a rank sends, of one
  double least = 0;    ///< seconds of one by the links' data sheets
  double seconds = 0;  ///< of one by itself, as predicted
  double exposed = 0;  ///< of these, what computing does not hide
};
/// Those of a layer, and the head's.
std::vector<CollectiveTime> layer_collectives(const cost::Hardware& hardware, const Job& job,
                                              const ParallelConfig& config, Pass pass);

/// One layer.
PassTimes layer_times(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config);
/// The embedding; and the last norm, the head and the loss.
PassTimes embedding_times(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config);
PassTimes head_times(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config);

}  // namespace trireme::plan
