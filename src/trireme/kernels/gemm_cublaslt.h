// kernels/gemm_cublaslt.h -- behind gemm.h: a GEMM as cuBLASLt is told it, and the algorithm that serves it best.
//
// gemm_cublaslt.cpp writes the call, gemm_algorithms.cpp finds the fastest algorithm when a key is first met.
// Depends on: base, gemm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "trireme/kernels/cuda_table.h"
#include "trireme/kernels/gemm.h"

namespace trireme::kernels {

/// `call` with those parts of its epilogue in the same pass; `out` must be there, and the pre-activation where it is
/// one of them. `bias_grad`: where the sum of a goes, of out's type. Nothing where types, strides or addresses do not
/// fit. Shapes that contradict each other are an InternalError. Looks at tensors only: no GPU is asked.
std::optional<CudaGemm> cublaslt_call(const Gemm& call, const GemmPlan::Fused& fused, const at::Tensor& bias_grad = {});
/// Everything that an algorithm depends on, for people: "bf16 bf16 -> bf16 32768x3072x768 nt gelu".
std::string gemm_key(const CudaGemm& call);
/// "algorithm 66 tile 24 stages 36 split 1 cluster 5".
std::string to_text(const CudaGemmAlgorithm& algorithm);

/// Whether there is an algorithm; found by timing where it is not known yet. `out` may be written.
bool has_algorithm(const CudaGemm& call, const at::Tensor& out);
/// An InternalError where there is none.
void run_cublaslt(const CudaGemm& call, const at::Tensor& out);

}  // namespace trireme::kernels
