// kernels/cpu/attention_body.h -- the functions of attention_problem.h's table for one way of multiplying.
//
// Included by the files that are compiled once per instruction set. Everything but the tables is in unnamed namespaces:
// a function compiled for AVX-512 must never become the copy that other files link to.
// Depends on: attention_forward.h, attention_backward.h.
#pragma once

#include "trireme/kernels/cpu/attention_backward.h"
#include "trireme/kernels/cpu/attention_forward.h"

namespace trireme::kernels::cpu {
namespace {

template <typename Math>
void merge_rows(const AttentionMerge& merge) {
  using Real = typename Math::Real;
  auto* const out = static_cast<typename Math::Element*>(merge.out);
  const auto* const other = static_cast<const typename Math::Element*>(merge.other);
  const auto a = static_cast<Real>(merge.out_weight), b = static_cast<Real>(merge.other_weight);
  std::int64_t i = 0;
  for (; i + kLanes<Real> <= merge.size; i += kLanes<Real>) {
    narrow_vector(a * widen_vector(out + i) + b * widen_vector(other + i), out + i);
  }
  for (; i < merge.size; ++i) narrow(a * widen(out[i]) + b * widen(other[i]), out[i]);
}

template <typename Math>
constexpr AttentionBody body_of() {
  return {
      .forward_scratch = [](const AttentionProblem& problem) { return Forward<Math>(problem, nullptr).bytes(); },
      .forward = [](const AttentionProblem& problem, const AttentionSpan& span,
                    void* scratch) { Forward<Math>(problem, scratch).run(span); },
      .backward_scratch = [](const AttentionProblem& problem) { return Backward<Math>(problem, nullptr).bytes(); },
      .backward =
          [](const AttentionProblem& problem, const AttentionSpan& span, void* sums, void* scratch) {
            auto* const dk = static_cast<typename Math::Real*>(sums);
            Backward<Math>(problem, scratch).run(span, dk, dk + Backward<Math>::sums(problem));
          },
      .sums_bytes =
          [](const AttentionProblem& problem) {
            return 2 * static_cast<std::size_t>(Backward<Math>::sums(problem)) * sizeof(typename Math::Real);
          },
      .write_sums = &write_sums<Math>,
      .merge = &merge_rows<Math>,
  };
}

}  // namespace
}  // namespace trireme::kernels::cpu
