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

  struct Error {
    double left = 0, whole = 0;
  };
  /// A mean on its way.
  struct Round {
    std::vector<Term> terms;
    std::vector<at::Tensor> values, variances;  ///< flat, one for each term
    std::vector<Error> errors = {};             ///< what was left out and what there was, once it has begun
    Mail to_owners = {}, to_all = {};
  };
  // values become their mean over copies in three stages, each after the work of the one before. On the host.
  comm::Work begin(CopyExchange& exchange, Round& round);
  comm::Work answer(CopyExchange& exchange, Round& round);
  static void end(const CopyExchange& exchange, Round& round);
  /// All three, anywhere.
  void mean(CopyExchange& exchange, Round& round);
  void keep();
  void add_state(nn::State& state);
  std::int64_t bytes() const { return residuals_.bytes() + owned_.bytes(); }
  /// That a copy sends for a term.
  static double bytes_of(const Term& term, int copies);

 private:
  void mean_on_gpu(CopyExchange& exchange, Round& round);
  template <typename T>
  comm::Work begin_as(CopyExchange& exchange, Round& round);
  template <typename T>
  comm::Work answer_as(CopyExchange& exchange, Round& round);
  template <typename T>
  static void end_as(const CopyExchange& exchange, Round& round);

  Residuals residuals_;
  OwnedResiduals owned_;
};

}  // namespace trireme::parallel
