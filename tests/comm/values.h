// tests/comm/values.h -- numbers for tests: drawn from hashes, written and read in every element type, by the plainest
// arithmetic there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "trireme/comm/types.h"

namespace trireme::comm {

/// A number that looks random but depends on nothing else.
std::uint64_t hash_of(std::initializer_list<std::uint64_t> words);
/// In [0, 1).
double fraction_of(std::uint64_t hash);

bool is_float(DType type);
/// The element nearest to `value`, ties to even; integers wrap.
void write_value(DType type, double value, std::byte* at);
double read_value(DType type, const std::byte* at);
/// Half the distance from 1 to the next larger element: the relative error of one rounding. 0 for integers.
double rounding_error(DType type);

}  // namespace trireme::comm
