// parallel/compress/local_weights.h -- the weights of copies that differ, in checkpoints.
//
// A checkpoint's "param/NAME" is one copy's. Where copies update by themselves, "reduce/weight/NAME" has all of them
// side by side, as they were after the last step, so that a run goes on to the bit from any step. More copies than were
// saved begin with the first one's.
// Depends on: layout, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trireme/nn/state.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

class LocalWeights {
 public:
  /// Trainable parameters of a plan without ZeRO, by name. All borrowed.
  LocalWeights(BucketPlan& plan, MeshGroups& groups, layout::AxisNames copies);

  const std::vector<nn::Param*>& params() const { return params_; }
  /// As they are now; on first use parameters have memory.
  void take();
  /// Every copy has its own back.
  void give_back();
  void add_state(nn::State& state);
  std::int64_t bytes() const;

  /// A tensor for each parameter, like its master and beginning as it does now.
  std::vector<at::Tensor> like_masters() const;
  /// One of them in the state: the same on all copies, or each copy's own.
  void add_equal(nn::State& state, const std::string& name, const std::vector<at::Tensor>& tensors) const;
  void add_stacked(nn::State& state, const std::string& name, const std::vector<at::Tensor>& tensors,
                   nn::CopiesRule rule) const;
  /// Each copy's own few numbers, which belong to no parameter; a copy that was not saved gets zeros.
  void add_numbers(nn::State& state, const std::string& name, const at::Tensor& numbers) const;

 private:
  MeshGroups& groups_;
  layout::AxisNames copies_;
  std::vector<nn::Param*> params_;
  std::vector<at::Tensor> taken_;
};

/// After a change of master weights: computed with from now on.
void publish_changed(nn::Param& param);

}  // namespace trireme::parallel
