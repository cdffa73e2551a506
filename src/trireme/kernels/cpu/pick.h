// kernels/cpu/pick.h -- runs the copy of a body that was compiled for the instructions in use.
//
// Depends on: base.
#pragma once

#include "trireme/base/instruction_set.h"
#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

template <typename Table>
const Table& Compiled<Table>::pick() const {
  const InstructionSet set = instruction_set();
  return set >= InstructionSet::kV4 ? v4 : set == InstructionSet::kV3 ? v3 : plain;
}

}  // namespace trireme::kernels
