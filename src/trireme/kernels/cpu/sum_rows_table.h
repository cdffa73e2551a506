// kernels/cpu/sum_rows_table.h -- what the loops of sum_rows.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct SumRowsLoop {
  const void* x;
  std::int64_t stride, width;
};

struct SumRowsTable {
  /// totals (float or double) += rows [begin, end).
  void (*add[kElements])(const SumRowsLoop& call, std::int64_t begin_row, std::int64_t end_row, void* totals);
};
extern const SumRowsTable kSumRowsPlain, kSumRowsV3, kSumRowsV4, kSumRowsV4Bf16;

}  // namespace trireme::kernels
