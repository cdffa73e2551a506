// A tokenizer.json, from text to description: the outer object, and what its sections must have in common.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/read_parts.h"
#include "trireme/formats/json_reader.h"
#include "trireme/formats/json_text.h"
#include "trireme/formats/utf8.h"

namespace trireme::data {
namespace {

using formats::JsonReader;
using formats::shown;

/// A section that is small: as a tree.
template <typename Read>
auto read_section(JsonReader& json, std::string_view source, const std::string& path, Read&& read) {
  const std::uint64_t byte = json.value_position();
  const nlohmann::ordered_json tree = formats::parse_json(json.raw(), source, byte);
  return read(JsonSection(tree, {.source = source, .byte = byte}, path));
}

/// The numbers that the format gives to added tokens: that of the vocabulary, or the next after all.
void check_added_tokens(const JsonReader& json, std::uint64_t byte, const TokenizerDescription& made) {
  std::unordered_map<std::string_view, std::int32_t> numbers;
  for (const auto& [token, id] : made.vocabulary()) numbers.emplace(token, id);
  const auto vocabulary = static_cast<std::int32_t>(made.vocabulary().size());
  std::unordered_set<std::string_view> seen;
  std::int32_t largest = -1;
  for (std::size_t i = 0; i < made.added_tokens.size(); ++i) {
    const AddedToken& token = made.added_tokens[i];
    const std::string where = fmt::format("added_tokens[{}]", i);
    if (!seen.insert(token.content).second)
      json.fail(byte, fmt::format("{}: {} is there twice", where, shown(token.content)));
    const auto found = numbers.find(token.content);
    const std::int32_t expected = found != numbers.end() ? found->second : std::max(largest + 1, vocabulary);
    if (token.id != expected)
      json.fail(byte,
                fmt::format("{}: {} has the id {}, but the format gives it {}", where, shown(token.content), token.id,
                            expected),
                found != numbers.end() ? "the vocabulary has this token under another id"
                                       : "tokens beside the vocabulary are numbered on from its size, in order");
    largest = std::max(largest, token.id);
  }
}

/// A template may put only tokens that there are.
void check_templates(const JsonReader& json, std::uint64_t byte, const PostProcessorPart& part,
                     const TokenizerDescription& made) {
  const auto there = [&](std::int32_t id) {
    const auto& vocabulary = made.vocabulary();
    const auto found = std::ranges::lower_bound(vocabulary, id, {}, [](const auto& token) { return token.second; });
    return (found != vocabulary.end() && found->second == id) ||
           std::ranges::find(made.added_tokens, id, &AddedToken::id) != made.added_tokens.end();
  };
  for (const TemplateToken& token : part.special_tokens) {
    for (const std::int32_t id : token.ids) {
      if (!there(id))
        json.fail(byte,
                  fmt::format("post_processor: {} stands for the token {}, which there is not", shown(token.name), id));
    }
  }
  for (const PostProcessorPart& inner : part.parts) check_templates(json, byte, inner, made);
}

/// ByteLevel changes letters, so nothing can come after it.
void check_steps(const JsonReader& json, std::uint64_t byte, const PreTokenizerPart& part, bool last,
                 const std::string& path) {
  using Kind = PreTokenizerPart::Kind;
  if (part.kind == Kind::kByteLevel && !last)
    json.fail(byte, fmt::format("{}: ByteLevel is supported only as the last pre-tokenizer", path));
  for (std::size_t i = 0; i < part.parts.size(); ++i)
    check_steps(json, byte, part.parts[i], last && i + 1 == part.parts.size(),
                fmt::format("{}.pretokenizers[{}]", path, i));
}

/// Whether a replacement may take several characters away at once.
bool replaces_runs(const NormalizerPart& part) {
  const std::string& text = part.pattern.text;
  if (part.kind == NormalizerPart::Kind::kReplace)
    return part.pattern.regex || formats::utf8_length(text) != text.size();
  return std::ranges::any_of(part.parts, &replaces_runs);
}
/// Whether characters at the beginning may be taken away.
bool drops_characters(const NormalizerPart& part) {
  using Kind = NormalizerPart::Kind;
  switch (part.kind) {
    case Kind::kStrip:
    case Kind::kStripAccents:
    case Kind::kBert:
    case Kind::kNmt:
    case Kind::kPrecompiled:
      return true;
    default:
      return std::ranges::any_of(part.parts, &drops_characters);
  }
}
bool marks_the_first(const PreTokenizerPart& part) {
  if (part.kind == PreTokenizerPart::Kind::kMetaspace) return part.metaspace.scheme == PrependScheme::kFirst;
  return std::ranges::any_of(part.parts, &marks_the_first);
}

}  // namespace

TokenizerDescription parse_tokenizer_json(std::string_view text, std::string_view source) {
  JsonReader json(text, source);
  TokenizerDescription made;
  std::unordered_set<std::string> seen;
  std::uint64_t added_byte = 0, pre_byte = 0, post_byte = 0;
  json.object([&](const std::string& key) {
    const std::uint64_t at = json.value_position();
    if (!seen.insert(key).second) json.fail(json.key_position(), fmt::format("the key {} is there twice", shown(key)));
    if (key == "version") {
      if (const std::string version = json.string(); version != "1.0")
        json.fail(at, fmt::format("the version is {}; only 1.0 is known", shown(version)));
    } else if (key == "model") {
      made.model = read_model(json);
    } else if (key == "added_tokens") {
      added_byte = at;
      std::size_t number = 0;
      json.array([&] {
        made.added_tokens.push_back(
            read_section(json, source, fmt::format("added_tokens[{}]", number++), &read_added_token));
      });
    } else if (json.peek() == JsonReader::Kind::kNull) {
      json.null();
    } else if (key == "normalizer") {
      made.normalizer = read_section(json, source, key, &read_normalizer);
    } else if (key == "pre_tokenizer") {
      pre_byte = at;
      made.pre_tokenizer = read_section(json, source, key, &read_pre_tokenizer);
    } else if (key == "post_processor") {
      post_byte = at;
      made.post_processor = read_section(json, source, key, &read_post_processor);
    } else if (key == "decoder") {
      made.decoder = read_section(json, source, key, &read_decoder);
    } else if (key == "truncation" || key == "padding") {
      json.fail(at, fmt::format("{}: is not supported, as it would change how long texts become", key),
                "set it to null");
    } else {
      json.fail(json.key_position(), fmt::format("the key {} is not supported", shown(key)));
    }
  });
  json.end();
  if (!seen.contains("model")) json.fail(0, "the key \"model\" is missing", "is this a tokenizer.json?");
  std::ranges::stable_sort(made.added_tokens, {}, &AddedToken::id);
  check_added_tokens(json, added_byte, made);
  if (made.post_processor) check_templates(json, post_byte, *made.post_processor, made);
  if (made.pre_tokenizer) check_steps(json, pre_byte, *made.pre_tokenizer, true, "pre_tokenizer");
  // What is first is told by offsets into the text before it was normalized, and these move where a run is replaced.
  if (made.pre_tokenizer && made.normalizer && marks_the_first(*made.pre_tokenizer) && replaces_runs(*made.normalizer))
    json.fail(pre_byte,
              "pre_tokenizer: Metaspace with prepend_scheme \"first\" is not supported after a Replace of several "
              "characters");
  if (made.pre_tokenizer && made.normalizer && marks_the_first(*made.pre_tokenizer) &&
      drops_characters(*made.normalizer))
    json.fail(pre_byte,
              "pre_tokenizer: Metaspace with prepend_scheme \"first\" is not supported after a normalizer that takes "
              "characters away");
  return made;
}

bool is_byte_level(const TokenizerDescription& description) {
  if (!description.pre_tokenizer) return false;
  const PreTokenizerPart* part = &*description.pre_tokenizer;
  while (part->kind == PreTokenizerPart::Kind::kSequence && !part->parts.empty()) part = &part->parts.back();
  return part->kind == PreTokenizerPart::Kind::kByteLevel;
}

}  // namespace trireme::data
