// formats/json_text.h -- JSON trees in and out, in the very form that Python's json module writes.
//
// Depends on: base, nlohmann json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trireme::formats {

/// The tree, keys in the order of the file; NaN and Infinity are taken as Python writes them. FormatError with the file
/// and byte, for a key that is there twice too. Whole numbers beyond 64 bits become doubles. `first_byte`: where
/// in the file the text begins.
nlohmann::ordered_json parse_json(std::string_view text, std::string_view source, std::uint64_t first_byte = 0);

enum class Keys : std::uint8_t { kAsTheyAre, kSorted };
/// What json.dumps(value, indent=2, sort_keys=...) gives: everything beyond ASCII escaped, doubles as repr() has them.
std::string python_json(const nlohmann::ordered_json& value, Keys keys);

/// The text in quotes, with the fewest escapes: what serde_json writes.
std::string json_string(std::string_view text);
/// The same as Python writes it: nothing but ASCII.
std::string python_string(std::string_view text);
/// A double as Python's repr() has it: the fewest digits that read back as the same value.
std::string python_double(double value);

}  // namespace trireme::formats
