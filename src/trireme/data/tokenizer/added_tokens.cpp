#include "trireme/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "trireme/data/tokenizer/character_classes.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

bool word_before(std::string_view text, std::size_t at) {
  return at > 0 && is_word_character(code_point_before(text, at).code);
}
bool word_after(std::string_view text, std::size_t at) {
  return at < text.size() && is_word_character(code_point(text, at).code);
}
std::size_t space_begin(std::string_view text, std::size_t at) {
  while (at > 0) {
    const CodePoint c = code_point_before(text, at);
    if (!is_white_space(c.code)) break;
    at -= c.bytes;
  }
  return at;
}
std::size_t space_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint c = code_point(text, at);
    if (!is_white_space(c.code)) break;
    at += c.bytes;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
  std::erase_if(patterns_, [](const Pattern& pattern) { return pattern.text.empty(); });
  std::vector<std::uint32_t> order(patterns_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater(), [&](std::uint32_t i) { return patterns_[i].text.size(); });
  for (const std::uint32_t i : order) {
    const auto byte = static_cast<unsigned char>(patterns_[i].text[0]);
    first_[byte].push_back(i);
    starts_[byte] = true;
  }
  if (std::ranges::count(starts_, true) == 1)
    only_start_ = static_cast<int>(std::ranges::find(starts_, true) - starts_);
}

const AddedTokenFinder::Pattern* AddedTokenFinder::longest(std::string_view text, std::size_t at) const {
  for (const std::uint32_t i : first_[static_cast<unsigned char>(text[at])])
    if (text.substr(at).starts_with(patterns_[i].text)) return &patterns_[i];
  return nullptr;
}

void AddedTokenFinder::find(std::string_view text, std::vector<Found>& parts) const {
  std::size_t done = 0;  // up to here the text is in parts
  for (std::size_t at = 0; at < text.size() && !patterns_.empty();) {
    if (only_start_ >= 0) {
      const void* next = std::memchr(text.data() + at, only_start_, text.size() - at);
      if (next == nullptr) break;
      at = static_cast<std::size_t>(static_cast<const char*>(next) - text.data());
    } else {
      while (at < text.size() && !starts_[static_cast<unsigned char>(text[at])]) ++at;
      if (at == text.size()) break;
    }
    const Pattern* pattern = longest(text, at);
    if (pattern == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + pattern->text.size();
    at = end;
    if (pattern->token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (pattern->token.lstrip) begin = std::max(space_begin(text, begin), done);
    if (pattern->token.rstrip) end = space_end(text, end);
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, pattern->token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
}

}  // namespace trireme::data
