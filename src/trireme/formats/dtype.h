// formats/dtype.h -- the element types of published tensor files.
//
// Depends on: base.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "trireme/base/text.h"

namespace trireme::formats {

/// Declared in the order of the reference implementation, smallest alignment first: its writer sorts tensors by it, so
/// the order of the enumerators decides bytes of the files we write.
enum class Dtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// Every type with the name that files have for it, in the order of the enumerators.
std::span<const Named<Dtype>> dtypes();
/// "BF16".
std::string_view name_of(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view name);
/// 4 and 6 for the types of which several share a byte.
int bits_of(Dtype dtype);

}  // namespace trireme::formats
