// kernels/invariant_gemm.h -- x W^T + b on the CPU, every row by itself: a row's bits do not depend on the others.
//
// A library's GEMM picks its loops by the number of rows, and so the order in which products are added up: the same
// token then gets other logits beside other tokens. Here every sum runs over k in one order, whatever tile of the
// result it is computed in, so rows can be batched, chunked and recomputed freely. W may be stored in fewer bits, which
// are made floats as they are read; sums are in float (double).
// Behind Gemm::batch_invariant (gemm.h). CPU only.
// Depends on: base, quantised_weight.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/kernels/quantised_weight.h"

namespace trireme::kernels {

/// out [m, n] = x [m, k] weight [n, k]^T + bias [n], or without one. All of one type: float, double, bfloat16 or half.
void invariant_gemm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
/// The same with a weight of int8 or int4 numbers; x, out and bias are of one type.
void invariant_gemm(at::Tensor& out, const at::Tensor& x, const QuantisedWeight& weight, const at::Tensor& bias);

/// Memory of the calling thread for the loops of GEMMs, aligned to 64 bytes; the next call's is the same.
void* gemm_scratch(std::int64_t bytes);

}  // namespace trireme::kernels
