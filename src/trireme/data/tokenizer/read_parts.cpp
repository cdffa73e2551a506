#include "trireme/data/tokenizer/read_parts.h"

#include <algorithm>
#include <array>

#include "trireme/base/text.h"
#include "trireme/data/tokenizer/charsmap.h"
#include "trireme/data/tokenizer/split_pattern.h"
#include "trireme/formats/utf8.h"

namespace trireme::data {
namespace {

using formats::shown;

[[noreturn]] void refuse_kind(const JsonSection& section, std::string_view type, std::vector<std::string> known) {
  section.fail(fmt::format("the type {} is not supported{}", shown(type), did_you_mean(type, known)),
               fmt::format("supported here: {}", listed(known)));
}

template <typename Kind, std::size_t kCount>
Kind kind_of(JsonSection& section, const std::array<std::pair<std::string_view, Kind>, kCount>& kinds) {
  const std::string type = section.text("type");
  const auto found = std::ranges::find(kinds, type, [](const auto& entry) { return entry.first; });
  if (found != kinds.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, kind] : kinds) known.emplace_back(name);
  refuse_kind(section, type, std::move(known));
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

SplitBehavior read_behavior(JsonSection& section) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors{
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  const std::string behavior = section.text("behavior");
  const auto found = std::ranges::find(kBehaviors, behavior, [](const auto& entry) { return entry.first; });
  if (found == kBehaviors.end()) section.fail(fmt::format("the behavior {} is not known", shown(behavior)));
  return found->second;
}

/// ["[SEP]", 102]
TemplateToken read_named_id(JsonSection& section, const std::string& key) {
  const std::vector<JsonSection> parts = section.list(key);
  if (parts.size() != 2) section.at(key).fail("a token and its id are expected: [\"[SEP]\", 102]");
  const std::string name = parts[0].text();
  return {.name = name, .ids = {parts[1].number()}, .tokens = {name}};
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
  using Kind = NormalizerPart::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 13> kKinds{{{"NFC", Kind::kNfc},
                                                                             {"NFD", Kind::kNfd},
                                                                             {"NFKC", Kind::kNfkc},
                                                                             {"NFKD", Kind::kNfkd},
                                                                             {"Lowercase", Kind::kLowercase},
                                                                             {"StripAccents", Kind::kStripAccents},
                                                                             {"Nmt", Kind::kNmt},
                                                                             {"Strip", Kind::kStrip},
                                                                             {"BertNormalizer", Kind::kBert},
                                                                             {"Precompiled", Kind::kPrecompiled},
                                                                             {"Prepend", Kind::kPrepend},
                                                                             {"Replace", Kind::kReplace},
                                                                             {"Sequence", Kind::kSequence}}};
  NormalizerPart part;
  part.kind = kind_of(section, kKinds);
  switch (part.kind) {
    case Kind::kStrip:
      part.strip_left = section.flag("strip_left");
      part.strip_right = section.flag("strip_right");
      break;
    case Kind::kBert:
      part.clean_text = section.flag("clean_text");
      part.handle_chinese_chars = section.flag("handle_chinese_chars");
      if (section.has("strip_accents")) part.strip_accents = section.flag("strip_accents");
      section.allow("strip_accents");
      part.lowercase = section.flag("lowercase");
      break;
    case Kind::kPrecompiled:
      part.content = section.text("precompiled_charsmap");
      try {
        Charsmap check(part.content);
      } catch (const Error& error) {
        section.fail(error.message(), error.hint());
      }
      break;
    case Kind::kPrepend:
      part.content = section.text("prepend");
      break;
    case Kind::kReplace:
      part.pattern = read_pattern(section.at("pattern"));
      part.content = section.text("content");
      break;
    case Kind::kSequence:
      part.parts = read_parts(section, "normalizers", &read_normalizer);
      break;
    default:
      break;
  }
  section.end();
  return part;
}

PreTokenizerPart read_pre_tokenizer(JsonSection section) {
  using Kind = PreTokenizerPart::Kind;
  static constexpr std::array<std::pair<std::string_view, Kind>, 9> kKinds{{{"ByteLevel", Kind::kByteLevel},
                                                                            {"Split", Kind::kSplit},
                                                                            {"Metaspace", Kind::kMetaspace},
                                                                            {"BertPreTokenizer", Kind::kBert},
                                                                            {"Whitespace", Kind::kWhitespace},
                                                                            {"WhitespaceSplit", Kind::kWhitespaceSplit},
                                                                            {"Punctuation", Kind::kPunctuation},
                                                                            {"Digits", Kind::kDigits},
                                                                            {"Sequence", Kind::kSequence}}};
  PreTokenizerPart part;
  part.kind = kind_of(section, kKinds);
  switch (part.kind) {
    case Kind::kByteLevel:
      part.byte_level = read_byte_level(section);
      break;
    case Kind::kMetaspace:
      part.metaspace = read_metaspace(section);
      break;
    case Kind::kSplit:
      part.pattern = read_pattern(section.at("pattern"));
      part.behavior = read_behavior(section);
      part.invert = section.flag("invert", false);
      break;
    case Kind::kPunctuation:
      if (section.has("behavior")) part.behavior = read_behavior(section);
      section.allow("behavior");
      break;
    case Kind::kDigits:
      part.individual_digits = section.flag("individual_digits");
      break;
    case Kind::kSequence:
      part.parts = read_parts(section, "pretokenizers", &read_pre_tokenizer);
      break;
    default:
      break;
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
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    part.kind = type == "BertProcessing" ? PostProcessorPart::Kind::kBert : PostProcessorPart::Kind::kRoberta;
    part.special_tokens = {read_named_id(section, "sep"), read_named_id(section, "cls")};
    if (part.special_tokens[0].name == part.special_tokens[1].name &&
        part.special_tokens[0].ids != part.special_tokens[1].ids)
      section.fail("sep and cls are one token with two ids");
    part.single = {{.token = part.special_tokens[1].name}, {.sequence = "A"}, {.token = part.special_tokens[0].name}};
    if (part.kind == PostProcessorPart::Kind::kRoberta) {
      part.byte_level.trim_offsets = section.flag("trim_offsets");
      part.byte_level.add_prefix_space = section.flag("add_prefix_space");
    }
  } else if (type == "Sequence") {
    part.kind = PostProcessorPart::Kind::kSequence;
    part.parts = read_parts(section, "processors", &read_post_processor);
  } else {
    refuse_kind(section, type, {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "Sequence"});
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
  } else if (type == "WordPiece") {
    part.kind = Kind::kWordPiece;
    part.content = section.text("prefix");
    part.cleanup = section.flag("cleanup");
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
    refuse_kind(section, type,
                {"ByteLevel", "Metaspace", "WordPiece", "Replace", "ByteFallback", "Fuse", "Strip", "Sequence"});
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
