// observe/json_values.h -- numbers in our JSON files.
//
// JSON has no word for what is NaN or Inf, and null already says "not known". A loss that became NaN is the one number
// people look for, so such numbers are written as the texts "nan", "inf" and "-inf" and read back as numbers.
// Depends on: json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::observe {

using Json = nlohmann::ordered_json;

/// The number, or its text where it is NaN or Inf.
Json number(double value);
/// What number() wrote; nothing when `value` is neither a number nor one of the three texts.
std::optional<double> as_number(const Json& value);

/// Every number inside that is NaN or Inf as its text.
Json with_texts(Json value);

/// One line without its end; bytes that are no UTF-8 become U+FFFD.
std::string line_of(const Json& value);

/// 64 bits as 16 hexadecimal digits: JSON readers that keep numbers as doubles would lose some.
std::string hex(std::uint64_t bits);
std::optional<std::uint64_t> parse_hex(std::string_view text);

}  // namespace trireme::observe
