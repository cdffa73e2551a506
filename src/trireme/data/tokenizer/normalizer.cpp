#include "trireme/data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "trireme/base/error.h"

namespace trireme::data {

Replacement::Replacement(const Pattern& pattern, std::string content) : content_(std::move(content)) {
  if (pattern.regex) {
    regex_.emplace(pattern.text);
  } else {
    literal_ = pattern.text;
  }
}

std::string Replacement::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  std::size_t done = 0;
  if (regex_) {
    SplitPattern::Search search(*regex_, text);
    for (SplitPattern::Match match; search.next(match); done = match.end) {
      out.append(text, done, match.begin - done);
      out += content_;
    }
  } else {
    for (std::size_t at; (at = text.find(literal_, done)) != text.npos; done = at + literal_.size()) {
      out.append(text, done, at - done);
      out += content_;
    }
  }
  out.append(text, done);
  return out;
}

void Normalizer::add(const NormalizerPart& part) {
  if (part.kind == NormalizerPart::Kind::kSequence) {
    for (const NormalizerPart& inner : part.parts) add(inner);
    return;
  }
  Step& step = steps_.emplace_back(Step{.kind = part.kind, .prefix = part.content, .replacement = {}});
  if (part.kind == NormalizerPart::Kind::kReplace) step.replacement.emplace(part.pattern, part.content);
}

std::string_view Normalizer::apply(std::string_view text, std::string& memory) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case NormalizerPart::Kind::kNfc:
        if (is_surely_nfc(text)) continue;
        memory = to_nfc(text);
        break;
      case NormalizerPart::Kind::kPrepend:
        if (text.empty()) continue;
        memory = step.prefix + std::string(text);
        break;
      case NormalizerPart::Kind::kReplace:
        memory = step.replacement->apply(text);
        break;
      case NormalizerPart::Kind::kSequence:
        continue;  // add() has taken it apart
    }
    text = memory;
  }
  return text;
}

bool is_surely_nfc(std::string_view text) {
  unsigned char largest = 0;
  for (const char byte : text) largest = std::max(largest, static_cast<unsigned char>(byte));
  return largest < 0xCC;  // U+0300 is CC 80
}

std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0)
    throw ConfigError(
        fmt::format("a text of {} bytes has no Unicode normal form: {}", text.size(), utf8proc_errmsg(length)));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

}  // namespace trireme::data
