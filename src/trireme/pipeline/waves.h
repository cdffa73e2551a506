// pipeline/waves.h -- one rank of a virtual worker (HetPipe): weights of each minibatch in flight, one push a wave.
//
// Between pushes a rank's global weights stand still. A minibatch computes with them and with the updates of its own
// virtual worker beside them: w - rate x (own gradients, of waves that are not in w yet). The push of a wave is an
// all-reduce of its gradients over the virtual workers that nobody waits for; its pull, some instructions or waves
// later, ends that all-reduce and gives the sum to the optimizer. So what a parameter server would hold is on every
// virtual worker, the same bits, and runs are reproducible (schedule/waves.h says which weights each minibatch meets).
// With one minibatch a wave and no clock distance nothing is ever beside the weights: that is synchronous training.
// A stage may be several ranks (tensor and context parallelism), which sum each minibatch's gradients as it comes back.
// For plain SGD, one chunk a rank, parameters that only copies of the virtual worker share.
// Depends on: base, layout, schedule, comm, device, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/layout/placement.h"
#include "trireme/nn/context.h"
#include "trireme/nn/param.h"
#include "trireme/pipeline/stage.h"
#include "trireme/schedule/waves.h"

namespace trireme::pipeline {

/// Parameters that this rank sums over the same ranks: one of each virtual worker. Where all have one split that is
/// one group for everything; where splits differ, a stretch of layers lies on other stages in each.
struct WaveShare {
  comm::Group* ranks = nullptr;     ///< null: there is one virtual worker
  std::vector<std::size_t> params;  ///< of the chunk
};

/// A stretch of a gradient's memory, and the ranks of this rank's own stage that each have a part of its sum: of cp,
/// and with sequence parallelism of tp.
struct StageSum {
  layout::Range local;
  comm::Group* ranks = nullptr;
};

class WaveWeights {
 public:
  struct Parts {
    const schedule::Schedule& table;                     ///< of one virtual worker
    const Chunk& chunk;                                  ///< what this rank holds
    std::vector<WaveShare> shares;                       ///< each parameter in one of them
    std::function<double(int wave)> rate_of;             ///< the learning rate of a wave, counted from begin()
    std::vector<std::vector<StageSum>> stage_sums = {};  ///< by parameter of the chunk; empty: a stage is one rank
    bool reduce_bf16 = false;                            ///< waves are pushed in bf16
  };
  explicit WaveWeights(Parts parts);

  /// The pipeline is empty and the weights are everybody's.
  void begin();
  /// What a pass of this minibatch computes with: made at its forward, the same until it has come back.
  nn::WeightSource* take(int minibatch);
  /// Its backward is over: what is in the gradients is its own.
  void returned(int minibatch);
  /// All minibatches of the next wave have come back.
  void push();
  /// The oldest wave that was pushed: its sum over all virtual workers stands in the gradients, for the optimizer.
  void pull();
  /// The optimizer has taken it in.
  void pulled();

  /// What was met so far, over all runs.
  const schedule::StalenessMonitor& monitor() const { return monitor_; }
  std::int64_t pushes() const { return pushes_; }
  /// Of weights of minibatches in flight; gradients of waves that are under way take as much again, a copy a wave.
  std::int64_t max_bytes() const { return max_bytes_; }

 private:
  using Copy = std::vector<at::Tensor>;  // by parameter of the chunk; undefined: frozen
  struct Sent {
    at::Tensor flat;
    comm::Work work;
  };
  struct Wave {
    Copy own;                ///< gradients of own minibatches, as far as weights may know them
    Copy all;                ///< of all its minibatches that have come back
    std::vector<Sent> sent;  ///< by share
    bool is_pushed = false;
  };
  struct InFlight final : nn::WeightSource {
    const std::map<const nn::Param*, std::size_t>* index = nullptr;
    Copy values;
    const at::Tensor& value(const nn::Param& param) override { return values[index->at(&param)]; }
  };
  Wave& wave(int number);
  void learn_own(int until);
  Copy values_now() const;

  Parts parts_;
  schedule::StalenessMonitor monitor_;
  std::map<const nn::Param*, std::size_t> index_;
  std::int64_t bytes_ = 0;  // of one copy
  std::int64_t max_bytes_ = 0, pushes_ = 0;
  int pulled_ = 0, pushed_ = 0;
  std::deque<Wave> waves_;                     // from the first that is not pulled
  std::deque<std::pair<int, Copy>> returned_;  // gradients of minibatches that no weights know yet
  std::map<int, InFlight> in_flight_;          // by minibatch
};

}  // namespace trireme::pipeline
