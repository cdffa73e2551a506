#include "trireme/parallel/residuals.h"

#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"

namespace trireme::parallel {

Residuals::Residuals(const BucketPlan& plan, const MeshGroups& groups, const DataParallelOptions& options,
                     std::optional<layout::AxisNames> copies)
    : plan_(plan), groups_(groups), copies_(std::move(copies)) {
  for (const Bucket& bucket : plan.buckets) {
    const at::ScalarType type = bucket.gradient_type == at::kDouble ? at::kDouble : at::kFloat;
    for (auto* tensors : {&kept_, &next_}) {
      tensors->push_back(bucket.trainable ? at::zeros({bucket.elements}, options.on_device(type)) : at::Tensor());
    }
  }
}

std::size_t Residuals::number(const Bucket& bucket) const {
  return static_cast<std::size_t>(&bucket - plan_.buckets.data());
}

/// Copies: the state's tensors stay where they are.
void Residuals::keep() {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (kept_[i].defined()) kept_[i].copy_(next_[i]);
  }
}

void Residuals::add_state(nn::State& state, const std::string& name) {
  const layout::Mesh& mesh = groups_.mesh();
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i].defined()) continue;
    const layout::AxisNames& summed = plan_.buckets[i].axes;
    const layout::AxisNames copies = copies_ ? layout::intersect(mesh, *copies_, summed) : summed;
    for (const BucketMember& member : plan_.buckets[i].members) {
      state.add(name + "/" + member.param->name, view_in(kept_[i], member),
                layout::stack_copies(mesh, groups_.rank(), member.param->placement, copies), nn::CopiesRule::kSum);
    }
  }
}

std::int64_t Residuals::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : kept_) {
    if (tensor.defined()) bytes += 2 * static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace trireme::parallel
