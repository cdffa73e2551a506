// formats/utf8.h -- whether bytes are text.
//
// Depends on: std.
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme::formats {

/// Bytes of the well-formed character at the start of a text that is not empty; 0 when there is none. The table of the
/// Unicode standard (3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
std::size_t utf8_length(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace trireme::formats
