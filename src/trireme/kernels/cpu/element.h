// kernels/cpu/element.h -- the element types of the operators, and which copy of a body to run.
//
// Depends on: base. No tensors: the bodies include it.
#pragma once

#include <cstdint>

namespace trireme::kernels {

enum class Element : std::uint8_t { kFloat, kDouble, kBfloat16, kHalf };
constexpr int kElements = 4;

/// What the .cpp files ending in _plain, _v3, _v4 and _v4bf16 export: the same table of functions, compiled four times.
template <typename Table>
struct Compiled {
  const Table &plain, &v3, &v4, &v4bf16;
  /// The one that instruction_set() asks for. Defined in pick.h, which the bodies must not include.
  const Table& pick() const;
};

}  // namespace trireme::kernels
