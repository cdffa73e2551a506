// kernels/skinny_gemm.h -- GEMMs of a few rows on a GPU, x W^T, at the speed at which memory gives the weight: decode.
//
// Weights are bf16 or fp16 as x is, or int8, int4 or e4m3 with scales (quantised_weight.h), which become bf16 exactly
// on the way to the tensor cores. Up to kMostSkinnyRows rows; more of them are cuBLASLt's.
// Depends on: base, quantised_weight.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/kernels/quantised_weight.h"

namespace trireme::kernels {

inline constexpr std::int64_t kMostSkinnyRows = 16;

struct SkinnyGemm {
  at::Tensor x;                                ///< [m, k], rows with a stride that is a multiple of 16 bytes
  at::Tensor weight = {};                      ///< [n, k], of x's type
  const QuantisedWeight* quantised = nullptr;  ///< in place of it; borrowed
  at::Tensor bias = {};                        ///< [n], of x's type
  at::Tensor residual = {};                    ///< [m, n], of x's type, added
};
/// Whether the kernel can run it: on a GPU, few rows, types and strides that it has.
bool runs_skinny_gemm(const SkinnyGemm& call);
/// Whether it is the one to run it: of 16-bit weights only small ones, times few rows; of those in fewer bits all.
bool fits_skinny_gemm(const SkinnyGemm& call);
/// [m, n], of x's type. An InternalError where it cannot run.
at::Tensor skinny_gemm(const SkinnyGemm& call);

/// The likeliest token of each row of logits [rows, vocabulary] on a GPU, the lowest of equals, as int64; -1 where a
/// logit is NaN or the largest is infinite. `tokens` int64 [rows].
void argmax_tokens(at::Tensor& tokens, const at::Tensor& logits);

}  // namespace trireme::kernels
