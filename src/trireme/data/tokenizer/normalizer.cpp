#include "trireme/data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/data/tokenizer/character_classes.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

bool is_ascii(std::string_view text) {
  unsigned char all = 0;
  for (const char byte : text) all |= static_cast<unsigned char>(byte);
  return all < 0x80;
}

/// Each character as `change(code, out)` writes it.
template <typename Change>
std::string changed(std::string_view text, Change&& change) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    change(c.code, text.substr(at, c.bytes), out);
    at += c.bytes;
  }
  return out;
}

std::string dropped(std::string_view text, const CodePointSet& set) {
  return changed(text, [&](std::uint32_t code, std::string_view bytes, std::string& out) {
    if (!set.has(code)) out += bytes;
  });
}

std::string with_plain_spaces(std::string_view text) {
  return changed(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
    is_white_space(code) ? void(out += ' ') : void(out += bytes);
  });
}

/// The blocks that BERT calls Chinese.
bool is_ideograph(std::uint32_t code) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  return within(0x4E00, 0x9FFF) || within(0x3400, 0x4DBF) || within(0x20000, 0x2A6DF) || within(0x2A700, 0x2B73F) ||
         within(0x2B740, 0x2B81F) || within(0x2B920, 0x2CEAF) || within(0xF900, 0xFAFF) || within(0x2F800, 0x2FA1F);
}

std::string with_spaced_ideographs(std::string_view text) {
  return changed(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
    const bool spaced = is_ideograph(code);
    if (spaced) out += ' ';
    out += bytes;
    if (spaced) out += ' ';
  });
}

/// SentencePiece's rules for control characters and white space, without its map.
std::string with_nmt_rules(std::string_view text) {
  return changed(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
    if ((code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
        code == 0x8F || code == 0x9F)
      return;
    const bool space = code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
                       (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                       code == 0xFEFF || code == 0xFFFD;
    space ? void(out += ' ') : void(out += bytes);
  });
}

std::string_view without_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_white_space(code_point(text, 0).code))
    text.remove_prefix(code_point(text, 0).bytes);
  while (right && !text.empty() && is_white_space(code_point_before(text, text.size()).code))
    text.remove_suffix(code_point_before(text, text.size()).bytes);
  return text;
}

std::string in_form(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kC || form == NormalForm::kKc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kKc || form == NormalForm::kKd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0)
    throw ConfigError(
        fmt::format("a text of {} bytes has no Unicode normal form: {}", text.size(), utf8proc_errmsg(length)));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

/// `text` holds at most its first character of ASCII.
void append_in_form(std::string_view text, NormalForm form, std::string& out) {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (left_by_normal_forms().has(c.code)) {
      out += in_form(text.substr(done, at - done), form);
      out += text.substr(at, c.bytes);
      done = at + c.bytes;
    }
    at += c.bytes;
  }
  out += in_form(text.substr(done), form);
}

}  // namespace

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
  using Kind = NormalizerPart::Kind;
  using To = Step::Kind;
  switch (part.kind) {
    case Kind::kSequence:
      for (const NormalizerPart& inner : part.parts) add(inner);
      return;
    case Kind::kNfc:
      return void(steps_.push_back({.kind = To::kForm, .form = NormalForm::kC}));
    case Kind::kNfd:
      return void(steps_.push_back({.kind = To::kForm, .form = NormalForm::kD}));
    case Kind::kNfkc:
      return void(steps_.push_back({.kind = To::kForm, .form = NormalForm::kKc}));
    case Kind::kNfkd:
      return void(steps_.push_back({.kind = To::kForm, .form = NormalForm::kKd}));
    case Kind::kLowercase:
      return void(steps_.push_back({.kind = To::kLowercase}));
    case Kind::kStripAccents:
      return void(steps_.push_back({.kind = To::kDrop, .dropped = &combining_marks()}));
    case Kind::kNmt:
      return void(steps_.push_back({.kind = To::kNmt}));
    case Kind::kStrip:
      return void(steps_.push_back({.kind = To::kStrip, .left = part.strip_left, .right = part.strip_right}));
    case Kind::kBert:
      return add_bert(part);
    case Kind::kPrecompiled:
      steps_.push_back({.kind = To::kCharsmap});
      return void(steps_.back().charsmap.emplace(part.content));
    case Kind::kPrepend:
      return void(steps_.push_back({.kind = To::kPrepend, .prefix = part.content}));
    case Kind::kReplace:
      steps_.push_back({.kind = To::kReplace});
      return void(steps_.back().replacement.emplace(part.pattern, part.content));
  }
}

void Normalizer::add_bert(const NormalizerPart& part) {
  using To = Step::Kind;
  if (part.clean_text) {
    steps_.push_back({.kind = To::kDrop, .dropped = &control_characters()});
    steps_.push_back({.kind = To::kWhiteSpace});
  }
  if (part.handle_chinese_chars) steps_.push_back({.kind = To::kSpaceIdeographs});
  if (part.strip_accents.value_or(part.lowercase)) {
    steps_.push_back({.kind = To::kForm, .form = NormalForm::kD});
    steps_.push_back({.kind = To::kDrop, .dropped = &nonspacing_marks()});
  }
  if (part.lowercase) steps_.push_back({.kind = To::kLowercase});
}

std::string_view Normalizer::apply(std::string_view text, std::string& memory) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kForm:
        if (step.form == NormalForm::kC ? is_surely_nfc(text) : is_ascii(text)) continue;
        memory = to_normal_form(text, step.form);
        break;
      case Step::Kind::kLowercase:
        memory = to_lowercase(text);
        break;
      case Step::Kind::kDrop:
        memory = dropped(text, *step.dropped);
        break;
      case Step::Kind::kWhiteSpace:
        memory = with_plain_spaces(text);
        break;
      case Step::Kind::kSpaceIdeographs:
        if (is_ascii(text)) continue;
        memory = with_spaced_ideographs(text);
        break;
      case Step::Kind::kNmt:
        memory = with_nmt_rules(text);
        break;
      case Step::Kind::kStrip:
        text = without_space(text, step.left, step.right);
        continue;
      case Step::Kind::kCharsmap:
        memory = step.charsmap->apply(text);
        break;
      case Step::Kind::kPrepend:
        if (text.empty()) continue;
        memory = step.prefix + std::string(text);
        break;
      case Step::Kind::kReplace:
        memory = step.replacement->apply(text);
        break;
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

std::string to_normal_form(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  // An ASCII character is in every form and joins nothing before it, though marks behind it may join it: what is
  // normalized begins at one and ends before the next.
  for (std::size_t at = 0; at < text.size();) {
    std::size_t other = at;
    while (other < text.size() && static_cast<unsigned char>(text[other]) < 0x80) ++other;
    const std::size_t begin = other == text.size() || other == at ? other : other - 1;
    out.append(text, at, begin - at);
    std::size_t end = other;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    if (begin < end) append_in_form(text.substr(begin, end - begin), form, out);
    at = end;
  }
  return out;
}

std::string to_lowercase(std::string_view text) {
  return changed(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
    if (code < 0x80) {
      out += code >= 'A' && code <= 'Z' ? static_cast<char>(code + ('a' - 'A')) : static_cast<char>(code);
    } else if (code == 0x130) {  // the one character that becomes two
      out += "i\u0307";
    } else if (const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(code));
               lower == static_cast<utf8proc_int32_t>(code)) {
      out += bytes;
    } else {
      append_utf8(out, static_cast<std::uint32_t>(lower));
    }
  });
}

}  // namespace trireme::data
