// kernels/cpu/invariant_gemm_table.h -- what the loops of invariant_gemm.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct InvariantGemmLoop {
  const void* x;  // float (double) [m, k]
  const void* weight;
  const void* bias;  // of the result's type; null: none
  void* out;
  std::int64_t x_stride, weight_stride, out_stride;
  std::int64_t m, k;
  // Of weights in fewer bits.
  const float* scales = nullptr;
  const float* zeros = nullptr;
  std::int64_t group = 0;
  void* (*scratch)(std::int64_t bytes) = nullptr;  // memory of the calling thread
};

/// Columns [begin, end) of the result.
using InvariantGemmFunction = void (*)(const InvariantGemmLoop& call, std::int64_t begin, std::int64_t end);
struct InvariantGemmTable {
  InvariantGemmFunction plain[kElements];  // the weight is of the result's type
  InvariantGemmFunction int8[kElements], int4[kElements];
};
extern const InvariantGemmTable kInvariantGemmPlain, kInvariantGemmV3, kInvariantGemmV4, kInvariantGemmV4Bf16;

}  // namespace trireme::kernels
