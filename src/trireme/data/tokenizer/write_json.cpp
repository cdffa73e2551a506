// A tokenizer.json, from description to text: members in the order, and white space in the form, of the Hugging Face
// library.
#include <array>
#include <charconv>

#include "trireme/data/tokenizer/description.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {
namespace {

using formats::json_string;

/// The shortest digits that give the number back, in the layout of Rust's writer: 1.0, -3.25, 1e-7, 1.5e16.
std::string json_number(double value) {
  char buffer[32];
  const auto made = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(made.ptr - buffer));
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  const int point = exponent + 1, count = static_cast<int>(digits.size());  // digits before the point
  std::string out = negative ? "-" : "";
  if (digits == "0") return out + "0.0";
  const auto zeros = [](int many) { return std::string(static_cast<std::size_t>(many), '0'); };
  if (count <= point && point <= 16) return out + digits + zeros(point - count) + ".0";
  if (0 < point && point <= 16) return out + digits.insert(static_cast<std::size_t>(point), ".");
  if (-5 < point && point <= 0) return out + "0." + zeros(-point) + digits;
  if (count > 1) digits.insert(1, ".");
  return out + digits + "e" + std::to_string(exponent);
}

class Writer {
 public:
  template <typename Body>
  void object(Body&& body) {
    enclosed('{', '}', body);
  }
  template <typename Items, typename Body>
  void array(const Items& items, Body&& body) {
    enclosed('[', ']', [&] {
      for (const auto& item : items) {
        next();
        body(item);
      }
    });
  }
  void key(std::string_view name) {
    next();
    out_ += json_string(name);
    out_ += ": ";
  }
  void member(std::string_view name, std::string_view text) {
    key(name);
    out_ += json_string(text);
  }
  void member(std::string_view name, const char* text) { member(name, std::string_view(text)); }
  void member(std::string_view name, bool value) {
    key(name);
    out_ += value ? "true" : "false";
  }
  void member(std::string_view name, std::int64_t value) {
    key(name);
    out_ += std::to_string(value);
  }
  void null(std::string_view name) {
    key(name);
    out_ += "null";
  }
  void text(std::string_view value) { out_ += json_string(value); }
  void number(std::int64_t value) { out_ += std::to_string(value); }
  void score(double value) { out_ += json_number(value); }
  std::string take() { return std::move(out_); }

 private:
  template <typename Body>
  void enclosed(char open, char close, Body&& body) {
    out_ += open;
    const bool outer = std::exchange(empty_, true);
    ++depth_;
    body();
    --depth_;
    if (!empty_) line();
    empty_ = outer;
    out_ += close;
  }
  void next() {
    if (!empty_) out_ += ',';
    empty_ = false;
    line();
  }
  void line() {
    out_ += '\n';
    out_.append(2 * depth_, ' ');
  }

  std::string out_;
  std::size_t depth_ = 0;
  bool empty_ = true;
};

void write(Writer& out, const Pattern& pattern) {
  out.object([&] { out.member(pattern.regex ? "Regex" : "String", pattern.text); });
}

void write(Writer& out, const ByteLevelPart& part) {
  out.member("type", "ByteLevel");
  out.member("add_prefix_space", part.add_prefix_space);
  out.member("trim_offsets", part.trim_offsets);
  out.member("use_regex", part.use_regex);
}

void write(Writer& out, const MetaspacePart& part) {
  static constexpr std::array<std::string_view, 3> kSchemes{"always", "first", "never"};
  out.member("type", "Metaspace");
  out.member("replacement", part.replacement);
  out.member("prepend_scheme", kSchemes[static_cast<std::size_t>(part.scheme)]);
  out.member("split", part.split);
}

template <typename Part>
void write_sequence(Writer& out, std::string_view name, const std::vector<Part>& parts) {
  out.member("type", "Sequence");
  out.key(name);
  out.array(parts, [&](const Part& part) { write(out, part); });
}

