// kernels/gemm_plans.h -- behind GEMM.h: a GEMM as the library is told it, and the plan that serves it best.
//
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "trireme/kernels/cuda_table.h"
#include "trireme/kernels/gemm.h"

namespace trireme::kernels {

/// Nothing where types, strides or addresses do not fit. Shapes that contradict each other are an InternalError. Looks
/// at tensors only: no GPU is asked.
std::optional<CudaGemm> product_call(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add,
                                     const GemmExtras& extras);
/// Everything that a plan depends on, for people: "bf16 bf16 -> bf16 32768x3072x768 nt gelu".
std::string product_key(const CudaGemm& call);
/// "algorithm 66 tile 24 stages 36 split 1 cluster 5".
std::string describe_plan(const CudaGemmPlan& plan);

/// Whether there is a plan; found by timing where it is not known yet. `out` may be written.
bool has_plan(const CudaGemm& call, const at::Tensor& out);
void run_product(const CudaGemm& call, const at::Tensor& out);

}  // namespace trireme::kernels
