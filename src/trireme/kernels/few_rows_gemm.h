// kernels/few_rows_gemm.h -- GEMMs of few rows on the CPU, at the speed of reading the weight.
//
// A library packs its second operand before it multiplies: read, written, read again, which takes longer than the
// multiplication itself where there are few rows, as in every time step of a recurrent network. Here the weight is read
// once, as it lies. Sums run over k in one order, whatever the number of rows or threads.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// Whether add_few_rows_gemm() takes these operands and is worth it: float on the CPU, at most 32 rows.
bool fits_few_rows_gemm(const at::Tensor& x, const at::Tensor& weight);

/// out [m, n] += x [m, k] weight [k, n]. `reversed`: columns are taken from the last to the first, with the same sums.
/// A weight that is a little larger than the cache is mostly read from there where every second call is reversed.
void add_few_rows_gemm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, bool reversed = false);

/// x [m, k] weight [n, k]^T, for operands of the same kind. Slower by the row than the other: where a weight is used
/// many times, transpose it once.
at::Tensor few_rows_gemm_transposed(const at::Tensor& x, const at::Tensor& weight);

/// A float matrix on the CPU the other way round, contiguous.
at::Tensor transposed_copy(const at::Tensor& matrix);

}  // namespace trireme::kernels
