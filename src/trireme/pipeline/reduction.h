// pipeline/reduction.h -- gradients of parameters that several ranks hold become one sum, and norms count each once.
//
// Three reasons for copies: a bidirectional schedule runs a chunk on two ranks; a tied embedding is computed with by
// the first and the last chunk; data parallelism has replicas of every stage. Gradients are summed over all of them,
// the same bits everywhere, so equal copies stay equal without ever being compared.
// Depends on: base, comm, device, nn, optim.
#pragma once

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

  /// The gradients of this chunk are complete: begins to sum those that no other chunk adds to.
  void post(int chunk);
  /// Ends what was posted, and sums what several chunks share.
  void finish();

  /// For optim::update: norms over all stages, each parameter once. `within`: sums over the parts of a parameter that
  /// other ranks hold, where there are any. Valid as long as this object.
  const optim::AcrossRanks& across(const optim::AcrossRanks* within = nullptr);
  /// The sum over parameters that this rank counts, of one number for each trainable one in their order.
  double count_once(std::span<const double> squares) const;
  comm::Group& pipeline() { return pipeline_; }
  /// As layers compute with them: with ZeRO not what is updated.
  nn::Params& layer_params() { return params_; }
  parallel::DataParallel* data_parallel() { return data_parallel_; }

 private:
  struct Reduced {
    nn::Param* param = nullptr;
    comm::Group* copies = nullptr;  // null: no other rank of the pipeline has it
    int chunk = 0;                  // -1: several chunks add to it
  };
  comm::Group& pipeline_;
  nn::Params& params_;
  parallel::DataParallel* data_parallel_;
  std::map<std::vector<int>, std::unique_ptr<comm::Group>> groups_;  // by their ranks; null: without this rank
  std::vector<Reduced> reduced_;                                     // in the order of the whole model
  std::vector<bool> counted_;  // by trainable parameter, in their order: whether this rank counts it in norms
  comm::Batch under_way_;
  optim::AcrossRanks across_;
  double own_squares_ = 0;
};

}  // namespace trireme::pipeline
