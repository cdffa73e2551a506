#include "trireme/data/tokenizer/decoder.h"

#include <charconv>

#include "trireme/data/tokenizer/byte_alphabet.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

std::string byte_level_bytes(std::string_view token) {
  auto bytes = letters_to_bytes(token);
  return bytes ? std::move(*bytes) : std::string(token);  // an added token in letters of its own
}

std::string without_signs(std::string_view token, const std::string& sign, std::string_view instead) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at; (at = token.find(sign, done)) != token.npos; done = at + sign.size()) {
    out.append(token, done, at - done);
    out += instead;
  }
  return out.append(token, done);
}

std::string_view stripped(std::string_view text, const std::string& sign, std::int64_t most) {
  for (; most > 0 && text.starts_with(sign); --most) text.remove_prefix(sign.size());
  return text;
}

/// A token of WordPiece: within a word without its prefix, else with a space before it.
std::string wordpiece_text(std::string_view token, const std::string& prefix, bool cleanup, bool first) {
  std::string text = first                       ? std::string(token)
                     : token.starts_with(prefix) ? std::string(token.substr(prefix.size()))
                                                 : " " + std::string(token);
  if (!cleanup) return text;
  // In this order, each over the whole token: what the library does, "do not" included.
  static constexpr std::pair<const char*, std::string_view> kCleanups[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kCleanups) text = without_signs(text, from, to);
  return text;
}

/// Bytes in a row become a text together; if they are none, each becomes U+FFFD.
std::vector<std::string> joined_bytes(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (first_invalid_utf8(bytes) == std::string_view::npos) {
      out.push_back(bytes);
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of_fallback_token(token)) {
      bytes += static_cast<char>(*byte);
    } else {
      flush();
      out.push_back(token);
    }
  }
  flush();
  return out;
}

std::string joined(const std::vector<std::string>& tokens, std::string_view between) {
  std::string out;
  for (const std::string& token : tokens) {
    if (&token != tokens.data()) out += between;
    out += token;
  }
  return out;
}

}  // namespace

std::optional<unsigned char> byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<unsigned char>(value);
}

void TokenDecoder::add(const DecoderPart& part) {
  using Kind = DecoderPart::Kind;
  if (part.kind == Kind::kSequence) {
    for (const DecoderPart& inner : part.parts) add(inner);
    return;
  }
  Step& step =
      steps_.emplace_back(Step{.kind = part.kind, .sign = part.content, .start = part.start, .replacement = {}});
  if (part.kind == Kind::kMetaspace) {
    step.sign = part.metaspace.replacement;
    step.at_first = part.metaspace.scheme != PrependScheme::kNever;
  } else if (part.kind == Kind::kReplace) {
    step.replacement.emplace(part.pattern, part.content);
  } else if (part.kind == Kind::kWordPiece) {
    step.cleanup = part.cleanup;
  }
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  using Kind = DecoderPart::Kind;
  if (steps_.empty()) return joined(tokens, " ");
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel: {
        std::string bytes;
        for (const std::string& token : tokens) bytes += byte_level_bytes(token);
        tokens = {with_replacement_characters(bytes)};
        break;
      }
      case Kind::kMetaspace:
        for (std::string& token : tokens)
          token = without_signs(token, step.sign, step.at_first && &token == tokens.data() ? "" : " ");
        break;
      case Kind::kWordPiece:
        for (std::string& token : tokens)
          token = wordpiece_text(token, step.sign, step.cleanup, &token == tokens.data());
        break;
      case Kind::kReplace:
        for (std::string& token : tokens) token = step.replacement->apply(token);
        break;
      case Kind::kByteFallback:
        tokens = joined_bytes(tokens);
        break;
      case Kind::kFuse:
        tokens = {joined(tokens, "")};
        break;
      case Kind::kStrip:
        for (std::string& token : tokens) token = std::string(stripped(token, step.sign, step.start));
        break;
      case Kind::kSequence:
        break;  // add() has taken it apart
    }
  }
  return joined(tokens, "");
}

std::string TokenDecoder::bytes_of(std::string_view token) const { return bytes_of(token, false); }
std::string TokenDecoder::first_bytes_of(std::string_view token) const { return bytes_of(token, true); }

std::string TokenDecoder::bytes_of(std::string_view token, bool first) const {
  using Kind = DecoderPart::Kind;
  std::string out(token);
  bool fused = false;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kByteLevel) {
      out = byte_level_bytes(out);
    } else if (step.kind == Kind::kMetaspace) {
      out = without_signs(out, step.sign, step.at_first && first ? "" : " ");
    } else if (step.kind == Kind::kWordPiece) {
      out = wordpiece_text(out, step.sign, step.cleanup, first);
    } else if (step.kind == Kind::kReplace) {
      out = step.replacement->apply(out);
    } else if (step.kind == Kind::kByteFallback) {
      if (const auto byte = byte_of_fallback_token(out)) return std::string(1, static_cast<char>(*byte));
    } else if (step.kind == Kind::kStrip && (first || !fused)) {
      out = std::string(stripped(out, step.sign, step.start));
    }
    fused |= step.kind == Kind::kFuse;
  }
  return out;
}

}  // namespace trireme::data
