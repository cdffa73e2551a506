// comm/arithmetic/table.h -- the tables that the copies of body.h export, one per instruction set.
#pragma once

#include "trireme/comm/arithmetic/arithmetic.h"

namespace trireme::comm {

struct ArithmeticRow {
  Arithmetic by_type[7];  // in the order of DType
};
struct ArithmeticTable {
  ArithmeticRow by_reduce[5];  // in the order of Reduce
  void (*stream_copy)(void* to, const void* from, std::size_t bytes);
};

extern const ArithmeticTable kArithmeticPlain, kArithmeticV3, kArithmeticV4;

}  // namespace trireme::comm
