// parallel/compress/scaled_signs.h -- the mean over copies in one bit an element and a scale, with error feedback at
// both ends: 1-bit Adam's compressed all-reduce.
//
// Each copy owns 1 / N of a parameter's elements: all say theirs to the owner in signs and a scale, it averages, and
// says the mean in signs and a scale again, with a residual of its own. Elements whose variance is 0 do not move, and
// scales do not count them: neither unused embedding rows nor padding.
// Depends on: parallel.
#pragma once

#include <span>
#include <vector>

#include "trireme/parallel/compress/compressed_reducer.h"
#include "trireme/parallel/compress/owned_residuals.h"

namespace trireme::parallel {

class ScaledSigns {
 public:
  /// All borrowed.
  ScaledSigns(std::span<const Term> terms, Residuals residuals, MeshGroups& groups, const DataParallelOptions& options);

  /// values[i], flat, of some of the terms, become their mean over copies; variances[i] is of the same elements. Gives
  /// what was left out and what there was, for each of them.
  struct Error {
    double left = 0, whole = 0;
  };
  std::vector<Error> mean(CopyExchange& exchange, std::span<const Term> terms, std::vector<at::Tensor>& values,
                          const std::vector<at::Tensor>& variances);
  void keep();
  void add_state(nn::State& state);
  std::int64_t bytes() const { return residuals_.bytes() + owned_.bytes(); }
  /// That a copy sends for a term.
  static double bytes_of(const Term& term, int copies);

 private:
  std::vector<Error> mean_on_gpu(CopyExchange& exchange, std::span<const Term> terms, std::vector<at::Tensor>& values,
                                 const std::vector<at::Tensor>& variances);
  template <typename T>
  std::vector<Error> mean_as(CopyExchange& exchange, std::span<const Term> terms, std::vector<at::Tensor>& values,
                             const std::vector<at::Tensor>& variances);

  Residuals residuals_;
  OwnedResiduals owned_;
};

}  // namespace trireme::parallel
