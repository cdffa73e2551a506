// kernels/cpu/invariant_gemm_table.h -- what the loops of invariant_gemm.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct InvariantGemmLoop {
  const void* x;  // [m, k], float (double), or of the result's type where the table says so
  const void* weight;
  const void* bias;  // of the result's type; null: none
  void* out;
  std::int64_t x_stride, weight_stride, out_stride;
  std::int64_t m, k;
  // Of weights in fewer bits.
  const float* scales = nullptr;
  const float* zeros = nullptr;
  std::int64_t group = 0;
  bool arranged = false;                           // int4: x stands as InvariantGemmTable says
  void* (*scratch)(std::int64_t bytes) = nullptr;  // memory of the calling thread
};

/// Columns [begin, end) of the result.
using InvariantGemmFunction = void (*)(const InvariantGemmLoop& call, std::int64_t begin, std::int64_t end);
struct InvariantGemmTable {
  InvariantGemmFunction plain[kElements];  // the weight is of the result's type
  InvariantGemmFunction int8[kElements], int4[kElements];
  bool takes_element[kElements];  // `plain` and `int8` want x as it is, not in the type of the sums
  // A register holds a chunk of codes, `places` in each of its lanes. Where k is a multiple of a chunk, and so is a
  // group or the other way round, x may stand code by code: of each chunk the first number of every `places`, then the
  // second ... in its own type or as floats.
  struct Arrangement {
    std::int64_t chunk, places;
    bool takes_element;
  } arrangement[kElements];
};
extern const InvariantGemmTable kInvariantGemmPlain, kInvariantGemmV3, kInvariantGemmV4, kInvariantGemmV4Bf16;

}  // namespace trireme::kernels