void write(Writer& out, const NormalizerPart& part) {
  using Kind = NormalizerPart::Kind;
  out.object([&] {
    switch (part.kind) {
      case Kind::kSequence:
        return write_sequence(out, "normalizers", part.parts);
      case Kind::kStrip:
        out.member("type", "Strip");
        out.member("strip_left", part.strip_left);
        return out.member("strip_right", part.strip_right);
      case Kind::kBert:
        out.member("type", "BertNormalizer");
        out.member("clean_text", part.clean_text);
        out.member("handle_chinese_chars", part.handle_chinese_chars);
        part.strip_accents ? out.member("strip_accents", *part.strip_accents) : out.null("strip_accents");
        return out.member("lowercase", part.lowercase);
      case Kind::kPrecompiled:
        out.member("type", "Precompiled");
        return out.member("precompiled_charsmap", part.content);
      case Kind::kPrepend:
        out.member("type", "Prepend");
        return out.member("prepend", part.content);
      case Kind::kReplace:
        out.member("type", "Replace");
        out.key("pattern");
        write(out, part.pattern);
        return out.member("content", part.content);
      case Kind::kNfc:
        return out.member("type", "NFC");
      case Kind::kNfd:
        return out.member("type", "NFD");
      case Kind::kNfkc:
        return out.member("type", "NFKC");
      case Kind::kNfkd:
        return out.member("type", "NFKD");
      case Kind::kLowercase:
        return out.member("type", "Lowercase");
      case Kind::kStripAccents:
        return out.member("type", "StripAccents");
      case Kind::kNmt:
        return out.member("type", "Nmt");
    }
  });
}

void write(Writer& out, const PreTokenizerPart& part) {
  using Kind = PreTokenizerPart::Kind;
  static constexpr std::array<std::string_view, 5> kBehaviors{"Removed", "Isolated", "MergedWithPrevious",
                                                              "MergedWithNext", "Contiguous"};
  out.object([&] {
    const auto behavior = [&] { out.member("behavior", kBehaviors[static_cast<std::size_t>(part.behavior)]); };
    switch (part.kind) {
      case Kind::kSequence:
        return write_sequence(out, "pretokenizers", part.parts);
      case Kind::kByteLevel:
        return write(out, part.byte_level);
      case Kind::kMetaspace:
        return write(out, part.metaspace);
      case Kind::kSplit:
        out.member("type", "Split");
        out.key("pattern");
        write(out, part.pattern);
        behavior();
        return out.member("invert", part.invert);
      case Kind::kPunctuation:
        out.member("type", "Punctuation");
        return behavior();
      case Kind::kDigits:
        out.member("type", "Digits");
        return out.member("individual_digits", part.individual_digits);
      case Kind::kBert:
        return out.member("type", "BertPreTokenizer");
      case Kind::kWhitespace:
        return out.member("type", "Whitespace");
      case Kind::kWhitespaceSplit:
        return out.member("type", "WhitespaceSplit");
    }
  });
}

void write_template(Writer& out, std::string_view name, const std::vector<TemplatePiece>& pieces) {
  out.key(name);
  out.array(pieces, [&](const TemplatePiece& piece) {
    out.object([&] {
      out.key(piece.sequence.empty() ? "SpecialToken" : "Sequence");
      out.object([&] {
        out.member("id", piece.sequence.empty() ? piece.token : piece.sequence);
        out.member("type_id", piece.type_id);
      });
    });
  });
}

void write(Writer& out, const PostProcessorPart& part) {
  using Kind = PostProcessorPart::Kind;
  out.object([&] {
    if (part.kind == Kind::kSequence) return write_sequence(out, "processors", part.parts);
    if (part.kind == Kind::kByteLevel) return write(out, part.byte_level);
    if (part.kind == Kind::kBert || part.kind == Kind::kRoberta) {
      out.member("type", part.kind == Kind::kBert ? "BertProcessing" : "RobertaProcessing");
      for (std::size_t i = 0; i < 2; ++i) {
        out.key(i == 0 ? "sep" : "cls");
        out.array(std::array{true, false}, [&](bool name) {
          name ? out.text(part.special_tokens[i].name) : out.number(part.special_tokens[i].ids[0]);
        });
      }
      if (part.kind == Kind::kBert) return;
      out.member("trim_offsets", part.byte_level.trim_offsets);
      return out.member("add_prefix_space", part.byte_level.add_prefix_space);
    }
    out.member("type", "TemplateProcessing");
    write_template(out, "single", part.single);
    write_template(out, "pair", part.pair);
    out.key("special_tokens");
    out.object([&] {
      for (const TemplateToken& token : part.special_tokens) {
        out.key(token.name);
        out.object([&] {
          out.member("id", token.name);
          out.key("ids");
          out.array(token.ids, [&](std::int32_t id) { out.number(id); });
          out.key("tokens");
          out.array(token.tokens, [&](const std::string& text) { out.text(text); });
        });
      }
    });
  });
}

