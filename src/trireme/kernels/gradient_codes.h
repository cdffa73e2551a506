// kernels/gradient_codes.h -- codes of compressed gradients on the CPU, of floats: one bit an element with error
// feedback, QSGD's levels, rounded deltas.
//
// What a code says and where it lies in a message is parallel/compress/'s; these are its loops, by one thread. Bits do
// not depend on the instruction set. Doubles, which tests and twins compute in, have plain loops there.
// Depends on: base.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/level_codes_table.h"
#include "trireme/kernels/cpu/sign_codes_table.h"

namespace trireme::kernels {

/// For the instruction set in use.
const SignCodesTable& sign_codes();
const LevelCodesTable& level_codes();

}  // namespace trireme::kernels
