// kernels/cpu/grouped_gemm_table.h -- what the loops of grouped_gemm.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

namespace trireme::kernels {

/// out [m, n] = a [m, k] b [k, n] (+ out). Of a's two strides one is 1, and of b's.
struct GroupedGemmLoop {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  std::int64_t a_row = 0, a_k = 0, b_k = 0, b_column = 0, out_stride = 0;
  std::int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  void* (*scratch)(std::int64_t bytes) = nullptr;  // memory of the calling thread, aligned to 64 bytes
};

/// Part of a result.
struct GroupedGemmPart {
  std::int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
};

using GroupedGemmFunction = void (*)(const GroupedGemmLoop& call, const GroupedGemmPart& part);
struct GroupedGemmTable {
  GroupedGemmFunction floats = nullptr;   // null: not for this instruction set
  GroupedGemmFunction bfloats = nullptr;  // out of bfloat16 too
  GroupedGemmFunction bfloats_to_float = nullptr;
  bool bfloat_dots = false;  // bfloat16 at twice the rate of float
};
extern const GroupedGemmTable kGroupedGemmPlain, kGroupedGemmV3, kGroupedGemmV4, kGroupedGemmV4Bf16;

}  // namespace trireme::kernels
