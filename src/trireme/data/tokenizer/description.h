// data/tokenizer/description.h -- a tokenizer as data: what a tokenizer.json says, checked, before anything is built
// from it.
//
// Reading and writing know only this; data/tokenizer/tokenizer.h builds from it what encodes and decodes. The parts
// have the names of the file format. A part that we do not have is refused when the file is read, with its place: what
// is here is all that decides results.
// Depends on: std.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// What is looked for in a text: the text itself, or a regular expression.
struct Pattern {
  bool regex = false;
  std::string text;
};

struct NormalizerPart {
  enum class Kind : std::uint8_t { kNfc, kPrepend, kReplace, kSequence };
  Kind kind = Kind::kNfc;
  Pattern pattern;                    ///< kReplace
  std::string content;                ///< kPrepend, kReplace
  std::vector<NormalizerPart> parts;  ///< kSequence
};

enum class SplitBehavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme : std::uint8_t { kAlways, kFirst, kNever };

/// ByteLevel stands in files as pre-tokenizer, post-processor and decoder with the same members.
struct ByteLevelPart {
  bool add_prefix_space = true;
  bool trim_offsets = true;  ///< offsets into the text, which we do not give: kept for writing
  bool use_regex = true;
};
struct MetaspacePart {
  std::string replacement;  ///< one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};

struct PreTokenizerPart {
  enum class Kind : std::uint8_t { kByteLevel, kSplit, kMetaspace, kSequence };
  Kind kind = Kind::kByteLevel;
  ByteLevelPart byte_level;
  MetaspacePart metaspace;
  Pattern pattern;  ///< kSplit, as the next two
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  std::vector<PreTokenizerPart> parts;  ///< kSequence
};

/// A place in a template: the text (token empty) or a special token.
struct TemplatePiece {
  std::string sequence;  ///< "A" or "B"; empty: a special token
  std::string token;
  std::int64_t type_id = 0;
};
struct TemplateToken {
  std::string name;
  std::vector<std::int32_t> ids;
  std::vector<std::string> tokens;
};

struct PostProcessorPart {
  enum class Kind : std::uint8_t { kByteLevel, kTemplate, kSequence };
  Kind kind = Kind::kByteLevel;
  ByteLevelPart byte_level;
  std::vector<TemplatePiece> single, pair;    ///< kTemplate; pair is kept for writing
  std::vector<TemplateToken> special_tokens;  ///< kTemplate, by name
  std::vector<PostProcessorPart> parts;       ///< kSequence
};

struct DecoderPart {
  enum class Kind : std::uint8_t { kByteLevel, kMetaspace, kReplace, kByteFallback, kFuse, kStrip, kSequence };
  Kind kind = Kind::kByteLevel;
  ByteLevelPart byte_level;
  MetaspacePart metaspace;
  Pattern pattern;         ///< kReplace
  std::string content;     ///< kReplace, kStrip: one character
  std::int64_t start = 0;  ///< kStrip: so many from the beginning of each text
  std::vector<DecoderPart> parts;
};

/// A token that is found in the text before anything else is done with it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false;
  bool normalized = false;  ///< looked for in the normalized text
  bool special = false;     ///< left out by decoding; stands for no bytes
};

struct BpeMerge {
  std::int32_t left = 0, right = 0, result = 0;
};
struct BpeDescription {
  std::vector<std::pair<std::string, std::int32_t>>
      vocabulary;                ///< by number; byte-level tokens in letters of the format
  std::vector<BpeMerge> merges;  ///< the first to merge first
  std::optional<std::string> unk_token;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
};

struct TokenizerDescription {
  std::vector<AddedToken> added_tokens;  ///< by number
  std::optional<NormalizerPart> normalizer;
  std::optional<PreTokenizerPart> pre_tokenizer;
  std::optional<PostProcessorPart> post_processor;
  std::optional<DecoderPart> decoder;
  BpeDescription model;
};

/// FormatError with file, place and byte for everything that is not a tokenizer.json of these parts.
TokenizerDescription parse_tokenizer_json(std::string_view text, std::string_view source);
/// The same tokenizer in the very form the Hugging Face library writes.
std::string tokenizer_json(const TokenizerDescription& description);

/// The pre-tokenizer is, or ends with, ByteLevel: the model's letters are bytes.
bool is_byte_level(const TokenizerDescription& description);

}  // namespace trireme::data
