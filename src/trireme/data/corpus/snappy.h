// data/corpus/snappy.h -- Snappy's raw format, unpacked.
//
// Depends on: std.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

/// Nothing where the bytes are damaged or unpack to anything but `size` bytes.
std::optional<std::string> unpack_snappy(std::string_view bytes, std::uint64_t size);

}  // namespace trireme::data
