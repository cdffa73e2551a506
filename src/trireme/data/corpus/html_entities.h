// data/corpus/html_entities.h -- character references of HTML: &eacute; &#233; &#xE9;
//
// Depends on: std.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme::data {

/// The character that a reference stands for; `text` begins behind its '&', `bytes` is how much of it belongs to the
/// reference. Nothing: this is no reference, or one that is not of HTML 4's 252.
std::optional<std::uint32_t> html_reference(std::string_view text, std::size_t& bytes);

}  // namespace trireme::data
