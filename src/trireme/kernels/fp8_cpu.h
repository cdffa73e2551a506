// kernels/fp8_cpu.h -- behind fp8.h and gemm.h: FP8 operands and their GEMMs emulated on the CPU.
//
// So that an FP8 recipe can be trained and checked without a GPU: the codes and scales of the GPU's kernels to the bit,
// and sums in float over exact products of codes, in another order than tensor cores have. No faster than float.
// Depends on: fp8.h, cuda_table.h.
#pragma once

#include "trireme/kernels/cuda_table.h"
#include "trireme/kernels/gemm.h"

namespace trireme::kernels {

/// The call that a GPU gets, without `up`.
void fp8_on_cpu(const CudaFp8& call);

/// a [m, k] b [n, k] transposed, in float. A scale of the tensor multiplies the sum; scales of blocks multiply the sum
/// over each 128 of k.
at::Tensor fp8_gemm_on_cpu(const GemmOperand& a, const GemmOperand& b);

}  // namespace trireme::kernels
