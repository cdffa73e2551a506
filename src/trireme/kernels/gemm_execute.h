// kernels/gemm_execute.h -- behind gemm.h: carries out a call as its plan says.
//
// Depends on: base, gemm.h.
#pragma once

#include "trireme/kernels/gemm.h"
#include "trireme/kernels/gemm_cublaslt.h"

namespace trireme::kernels {

/// The matrices as they are multiplied: a [m, k], b [k, n].
inline at::Tensor op_a(const Gemm& call) { return call.transpose_a ? call.a.values.t() : call.a.values; }
inline at::Tensor op_b(const Gemm& call) { return call.transpose_b ? call.b.values.t() : call.b.values; }
inline std::int64_t m_of(const Gemm& call) { return call.a.values.size(call.transpose_a ? 1 : 0); }
inline std::int64_t n_of(const Gemm& call) {
  return call.b.is_quantised() ? call.b.quantised.rows : call.b.values.size(call.transpose_b ? 0 : 1);
}
inline std::int64_t k_of(const Gemm& call) { return call.a.values.size(call.transpose_a ? 0 : 1); }
/// Of the result.
inline at::ScalarType type_of(const Gemm& call) {
  return call.out.defined() ? call.out.scalar_type() : call.out_type.value_or(call.a.values.scalar_type());
}

/// The call without activation and bias gradients: what one pass does everywhere.
Gemm linear_part(const Gemm& call);
/// Whether ATen writes a result of this type right where it is wanted.
bool aten_writes_out(const Gemm& call);
/// With cuBLASLt all that it writes must be there: see prepare() in gemm.cpp.
GemmResult execute(const Gemm& call, const GemmPlan& plan);

}  // namespace trireme::kernels
