// kernels/skinny_gemm.h -- GEMMs of a few rows on a GPU, x W^T, at the speed at which memory gives the weight: decode.
//
// Weights are bf16 or fp16 as x is, or int8, int4 or e4m3 with scales (quantised_weight.h), which become bf16 exactly
// on the way to the tensor cores. Up to kMostSkinnyRows rows; more of them are cuBLASLt's, or quantised_gemm()'s.
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
  bool gated = false;  ///< stream_gemm(): gates are the weight's first half, out = SiLU(gate) up [m, n / 2]
};
/// Whether the kernel can run it: on a GPU, few rows, types and strides that it has.
bool runs_skinny_gemm(const SkinnyGemm& call);
/// Whether it is the one to run it: of 16-bit weights only small ones, times few rows; of those in fewer bits all.
bool fits_skinny_gemm(const SkinnyGemm& call);
/// [m, n], of x's type. An InternalError where it cannot run.
at::Tensor skinny_gemm(const SkinnyGemm& call);

/// The same by the kernel that streams weights through shared memory (cuda_plugin/stream_gemm.cuh), x bf16.
bool runs_stream_gemm(const SkinnyGemm& call);
/// Whether it is the one to run it: one row times int8 or e4m3 with long rows.
bool fits_stream_gemm(const SkinnyGemm& call);
at::Tensor stream_gemm(const SkinnyGemm& call);
/// The same for any number of rows with a weight in e4m3 on a GPU, x bf16: the library's FP8 GEMM, with rows of x in
/// e4m3 over a scale each, too. Outputs and inputs must be multiples of 16.
bool runs_quantised_gemm(const SkinnyGemm& call);
at::Tensor quantised_gemm(const SkinnyGemm& call);
/// Rows of x [m, k], bf16 or fp16 on a GPU, as e4m3 codes and float scales [m, 1].
struct QuantisedRows {
  at::Tensor codes, scales;
};
QuantisedRows quantise_rows(const at::Tensor& x);

/// The likeliest token of each row of logits [rows, vocabulary] on a GPU, the lowest of equals, as int64; -1 where a
/// logit is NaN or the largest is infinite. `tokens` int64 [rows].
void argmax_tokens(at::Tensor& tokens, const at::Tensor& logits);

}  // namespace trireme::kernels
