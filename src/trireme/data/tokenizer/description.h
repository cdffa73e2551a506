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
#include <variant>
#include <vector>

namespace trireme::data {

/// What is looked for in a text: the text itself, or a regular expression.
struct Pattern {
  bool regex = false;
  std::string text;
};

struct NormalizerPart {
  enum class Kind : std::uint8_t {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,
    kNmt,
    kStrip,
    kBert,
    kPrecompiled,
    kPrepend,
    kReplace,
    kSequence,
  };
  Kind kind = Kind::kNfc;
  Pattern pattern;                             ///< kReplace
  std::string content;                         ///< kPrepend, kReplace; kPrecompiled: the character map in base64
  bool strip_left = true, strip_right = true;  ///< kStrip
  bool clean_text = true, handle_chinese_chars = true, lowercase = true;  ///< kBert
  std::optional<bool> strip_accents = {};                                 ///< kBert; nothing: as `lowercase`
  std::vector<NormalizerPart> parts;                                      ///< kSequence
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
  enum class Kind : std::uint8_t {
    kByteLevel,
    kSplit,
    kMetaspace,
    kBert,
    kWhitespace,
    kWhitespaceSplit,
    kPunctuation,
    kDigits,
    kSequence,
  };
  Kind kind = Kind::kByteLevel;
  ByteLevelPart byte_level;
  MetaspacePart metaspace;
  Pattern pattern;                                    ///< kSplit
  SplitBehavior behavior = SplitBehavior::kIsolated;  ///< kSplit, kPunctuation
  bool invert = false;                                ///< kSplit
  bool individual_digits = false;                     ///< kDigits
  std::vector<PreTokenizerPart> parts;                ///< kSequence
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
  enum class Kind : std::uint8_t { kByteLevel, kTemplate, kBert, kRoberta, kSequence };
  Kind kind = Kind::kByteLevel;
  ByteLevelPart byte_level;                   ///< kByteLevel, kRoberta without use_regex
  std::vector<TemplatePiece> single, pair;    ///< pair is kept for writing; kBert, kRoberta: cls, the text, sep
  std::vector<TemplateToken> special_tokens;  ///< by name; kBert, kRoberta: sep, cls
  std::vector<PostProcessorPart> parts;       ///< kSequence
};

struct DecoderPart {
  enum class Kind : std::uint8_t {
    kByteLevel,
    kMetaspace,
    kWordPiece,
    kReplace,
    kByteFallback,
    kFuse,
    kStrip,
    kSequence
  };
  Kind kind = Kind::kByteLevel;
  ByteLevelPart byte_level;
  MetaspacePart metaspace;
  Pattern pattern;         ///< kReplace
  std::string content;     ///< kReplace; kStrip: one character; kWordPiece: what a token within a word begins with
  bool cleanup = true;     ///< kWordPiece: no spaces before punctuation and within English contractions
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
/// By number; byte-level tokens in letters of the format.
using Vocabulary = std::vector<std::pair<std::string, std::int32_t>>;

struct BpeDescription {
  Vocabulary vocabulary;
  std::vector<BpeMerge> merges;  ///< the first to merge first
  std::optional<std::string> unk_token;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
};

struct WordPieceDescription {
  Vocabulary vocabulary;
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";  ///< before a token that does not begin a word
  std::int32_t max_input_chars_per_word = 100;   ///< a longer word is unknown
};
struct UnigramDescription {
  Vocabulary vocabulary;       ///< every number from 0
  std::vector<double> scores;  ///< logarithms of probabilities, by number
  std::optional<std::int32_t> unk_id;
  bool byte_fallback = false;
};
using ModelDescription = std::variant<BpeDescription, WordPieceDescription, UnigramDescription>;

struct TokenizerDescription {
  std::vector<AddedToken> added_tokens;  ///< by number
  std::optional<NormalizerPart> normalizer;
  std::optional<PreTokenizerPart> pre_tokenizer;
  std::optional<PostProcessorPart> post_processor;
  std::optional<DecoderPart> decoder;
  ModelDescription model;

  const Vocabulary& vocabulary() const {
    return std::visit([](const auto& kind) -> const Vocabulary& { return kind.vocabulary; }, model);
  }
};

/// FormatError with file, place and byte for everything that is not a tokenizer.json of these parts.
TokenizerDescription parse_tokenizer_json(std::string_view text, std::string_view source);
/// The same tokenizer in the very form the Hugging Face library writes.
std::string tokenizer_json(const TokenizerDescription& description);

/// The pre-tokenizer is, or ends with, ByteLevel: the model's letters are bytes.
bool is_byte_level(const TokenizerDescription& description);

}  // namespace trireme::data
