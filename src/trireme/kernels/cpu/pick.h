// kernels/cpu/pick.h -- runs the copy of a body that was compiled for the instructions in use.
//
// Depends on: base.
#pragma once

#include "trireme/base/instruction_set.h"
#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

template <typename Table>
const Table& Compiled<Table>::pick() const {
  switch (instruction_set()) {
    case InstructionSet::kPlain:
      return plain;
    case InstructionSet::kV3:
      return v3;
    case InstructionSet::kV4:
      return v4;
    case InstructionSet::kV4Bf16:
      return v4bf16;
  }
  return plain;
}

}  // namespace trireme::kernels
