// kernels/grouped_gemm.h -- many GEMMs whose rows stand one below the other: those of each expert in a mixture.
//
// Group g has rows offsets[g] .. offsets[g + 1] of the tall operand and matrix g of the other. A group without rows is
// no special case: its part of a result has no rows, its part of a weight gradient is 0. With offsets, on a CPU with
// AVX-512, float and bfloat16 run loops of our own over all groups at once (cpu/grouped_gemm_body.h): a row's bits do
// not depend on the rows beside it. Other types and machines loop over calls of gemm.h. With `ends`, which are on a
// GPU, bfloat16 runs ATen's grouped kernel, which reads them there: nothing waits (Hopper and later; elsewhere ATen
// loops). Other types read them back and loop: right, and for tests. First contributions to fp32 gradients of many
// small groups are summed on Hopper by a kernel of our own (cuda_plugin/moe_weight_grad.cu), where they belong.
// Depends on: gemm.h, invariant_gemm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>

namespace trireme::kernels {

/// out [rows, n] = a [rows, k] with b [groups, n, k] transposed, or with b [groups, k, n].
struct GroupedGemm {
  at::Tensor a = {}, b = {};
  std::span<const std::int64_t> offsets = {};  ///< [groups + 1], from 0 to rows
  bool transpose_b = false;
  at::Tensor ends = {};  ///< in place of offsets: int32 [groups] on the GPU, where the rows of each group end
};
at::Tensor grouped_gemm(const GroupedGemm& call);

/// out [groups, m, n] of each group = a_g^T b_g (+ out), from a [rows, m] and b [rows, n]. Sums in float (double).
struct GroupedWeightGrad {
  at::Tensor a = {}, b = {};
  std::span<const std::int64_t> offsets = {};
  at::Tensor out = {};
  bool accumulate = false;  ///< what is in `out` counts
  at::Tensor ends = {};     ///< as GroupedGemm's; ATen's kernel rounds each group's sum to bfloat16
  /// With ends: the kernel of our own wherever there is one, or nowhere; unset: where it is the faster one.
  std::optional<bool> own_kernel = {};
};
void grouped_weight_grad(const GroupedWeightGrad& call);

}  // namespace trireme::kernels