void write(Writer& out, const DecoderPart& part) {
  using Kind = DecoderPart::Kind;
  out.object([&] {
    switch (part.kind) {
      case Kind::kSequence:
        return write_sequence(out, "decoders", part.parts);
      case Kind::kByteLevel:
        return write(out, part.byte_level);
      case Kind::kMetaspace:
        return write(out, part.metaspace);
      case Kind::kWordPiece:
        out.member("type", "WordPiece");
        out.member("prefix", part.content);
        return out.member("cleanup", part.cleanup);
      case Kind::kByteFallback:
        return out.member("type", "ByteFallback");
      case Kind::kFuse:
        return out.member("type", "Fuse");
      case Kind::kReplace:
        out.member("type", "Replace");
        out.key("pattern");
        write(out, part.pattern);
        return out.member("content", part.content);
      case Kind::kStrip:
        out.member("type", "Strip");
        out.member("content", part.content);
        out.member("start", part.start);
        return out.member("stop", std::int64_t{0});
    }
  });
}

void write_vocabulary(Writer& out, const Vocabulary& vocabulary) {
  out.key("vocab");
  out.object([&] {
    for (const auto& [token, id] : vocabulary) out.member(token, std::int64_t{id});
  });
}

void write_model(Writer& out, const BpeDescription& model) {
  std::vector<const std::string*> names;
  for (const auto& [token, id] : model.vocabulary) {
    names.resize(std::max(names.size(), static_cast<std::size_t>(id) + 1));
    names[static_cast<std::size_t>(id)] = &token;
  }
  out.object([&] {
    out.member("type", "BPE");
    out.null("dropout");
    model.unk_token ? out.member("unk_token", *model.unk_token) : out.null("unk_token");
    out.null("continuing_subword_prefix");
    out.null("end_of_word_suffix");
    out.member("fuse_unk", model.fuse_unk);
    out.member("byte_fallback", model.byte_fallback);
    out.member("ignore_merges", model.ignore_merges);
    write_vocabulary(out, model.vocabulary);
    out.key("merges");
    out.array(model.merges, [&](const BpeMerge& merge) {
      out.array(std::array{merge.left, merge.right},
                [&](std::int32_t id) { out.text(*names[static_cast<std::size_t>(id)]); });
    });
  });
}

void write_model(Writer& out, const WordPieceDescription& model) {
  out.object([&] {
    out.member("type", "WordPiece");
    out.member("unk_token", model.unk_token);
    out.member("continuing_subword_prefix", model.continuing_subword_prefix);
    out.member("max_input_chars_per_word", std::int64_t{model.max_input_chars_per_word});
    write_vocabulary(out, model.vocabulary);
  });
}

void write_model(Writer& out, const UnigramDescription& model) {
  out.object([&] {
    out.member("type", "Unigram");
    model.unk_id ? out.member("unk_id", std::int64_t{*model.unk_id}) : out.null("unk_id");
    out.key("vocab");
    out.array(model.vocabulary, [&](const auto& token) {
      out.array(std::array{true, false}, [&](bool text) {
        text ? out.text(token.first) : out.score(model.scores[static_cast<std::size_t>(token.second)]);
      });
    });
    out.member("byte_fallback", model.byte_fallback);
  });
}

template <typename Part>
void write_optional(Writer& out, std::string_view name, const std::optional<Part>& part) {
  if (!part) return out.null(name);
  out.key(name);
  write(out, *part);
}

}  // namespace

std::string tokenizer_json(const TokenizerDescription& description) {
  Writer out;
  out.object([&] {
    out.member("version", "1.0");
    out.null("truncation");
    out.null("padding");
    out.key("added_tokens");
    out.array(description.added_tokens, [&](const AddedToken& token) {
      out.object([&] {
        out.member("id", std::int64_t{token.id});
        out.member("content", token.content);
        out.member("single_word", token.single_word);
        out.member("lstrip", token.lstrip);
        out.member("rstrip", token.rstrip);
        out.member("normalized", token.normalized);
        out.member("special", token.special);
      });
    });
    write_optional(out, "normalizer", description.normalizer);
    write_optional(out, "pre_tokenizer", description.pre_tokenizer);
    write_optional(out, "post_processor", description.post_processor);
    write_optional(out, "decoder", description.decoder);
    out.key("model");
    std::visit([&](const auto& model) { write_model(out, model); }, description.model);
  });
  return out.take();
}

}  // namespace trireme::data
