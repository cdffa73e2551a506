// nn/moe/fp8_experts.h -- the grouped GEMMs of experts on FP8 operands, expert by expert.
//
// Each expert's rows, gradients and matrix are quantised by themselves: with current scales the largest number is that
// expert's, with scales of blocks tiles begin at its first row; delayed scales are those of all experts of a layer, as
// a parameter has one row of them (nn/fp8.h). Rows are filled up with zeros to a multiple of what FP8 GEMMs take; these
// are in no sum and no result. On the CPU FP8 is emulated (kernels/fp8_cpu.h), so that recipes can be tried there;
// there is no kernel for GPUs, and a rule says so.
// Depends on: kernels, nn/fp8.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "trireme/nn/param.h"

namespace trireme::nn::moe {

/// What grouped_gemm() computes, with the matrices of `weight`, or copies of them: `matrices` [groups, n, k].
struct Fp8GroupedGemm {
  const Param& weight;
  at::Tensor rows, matrices;
  std::span<const std::int64_t> offsets;
  bool backward = false;  ///< rows are gradients [rows, n], and become [rows, k]
  bool training = true;   ///< what is met counts for delayed scales
};
at::Tensor fp8_grouped_gemm(const Fp8GroupedGemm& call);

/// out [groups, n, k] of each group = dy_g^T x_g (+ out).
struct Fp8GroupedWeightGrad {
  const Param& weight;
  at::Tensor dy, x;
  std::span<const std::int64_t> offsets;
  at::Tensor out;
  bool accumulate = false;
};
void fp8_grouped_weight_grad(const Fp8GroupedWeightGrad& call);

}  // namespace trireme::nn::moe
