#include "trireme/parallel/compress/owned_residuals.h"

#include <ATen/ops/zeros.h>

#include "trireme/nn/state.h"

namespace trireme::parallel {

OwnedResiduals::OwnedResiduals(std::span<const Term> terms, MeshGroups& groups, const DataParallelOptions& options,
                               ShareOf share)
    : terms_(terms), groups_(groups), copies_(options.copies) {
  for (const Term& term : terms) {
    shares_.push_back(share(term, groups.mesh().index_in_group(groups.rank(), copies_of(term)), term.copies));
    const at::ScalarType type = term.bucket->gradient_type == at::kDouble ? at::kDouble : at::kFloat;
    for (auto* tensors : {&kept_, &next_})
      tensors->push_back(at::zeros({shares_.back().size()}, options.on_device(type)));
  }
}

layout::AxisNames OwnedResiduals::copies_of(const Term& term) const {
  return layout::intersect(groups_.mesh(), copies_, term.bucket->axes);
}

void OwnedResiduals::keep() {
  for (std::size_t i = 0; i < kept_.size(); ++i) kept_[i].copy_(next_[i]);
}

void OwnedResiduals::add_state(nn::State& state, const std::string& name) {
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    layout::Placement placement = terms_[i].param->placement;
    const layout::AxisNames copies = copies_of(terms_[i]);
    placement.partition = layout::Partition{.begin = shares_[i].begin, .end = shares_[i].end, .axes = copies};
    for (layout::Piece& piece : placement.pieces) {
      for (const std::string& axis : copies)
        piece.replica_axes = layout::without(groups_.mesh(), piece.replica_axes, axis);
    }
    state.add(name + "/" + terms_[i].param->name, kept_[i], std::move(placement));
  }
}

std::int64_t OwnedResiduals::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : kept_) bytes += 2 * static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace trireme::parallel
