// parallel/residuals.h -- what compression has left out of each gradient so far, to be added to the next one.
//
// Error feedback (Seide et al. 2014): every rank has its own residual for each parameter it holds a copy of. A step
// that is not taken leaves it as it was: what a step leaves goes into next(), and is kept once the step is taken. In
// the state it is a tensor NAME/PARAMETER with a leading dimension over the copies; another number of copies shares out
// its sum.
// Depends on: layout, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

class Residuals {
 public:
  /// Zeros for every trainable bucket, in float (double where gradients are). `plan` and `groups` are borrowed.
  /// `copies`: the axes along which each rank has one of its own, as far as a bucket is summed along them; without it
  /// all that it is summed along.
  Residuals(const BucketPlan& plan, const MeshGroups& groups, const DataParallelOptions& options,
            std::optional<layout::AxisNames> copies = std::nullopt);

  /// Of a whole bucket, flat as its gradient; view_in() has a member's part.
  const at::Tensor& kept(const Bucket& bucket) const { return kept_.at(number(bucket)); }
  at::Tensor& kept(const Bucket& bucket) { return kept_.at(number(bucket)); }
  at::Tensor& next(const Bucket& bucket) { return next_.at(number(bucket)); }
  /// What next() holds is kept from now on: BucketReducer::step_taken().
  void keep();

  void add_state(nn::State& state, const std::string& name);
  std::int64_t bytes() const;

 private:
  std::size_t number(const Bucket& bucket) const;

  const BucketPlan& plan_;
  const MeshGroups& groups_;
  std::optional<layout::AxisNames> copies_;
  std::vector<at::Tensor> kept_, next_;  // by bucket; undefined for frozen ones
};

}  // namespace trireme::parallel
