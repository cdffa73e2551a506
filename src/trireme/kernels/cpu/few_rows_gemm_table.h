// kernels/cpu/few_rows_gemm_table.h -- what the loops of few_rows_gemm.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct FewRowsGemmLoop {
  const float* x;       // [m, k]
  const float* weight;  // [k, n]
  float* out;           // [m, n], added to
  std::int64_t x_stride, weight_stride, out_stride;
  std::int64_t m, k;
  bool reversed = false;  // panels of columns, the last first
};

struct FewRowsGemmTable {
  void (*add)(const FewRowsGemmLoop& call, std::int64_t begin, std::int64_t end);  // columns of the result
};
extern const FewRowsGemmTable kFewRowsGemmPlain, kFewRowsGemmV3, kFewRowsGemmV4, kFewRowsGemmV4Bf16;

}  // namespace trireme::kernels
