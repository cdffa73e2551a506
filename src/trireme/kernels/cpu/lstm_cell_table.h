// kernels/cpu/lstm_cell_table.h -- what the loops of lstm_cell.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct LstmCellLoop {
  void* gates;          // [rows, 4, units]: sums, which become gates; in backward read only
  const void* c_in;     // [rows, units], as all below
  void *c, *h;          // in backward c is read and h not used
  const void *dh, *dc;  // null: 0
  void *dsums, *dc_in;  // [rows, 4, units], [rows, units]
  std::int64_t units;
};

using LstmCellFunction = void (*)(const LstmCellLoop& call, std::int64_t begin, std::int64_t end);  // rows
struct LstmCellTable {
  LstmCellFunction forward[2], backward[2];  // of float and double
};
extern const LstmCellTable kLstmCellPlain, kLstmCellV3, kLstmCellV4, kLstmCellV4Bf16;

}  // namespace trireme::kernels
