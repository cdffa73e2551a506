// kernels/cpu/dropout_table.h -- what the loop of dropout.h takes: pointers and strides, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct DropoutLoop {
  void* x;
  const std::int64_t* row_index;
  std::int64_t stride, width, first_column, columns_total;
  std::uint32_t key[2], salt[2];         // draw n: word n % 4 of Philox at counter {n / 4, salt}
  std::uint32_t threshold;               // an element whose draw is below it is dropped
  double factor;                         // of what stays
  const std::uint32_t* words = nullptr;  // GPU: key and salt in device memory, in place of those given; null: none
};

struct DropoutTable {
  void (*rows[kElements])(const DropoutLoop& call, std::int64_t begin_row, std::int64_t end_row);
};
extern const DropoutTable kDropoutPlain, kDropoutV3, kDropoutV4, kDropoutV4Bf16;

}  // namespace trireme::kernels
