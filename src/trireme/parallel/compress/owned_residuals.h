// parallel/compress/owned_residuals.h -- what the second compression leaves out: each copy keeps it for the elements
// whose sum it makes.
//
// In the state it has its parameter's shape, each element with the copy that owns it: another number of copies shares
// it out otherwise and loses nothing.
// Depends on: layout, nn, parallel.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "trireme/parallel/compress/compressed_reducer.h"

namespace trireme::parallel {

class OwnedResiduals {
 public:
  /// Which elements of a term's memory a copy owns.
  using ShareOf = Share1D (*)(const Term& term, int copy, int copies);
  /// `terms` and `groups` are borrowed.
  OwnedResiduals(std::span<const Term> terms, MeshGroups& groups, const DataParallelOptions& options, ShareOf share);

  const at::Tensor& kept(std::size_t term) const { return kept_[term]; }
  at::Tensor& next(std::size_t term) { return next_[term]; }
  void keep();
  void add_state(nn::State& state, const std::string& name);
  std::int64_t bytes() const;

 private:
  layout::AxisNames copies_of(const Term& term) const;

  std::span<const Term> terms_;
  MeshGroups& groups_;
  layout::AxisNames copies_;
  std::vector<Share1D> shares_;
  std::vector<at::Tensor> kept_, next_;
};

}  // namespace trireme::parallel
