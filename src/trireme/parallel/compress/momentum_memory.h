// parallel/compress/momentum_memory.h -- momentum and accumulation that a copy does before its gradient is made sparse
// (Lin et al. 2018, section 3): u <- m u + g, v <- v + u; what is sent is taken out of v and, with factor masking, of
// u.
//
// The optimizer then has no momentum of its own. Dense steps, vectors and small parameters keep u only: their sum is
// momentum SGD as ever.
// Depends on: parallel.
#pragma once

#include "trireme/parallel/compress/compressed_reducer.h"

namespace trireme::parallel {

class MomentumMemory {
 public:
  MomentumMemory(Residuals momentum, Residuals left, double m)
      : momentum_(std::move(momentum)), left_(std::move(left)), m_(m) {}

  double momentum() const { return m_; }
  /// u <- m u + g of all of a bucket, which is what is sent.
  void take_dense(Bucket& bucket);
  /// The same of all of it that is no term, in a step in which its terms are sparse.
  void take_rest(Bucket& bucket, std::span<Term> terms);
  /// u <- m u + g and v <- v + u of a term; gives v, which is what the next step keeps until clear().
  at::Tensor accumulate(const Term& term);
  at::Tensor momentum_of(const Term& term) { return term.part_of(momentum_.next(*term.bucket)); }
  at::Tensor left_of(const Term& term) { return term.part_of(left_.next(*term.bucket)); }
  void keep(bool dense);
  void add_state(nn::State& state);
  std::int64_t bytes() const { return momentum_.bytes() + left_.bytes(); }

 private:
  Residuals momentum_, left_;
  double m_;
};

}  // namespace trireme::parallel
