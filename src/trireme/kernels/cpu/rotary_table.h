// kernels/cpu/rotary_table.h -- what the loop of rotary.h takes: pointers and strides, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct RotaryLoop {
  void* x;
  const void *cosines, *sines;  // float (double) [positions, rotated / 2]
  const std::int64_t* positions;
  std::int64_t sequence, heads, rotated;
  std::int64_t batch_stride, sequence_stride, head_stride;
  bool neighbours, inverse;
  /// A thread's room for the angles of one position, 2 * rotated floats (doubles).
  void* (*scratch)(std::int64_t bytes);
  std::int64_t table_rows;
};

struct RotaryTable {
  /// Tokens are numbered batch by batch.
  void (*rotate[kElements])(const RotaryLoop& call, std::int64_t begin_token, std::int64_t end_token);
};
extern const RotaryTable kRotaryPlain, kRotaryV3, kRotaryV4, kRotaryV4Bf16;

}  // namespace trireme::kernels
