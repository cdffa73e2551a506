// data/corpus/html_text.h -- the text of a page of HTML, as a reader sees it.
//
// Tags go; head, script, style and the like go with what they hold; paragraphs, rows, list items and line breaks begin
// lines; white space is joined, but for that of pre and textarea; character references become characters. Any bytes are
// taken: what is no tag is text, as browsers have it. Nesting is not looked at, so no page is too deep.
// Depends on: std.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

/// Never longer than the page, and UTF-8 where that is.
std::string html_text(std::string_view page);

/// Character references, &eacute; &#233; &#xE9;: the character that one stands for; `text` begins behind its '&',
/// `bytes` is how much of it belongs to the reference. Nothing: this is no reference, or one that is not of HTML 4's
/// 252.
std::optional<std::uint32_t> html_reference(std::string_view text, std::size_t& bytes);

}  // namespace trireme::data
