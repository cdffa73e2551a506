#include "trireme/data/tokenizer/read_parts.h"

#include <algorithm>
#include <array>

#include "trireme/base/text.h"
#include "trireme/data/tokenizer/split_pattern.h"
#include "trireme/formats/utf8.h"

namespace trireme::data {
namespace {

using formats::shown;

[[noreturn]] void refuse_kind(const JsonSection& section, std::string_view type, std::vector<std::string> known) {
  section.fail(fmt::format("the type {} is not supported{}", shown(type), did_you_mean(type, known)),
               fmt::format("supported here: {}", listed(known)));
}

std::string one_character(const JsonSection& section) {
  std::string text = section.text();
  if (text.empty() || formats::utf8_length(text) != text.size()) section.fail("exactly one character is expected");
  return text;
}

Pattern read_pattern(JsonSection section) {
  Pattern pattern;
  if (section.has("String")) {
    pattern.text = section.text("String");
    if (pattern.text.empty()) section.fail("the pattern is empty");
  } else if (section.has("Regex")) {
    pattern = {.regex = true, .text = section.text("Regex")};
    try {
      SplitPattern check(pattern.text);
    } catch (const Error& error) {
      section.fail(error.message(), error.hint());
    }
  } else {
    section.fail("a pattern is {\"String\": ...} or {\"Regex\": ...}");
  }
  section.end();
  return pattern;
}

ByteLevelPart read_byte_level(JsonSection& section) {
  ByteLevelPart part;
  part.add_prefix_space = section.flag("add_prefix_space", true);
  part.trim_offsets = section.flag("trim_offsets", true);
  part.use_regex = section.flag("use_regex", true);
  return part;
}

MetaspacePart read_metaspace(JsonSection& section) {
  MetaspacePart part{.replacement = one_character(section.at("replacement"))};
  if (section.has("prepend_scheme")) {
    const std::string scheme = section.text("prepend_scheme");
    part.scheme = scheme == "always"  ? PrependScheme::kAlways
                  : scheme == "first" ? PrependScheme::kFirst
                  : scheme == "never" ? PrependScheme::kNever
                                      : (section.at("prepend_scheme").fail("always, first or never is expected"),
                                         PrependScheme::kNever);
  } else if (!section.flag("add_prefix_space", true)) {  // what files said before there was a scheme
    part.scheme = PrependScheme::kNever;
  }
  if (section.has("add_prefix_space") && section.flag("add_prefix_space") != (part.scheme != PrependScheme::kNever))
    section.fail("add_prefix_space and prepend_scheme contradict each other");
  part.split = section.flag("split", true);
  section.allow("prepend_scheme");
  section.allow("str_rep");  // a copy of `replacement` in old files
  return part;
}

template <typename Part>
std::vector<Part> read_parts(JsonSection& section, const std::string& key, Part (*read)(JsonSection)) {
  std::vector<Part> parts;
  for (JsonSection& item : section.list(key)) parts.push_back(read(std::move(item)));
  return parts;
}

std::vector<TemplatePiece> read_template(JsonSection& section, const std::string& key) {
  std::vector<TemplatePiece> pieces;
  for (JsonSection& item : section.list(key)) {
    const bool sequence = item.has("Sequence");
    JsonSection inner = item.at(sequence ? "Sequence" : "SpecialToken");
    TemplatePiece piece;
    (sequence ? piece.sequence : piece.token) = inner.text("id");
    if (sequence && piece.sequence != "A" && piece.sequence != "B") inner.fail("the id must be A or B");
    piece.type_id = inner.number("type_id");
    inner.end();
    item.end();
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

void check_template(const JsonSection& section, const PostProcessorPart& part) {
  int texts = 0;
  for (const TemplatePiece& piece : part.single) {
    if (piece.sequence == "B") section.fail("single holds the sequence B: there is only one text, A");
    texts += piece.sequence == "A";
    const bool known = piece.token.empty() || std::ranges::any_of(part.special_tokens, [&](const TemplateToken& token) {
                         return token.name == piece.token;
                       });
    if (!known) section.fail(fmt::format("single holds {}, which special_tokens lacks", shown(piece.token)));
  }
  if (texts != 1) section.fail(fmt::format("single holds the text {} times; it must be there once", texts));
}

}  // namespace

NormalizerPart read_normalizer(JsonSection section) {
  NormalizerPart part;
  const std::string type = section.text("type");
  if (type == "NFC") {
    part.kind = NormalizerPart::Kind::kNfc;
  } else if (type == "Prepend") {
    part.kind = NormalizerPart::Kind::kPrepend;
    part.content = section.text("prepend");
  } else if (type == "Replace") {
    part.kind = NormalizerPart::Kind::kReplace;
    part.pattern = read_pattern(section.at("pattern"));
    part.content = section.text("content");
  } else if (type == "Sequence") {
    part.kind = NormalizerPart::Kind::kSequence;
    part.parts = read_parts(section, "normalizers", &read_normalizer);
  } else {
    refuse_kind(section, type, {"NFC", "Prepend", "Replace", "Sequence"});
  }
  section.end();
  return part;
}

PreTokenizerPart read_pre_tokenizer(JsonSection section) {
  using Kind = PreTokenizerPart::Kind;
  PreTokenizerPart part;
  const std::string type = section.text("type");
  if (type == "ByteLevel") {
    part.kind = Kind::kByteLevel;
    part.byte_level = read_byte_level(section);
  } else if (type == "Metaspace") {
    part.kind = Kind::kMetaspace;
    part.metaspace = read_metaspace(section);
  } else if (type == "Split") {
    part.kind = Kind::kSplit;
    part.pattern = read_pattern(section.at("pattern"));
    static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors{
        {{"Removed", SplitBehavior::kRemoved},
         {"Isolated", SplitBehavior::kIsolated},
         {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
         {"MergedWithNext", SplitBehavior::kMergedWithNext},
         {"Contiguous", SplitBehavior::kContiguous}}};
    const std::string behavior = section.text("behavior");
    const auto found = std::ranges::find(kBehaviors, behavior, [](const auto& entry) { return entry.first; });
    if (found == kBehaviors.end()) section.fail(fmt::format("the behavior {} is not known", shown(behavior)));
    part.behavior = found->second;
    part.invert = section.flag("invert", false);
  } else if (type == "Sequence") {
    part.kind = Kind::kSequence;
    part.parts = read_parts(section, "pretokenizers", &read_pre_tokenizer);
  } else {
    refuse_kind(section, type, {"ByteLevel", "Split", "Metaspace", "Sequence"});
  }
  section.end();
  return part;
}

PostProcessorPart read_post_processor(JsonSection section) {
  PostProcessorPart part;
  const std::string type = section.text("type");
  if (type == "ByteLevel") {
    part.kind = PostProcessorPart::Kind::kByteLevel;
    part.byte_level = read_byte_level(section);
  } else if (type == "TemplateProcessing") {
    part.kind = PostProcessorPart::Kind::kTemplate;
    part.single = read_template(section, "single");
    part.pair = read_template(section, "pair");
    JsonSection tokens = section.at("special_tokens");
    for (const std::string& name : tokens.keys()) {
      JsonSection entry = tokens.at(name);
      TemplateToken token{.name = name};
      if (entry.text("id") != name) entry.fail("id and key differ");
      for (const JsonSection& id : entry.list("ids")) token.ids.push_back(id.number());
      for (const JsonSection& text : entry.list("tokens")) token.tokens.push_back(text.text());
      entry.end();
      part.special_tokens.push_back(std::move(token));
    }
    std::ranges::sort(part.special_tokens, {}, &TemplateToken::name);
    check_template(section, part);
  } else if (type == "Sequence") {
    part.kind = PostProcessorPart::Kind::kSequence;
    part.parts = read_parts(section, "processors", &read_post_processor);
  } else {
    refuse_kind(section, type, {"ByteLevel", "TemplateProcessing", "Sequence"});
  }
  section.end();
  return part;
}

DecoderPart read_decoder(JsonSection section) {
  using Kind = DecoderPart::Kind;
  DecoderPart part;
  const std::string type = section.text("type");
  if (type == "ByteLevel") {
    part.kind = Kind::kByteLevel;
    part.byte_level = read_byte_level(section);
  } else if (type == "Metaspace") {
    part.kind = Kind::kMetaspace;
    part.metaspace = read_metaspace(section);
  } else if (type == "Replace") {
    part.kind = Kind::kReplace;
    part.pattern = read_pattern(section.at("pattern"));
    part.content = section.text("content");
  } else if (type == "ByteFallback" || type == "Fuse") {
    part.kind = type == "Fuse" ? Kind::kFuse : Kind::kByteFallback;
  } else if (type == "Strip") {
    part.kind = Kind::kStrip;
    part.content = one_character(section.at("content"));
    part.start = section.number("start");
    if (section.number("stop") != 0)
      section.at("stop").fail("stripping at the end is not supported",
                              "text is given out as it is generated: set it to 0");
  } else if (type == "Sequence") {
    part.kind = Kind::kSequence;
    part.parts = read_parts(section, "decoders", &read_decoder);
  } else {
    refuse_kind(section, type, {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "Sequence"});
  }
  section.end();
  return part;
}

AddedToken read_added_token(JsonSection section) {
  AddedToken token;
  token.id = section.number("id");
  token.content = section.text("content");
  if (token.content.empty()) section.at("content").fail("a token must have letters");
  token.single_word = section.flag("single_word");
  token.lstrip = section.flag("lstrip");
  token.rstrip = section.flag("rstrip");
  token.normalized = section.flag("normalized");
  token.special = section.flag("special");
  section.end();
  return token;
}

}  // namespace trireme::data
