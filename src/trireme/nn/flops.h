// nn/flops.h -- what layers count while they compute: multiply-adds of GEMMs, as two operations each.
//
// Counted where the GEMMs are made, from the tensors that went in. What recomputation does a second time is counted
// apart, and so is not done twice by the model: utilisation is told without it. Attention counts the pairs that the
// mask, the window and the documents leave, its backward as twice its forward.
// Depends on: nn/context.h.
#pragma once

#include <cstdint>
#include <utility>

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
/// Neighbouring tokens of each row: the position of the first, and the documents of all on the host, or undefined.
struct TokenSpan {
  std::int64_t first = 0, count = 0;
  at::Tensor documents = {};  ///< int32 [batch, count]
};
/// (query, key) pairs of all rows.
double visible_pairs(const Visibility& visibility, const TokenSpan& queries, const TokenSpan& keys, std::int64_t batch);

/// While it lives, what a context counts goes to `recomputed_flops`; and what is computed again runs through: a
/// schedule's stops (Context::stops) are those of the pass itself.
class CountAsRecomputed {
 public:
  explicit CountAsRecomputed(Context& context)
      : context_(context), before_(context.flops), stops_(std::exchange(context.stops, nullptr)) {}
  ~CountAsRecomputed() {
    context_.recomputed_flops += context_.flops - before_;
    context_.flops = before_;
    context_.stops = stops_;
  }
  CountAsRecomputed(const CountAsRecomputed&) = delete;
  CountAsRecomputed& operator=(const CountAsRecomputed&) = delete;

 private:
  Context& context_;
  double before_;
  PassStops* stops_;
};

}  // namespace trireme::nn
