// nn/flops.h -- what layers count while they compute: multiply-adds of GEMMs, as two operations each.
//
// Counted where the GEMMs are made, from the tensors that went in. What recomputation does a second time is counted
// apart, and so is not done twice by the model: utilisation is told without it. Attention counts the pairs that the
// mask, the window and the documents leave, its backward as twice its forward.
// Depends on: nn/context.h.
#pragma once

#include <cstdint>

#include "trireme/nn/context.h"

namespace trireme::nn {

/// Of a GEMM of [m, k] with [k, n].
inline double gemm_flops(std::int64_t m, std::int64_t k, std::int64_t n) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
}

/// What decides who sees whom.
struct Visibility {
  bool causal = false;
  std::int64_t window = 0;  ///< 0: none
};
/// (query, key) pairs of all rows; `queries` and `keys` have [batch, length] tokens.
double visible_pairs(const Visibility& visibility, const Sequence& queries, std::int64_t batch,
                     std::int64_t query_length, const Sequence& keys, std::int64_t key_length);

/// While it lives, what a context counts goes to `recomputed_flops`.
class CountAsRecomputed {
 public:
  explicit CountAsRecomputed(Context& context) : context_(context), before_(context.flops) {}
  ~CountAsRecomputed() {
    context_.recomputed_flops += context_.flops - before_;
    context_.flops = before_;
  }
  CountAsRecomputed(const CountAsRecomputed&) = delete;
  CountAsRecomputed& operator=(const CountAsRecomputed&) = delete;

 private:
  Context& context_;
  double before_;
};

}  // namespace trireme::nn
