// data/tokenizer/known_patterns.h -- the split patterns of GPT-2, Llama 3 and Qwen, and cutting by them without an
// engine.
//
// A pattern in a file that is one of these, letter for letter, is cut by hand, several times as fast; the tests hold
// the pieces equal to PCRE2's on random text of every class of characters.
// Depends on: character_classes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "trireme/base/text.h"
#include "trireme/data/tokenizer/character_classes.h"

namespace trireme::data {

enum class KnownPattern : std::uint8_t { kGpt2, kLlama3, kQwen };
std::span<const Named<KnownPattern>> enum_names(std::type_identity<KnownPattern>);

std::string_view pattern_text(KnownPattern pattern);
std::optional<KnownPattern> known_pattern(std::string_view text);

/// The end of the piece that begins at `begin`, which is below text.size(). `text` is UTF-8.
std::size_t piece_end(KnownPattern pattern, const CharacterClasses& classes, std::string_view text, std::size_t begin);

}  // namespace trireme::data
