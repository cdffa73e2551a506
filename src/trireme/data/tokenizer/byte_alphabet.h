// data/tokenizer/byte_alphabet.h -- the letters that byte-level vocabularies write bytes with.
//
// GPT-2 writes a byte that prints as itself, and the other 68 as U+0100 onwards, in order: a space is "Ġ". So a
// vocabulary of arbitrary bytes is a vocabulary of texts, and a file can hold it.
// Depends on: std.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

/// The code point of each byte's letter.
const std::array<std::uint32_t, 256>& byte_letters();
/// The byte that a code point stands for.
std::optional<std::uint8_t> byte_of_letter(std::uint32_t code);

std::string bytes_to_letters(std::string_view bytes);
/// Nothing when a character of `letters`, which is UTF-8, stands for no byte.
std::optional<std::string> letters_to_bytes(std::string_view letters);

}  // namespace trireme::data
