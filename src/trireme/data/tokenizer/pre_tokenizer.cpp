#include "trireme/data/tokenizer/pre_tokenizer.h"

#include <utf8proc.h>

#include "trireme/base/error.h"
#include "trireme/data/tokenizer/unicode_ranges.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

bool is_number(std::uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

struct Part {
  std::size_t begin, end;
  bool matched;
};

/// The parts of a text that match and those between, as the format's behaviors join them.
std::vector<Part> joined(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<Part> out;
  bool before_matched = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return parts;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts)
        if (!part.matched) out.push_back(part);
      return out;
    case SplitBehavior::kContiguous:
      for (const Part& part : parts) {
        if (!out.empty() && part.matched == before_matched) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        before_matched = part.matched;
      }
      return out;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        if (part.matched && !before_matched && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        before_matched = part.matched;
      }
      return out;
    case SplitBehavior::kMergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->matched && !before_matched && !out.empty()) {
          out.back().begin = part->begin;
        } else {
          out.push_back(*part);
        }
        before_matched = part->matched;
      }
      return {out.rbegin(), out.rend()};
  }
  return out;
}

}  // namespace

void PreTokenizer::add(const PreTokenizerPart& part) {
  using Kind = PreTokenizerPart::Kind;
  using Class = Step::Class;
  constexpr std::size_t kMost = 256;  // each one is a call within the calls of those before it
  if (steps_.size() >= kMost)
    throw ConfigError(fmt::format("pre_tokenizer: more than {} steps are not supported", kMost));
  switch (part.kind) {
    case Kind::kSequence:
      for (const PreTokenizerPart& inner : part.parts) add(inner);
      return;
    case Kind::kSplit:
      return add_pattern(part.pattern, part.behavior, part.invert);
    case Kind::kByteLevel:
      if (part.byte_level.add_prefix_space) steps_.push_back({.kind = Step::Kind::kPrefixSpace});
      if (part.byte_level.use_regex)
        add_pattern({.regex = true, .text = std::string(pattern_text(KnownPattern::kGpt2))}, SplitBehavior::kIsolated,
                    false);
      return;
    case Kind::kMetaspace: {
      Step& step = steps_.emplace_back(Step{.kind = Step::Kind::kMetaspace});
      step.metaspace = part.metaspace;
      step.spaces.emplace(Pattern{.regex = false, .text = " "}, part.metaspace.replacement);
      return;
    }
    case Kind::kBert:
      return add_classes([](std::uint32_t code) {
        return is_white_space(code) ? Class::kDropped : punctuation().has(code) ? Class::kAlone : Class::kRun;
      });
    case Kind::kWhitespaceSplit:
      return add_classes([](std::uint32_t code) { return is_white_space(code) ? Class::kDropped : Class::kRun; });
    case Kind::kWhitespace:
      return add_classes([](std::uint32_t code) {
        return is_white_space(code) ? Class::kDropped : is_word_character(code) ? Class::kRun : Class::kOtherRun;
      });
    case Kind::kDigits:
      return part.individual_digits
                 ? add_classes([](std::uint32_t code) { return is_number(code) ? Class::kAlone : Class::kRun; })
                 : add_classes([](std::uint32_t code) { return is_number(code) ? Class::kOtherRun : Class::kRun; });
    case Kind::kPunctuation:
      return add_punctuation(part.behavior);
  }
}

void PreTokenizer::add_classes(Step::Class (*class_of)(std::uint32_t code)) {
  steps_.push_back(Step{.kind = Step::Kind::kClasses, .class_of = class_of});
}

void PreTokenizer::add_punctuation(SplitBehavior behavior) {
  using Class = Step::Class;
  switch (behavior) {
    case SplitBehavior::kRemoved:
      return add_classes([](std::uint32_t code) { return punctuation().has(code) ? Class::kDropped : Class::kRun; });
    case SplitBehavior::kIsolated:
      return add_classes([](std::uint32_t code) { return punctuation().has(code) ? Class::kAlone : Class::kRun; });
    case SplitBehavior::kContiguous:
      return add_classes([](std::uint32_t code) { return punctuation().has(code) ? Class::kOtherRun : Class::kRun; });
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kMergedWithNext:
      steps_.push_back(Step{.kind = Step::Kind::kPunctuation});
      steps_.back().behavior = behavior;
      return;
  }
}

