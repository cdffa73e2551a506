// data/tokenizer/utf8_text.h -- walking over text that is known to be UTF-8.
//
// Depends on: std.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data {

struct CodePoint {
  std::uint32_t code;
  std::uint32_t bytes;
};

/// The character at `at`, which must be the first byte of one.
inline CodePoint code_point(std::string_view text, std::size_t at) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  if (p[0] < 0x80) return {p[0], 1};
  if (p[0] < 0xE0) return {(p[0] & 0x1FU) << 6 | (p[1] & 0x3FU), 2};
  if (p[0] < 0xF0) return {(p[0] & 0x0FU) << 12 | (p[1] & 0x3FU) << 6 | (p[2] & 0x3FU), 3};
  return {(p[0] & 0x07U) << 18 | (p[1] & 0x3FU) << 12 | (p[2] & 0x3FU) << 6 | (p[3] & 0x3FU), 4};
}

/// The character before `at`, which is not 0.
inline CodePoint code_point_before(std::string_view text, std::size_t at) {
  std::size_t begin = at - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return code_point(text, begin);
}

void append_utf8(std::string& out, std::uint32_t code);

/// The first byte that is no part of well-formed UTF-8; npos when the text is.
std::size_t first_invalid_utf8(std::string_view text);

/// The text with U+FFFD for what is no UTF-8, one for each longest piece that could have begun a character: what the
/// Unicode standard recommends and Rust's from_utf8_lossy does.
std::string with_replacement_characters(std::string_view bytes);
/// Bytes at the end that begin a character which is not whole yet.
std::size_t unfinished_utf8(std::string_view bytes);

}  // namespace trireme::data
