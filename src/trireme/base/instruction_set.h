// base/instruction_set.h -- which of the machine's instructions hand-written loops may use.
//
// Loops are compiled once per set (files ending in _plain, _v3, _v4, _v4bf16) and picked when they run. TRIREME_ISA
// takes a smaller set than the machine has: to measure one, or to get the bits of an older machine.
// Depends on: error, env, text.
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme {

/// Each contains those before it.
enum class InstructionSet : std::uint8_t {
  kPlain,   ///< what the compiler assumes by itself
  kV3,      ///< AVX2 with fused multiply-add and half conversions
  kV4,      ///< AVX-512: foundation, byte, word, doubleword, vector lengths
  kV4Bf16,  ///< AVX-512 with bf16 dot products
};

/// "plain", "v3", "v4", "v4bf16": what TRIREME_ISA takes and `to_string` gives.
std::string_view to_string(InstructionSet set);

/// The largest that this machine has.
InstructionSet machine_instruction_set();

/// The largest that may be used: the machine's, or TRIREME_ISA's where that is smaller. A ConfigError when TRIREME_ISA
/// names none, or one that the machine lacks.
InstructionSet instruction_set();

/// While it lives, instruction_set() is this one in every thread: for tests and benchmarks of smaller sets.
class UseInstructionSet {
 public:
  explicit UseInstructionSet(InstructionSet set);
  ~UseInstructionSet();
  UseInstructionSet(const UseInstructionSet&) = delete;
  UseInstructionSet& operator=(const UseInstructionSet&) = delete;

 private:
  InstructionSet before_;
};

}  // namespace trireme