void PreTokenizer::add_pattern(const Pattern& pattern, SplitBehavior behavior, bool invert) {
  Step& step = steps_.emplace_back(Step{.kind = Step::Kind::kPattern});
  step.behavior = behavior;
  step.invert = invert;
  const auto known = pattern.regex ? known_pattern(pattern.text) : std::nullopt;
  if (known && (behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert))) {
    // These match every character of a text, so nothing is left between the pieces.
    step.kind = Step::Kind::kKnown;
    step.known = *known;
  } else if (pattern.regex) {
    step.regex.emplace(pattern.text);
  } else {
    step.literal = pattern.text;
  }
}

void PreTokenizer::run(std::size_t number, std::string_view text, bool first, const Take& take) const {
  if (text.empty()) return;
  if (number == steps_.size()) return take(text);
  const Step& step = steps_[number];
  switch (step.kind) {
    case Step::Kind::kKnown:
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = piece_end(step.known, CharacterClasses::shared(), text, begin);
        run(number + 1, text.substr(begin, end - begin), first && begin == 0, take);
        begin = end;
      }
      return;
    case Step::Kind::kPrefixSpace:
      if (text[0] == ' ') return run(number + 1, text, first, take);
      return run(number + 1, " " + std::string(text), first, take);
    case Step::Kind::kMetaspace:
      return run_metaspace(number, text, first, take);
    case Step::Kind::kClasses:
      return run_classes(number, text, first, take);
    case Step::Kind::kPattern:
    case Step::Kind::kPunctuation:
      return run_pattern(number, text, first, take);
  }
}

void PreTokenizer::run_classes(std::size_t number, std::string_view text, bool first, const Take& take) const {
  using Class = Step::Class;
  const auto class_of = steps_[number].class_of;
  std::size_t begin = 0;  // of the run that goes on
  Class before = Class::kDropped;
  const auto end_run = [&](std::size_t end) {
    if (before != Class::kDropped && begin < end)
      run(number + 1, text.substr(begin, end - begin), first && begin == 0, take);
    begin = end;
  };
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    const Class is = class_of(c.code);
    if (is != before || is == Class::kAlone) end_run(at);
    before = is;
    at += c.bytes;
  }
  end_run(text.size());
}

void PreTokenizer::run_pattern(std::size_t number, std::string_view text, bool first, const Take& take) const {
  const Step& step = steps_[number];
  std::vector<Part> parts;
  std::size_t done = 0;
  const auto add = [&](std::size_t begin, std::size_t end) {
    if (done < begin) parts.push_back({done, begin, step.invert});
    parts.push_back({begin, end, !step.invert});
    done = end;
  };
  if (step.regex) {
    SplitPattern::Search search(*step.regex, text);
    for (SplitPattern::Match match; search.next(match);) add(match.begin, match.end);
  } else if (step.kind == Step::Kind::kPunctuation) {
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = code_point(text, at);
      if (punctuation().has(c.code)) add(at, at + c.bytes);
      at += c.bytes;
    }
  } else {
    for (std::size_t at; (at = text.find(step.literal, done)) != text.npos;) add(at, at + step.literal.size());
  }
  if (done < text.size()) parts.push_back({done, text.size(), step.invert});
  for (const Part& part : joined(parts, step.behavior))
    run(number + 1, text.substr(part.begin, part.end - part.begin), first && part.begin == 0, take);
}

void PreTokenizer::run_metaspace(std::size_t number, std::string_view text, bool first, const Take& take) const {
  const Step& step = steps_[number];
  const std::string& sign = step.metaspace.replacement;
  std::string replaced = step.spaces->apply(text);
  const bool prefix =
      step.metaspace.scheme == PrependScheme::kAlways || (step.metaspace.scheme == PrependScheme::kFirst && first);
  if (prefix && !replaced.starts_with(sign)) replaced.insert(0, sign);
  if (!step.metaspace.split) return run(number + 1, replaced, first, take);
  const std::string_view view = replaced;
  for (std::size_t begin = 0; begin < view.size();) {
    const std::size_t end =
        std::min(view.find(sign, begin + (view.substr(begin).starts_with(sign) ? sign.size() : 1)), view.size());
    run(number + 1, view.substr(begin, end - begin), first && begin == 0, take);
    begin = end;
  }
}

}  // namespace trireme::data
