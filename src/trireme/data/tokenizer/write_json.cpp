// A tokenizer.json, from description to text: members in the order, and white space in the form, of the Hugging Face
// library.
#include <array>

#include "trireme/data/tokenizer/description.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {
namespace {

using formats::json_string;

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
    if (part.kind == Kind::kSequence) return write_sequence(out, "normalizers", part.parts);
    if (part.kind == Kind::kNfc) return out.member("type", "NFC");
    out.member("type", part.kind == Kind::kPrepend ? "Prepend" : "Replace");
    if (part.kind == Kind::kPrepend) return out.member("prepend", part.content);
    out.key("pattern");
    write(out, part.pattern);
    out.member("content", part.content);
  });
}

void write(Writer& out, const PreTokenizerPart& part) {
  using Kind = PreTokenizerPart::Kind;
  static constexpr std::array<std::string_view, 5> kBehaviors{"Removed", "Isolated", "MergedWithPrevious",
                                                              "MergedWithNext", "Contiguous"};
  out.object([&] {
    if (part.kind == Kind::kSequence) return write_sequence(out, "pretokenizers", part.parts);
    if (part.kind == Kind::kByteLevel) return write(out, part.byte_level);
    if (part.kind == Kind::kMetaspace) return write(out, part.metaspace);
    out.member("type", "Split");
    out.key("pattern");
    write(out, part.pattern);
    out.member("behavior", kBehaviors[static_cast<std::size_t>(part.behavior)]);
    out.member("invert", part.invert);
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
    out.key("vocab");
    out.object([&] {
      for (const auto& [token, id] : model.vocabulary) out.member(token, std::int64_t{id});
    });
    out.key("merges");
    out.array(model.merges, [&](const BpeMerge& merge) {
      out.array(std::array{merge.left, merge.right},
                [&](std::int32_t id) { out.text(*names[static_cast<std::size_t>(id)]); });
    });
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
    write_model(out, description.model);
  });
  return out.take();
}

}  // namespace trireme::data
