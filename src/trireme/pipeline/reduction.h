// pipeline/reduction.h -- gradients of parameters that several ranks hold become one sum, and norms count each once.
//
// Three reasons for copies: a bidirectional schedule runs a chunk on two ranks; a tied embedding is computed with by
// the first and the last chunk; data parallelism has replicas of every stage. Gradients are summed over all of them,
// the same bits everywhere, so equal copies stay equal without ever being compared.
// Depends on: base, comm, device, nn, optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/nn/param.h"
#include "trireme/optim/optimizer.h"
#include "trireme/pipeline/stage.h"

namespace trireme::pipeline {

class GradientReduction {
 public:
  /// `param_holders` are the whole model's, in one order on every rank; `params` are this rank's, of which it may keep
  /// shards with `replicas`, its copies in other pipelines (null: it has none). All are borrowed. Called on all ranks
  /// of the pipeline together.
  GradientReduction(std::span<const ParamHolders> param_holders, nn::Params& params, comm::Group& pipeline,
                    parallel::DataParallel* data_parallel);
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// What a step's gradients were multiplied by: the loss scale.
  using ScaleOf = std::function<double(int step)>;
  /// Where stages update without waiting for each other: what several chunks share is summed beside later steps, and
  /// the update of step s takes the sum of step s - `updates`, on all that hold it; the last one before a flush takes
  /// all that is left. `scale_of` may be empty: 1.
  void delay_shared(int updates, ScaleOf scale_of = {});

  /// Before the first of several steps that run together: nothing is under way.
  void begin() { delayed_.clear(); }
  /// The gradients of this chunk are complete: begins to sum those that no other chunk adds to.
  void post(int chunk);
  /// Ends what was posted, and sums what several chunks share. `step` is counted from begin(); `last`: a flush follows.
  void finish(int step = 0, bool last = true);

  /// For optim::update: norms over all stages, each parameter once. `within`: sums over the parts of a parameter that
  /// other ranks hold, where there are any. Valid as long as this object.
  const optim::AcrossRanks& across(const optim::AcrossRanks* within = nullptr);
  /// The sum over parameters that this rank counts, of one number for each trainable one in their order.
  double count_once(std::span<const double> squares) const;
  /// Parameters that other stages hold too, as they are updated here; whether this rank counts each.
  struct Shared {
    nn::Param* param = nullptr;
    bool counted = false;
  };
  std::vector<Shared> shared() const;
  /// What a step sums over the ranks of the pipeline that hold a parameter: bytes of this rank's gradients.
  struct Sum {
    comm::Group* copies = nullptr;
    double bytes = 0;
  };
  std::vector<Sum> sums() const;
  /// Most bytes that sums for later updates took at once.
  std::int64_t delayed_bytes() const { return delayed_bytes_; }
  comm::Group& pipeline() { return pipeline_; }
  /// The ranks of the pipeline that hold chunks of this one too, together; none: no other does.
  const std::vector<comm::Group*>& twins() const { return twins_; }
  /// As layers compute with them: with ZeRO not what is updated.
  nn::Params& layer_params() { return params_; }
  parallel::DataParallel* data_parallel() { return data_parallel_; }

 private:
  struct Reduced {
    nn::Param* param = nullptr;
    comm::Group* copies = nullptr;  // null: no other rank of the pipeline has it
    int chunk = 0;                  // -1: several chunks add to it
    bool counted = false;           // by this rank, in norms
  };
  /// Of one step: what several chunks share, on its way to its sum.
  struct Delayed {
    int step = 0;
    std::vector<at::Tensor> sums;
    comm::Work work;
  };
  bool sums_late(const Reduced& reduced) const;
  bool sums_first(const Reduced& reduced) const;
  void sum_late(int step, bool last);
  comm::Group& pipeline_;
  nn::Params& params_;
  parallel::DataParallel* data_parallel_;
  std::map<std::vector<int>, std::unique_ptr<comm::Group>> groups_;  // by their ranks; null: without this rank
  std::vector<comm::Group*> twins_;
  std::vector<Reduced> reduced_;  // in the order of the whole model
  std::vector<bool> counted_;     // by trainable parameter, in their order: whether this rank counts it in norms
  bool compresses_ = false;       // gradients must be whole before replicas exchange them
  comm::Batch under_way_;
  int delay_ = 0;
  ScaleOf scale_of_;
  std::deque<Delayed> delayed_;
  std::int64_t delayed_bytes_ = 0;
  optim::AcrossRanks across_;
  double own_squares_ = 0;
};

}  // namespace trireme::pipeline
