// data/tokenizer/tokenizer.h -- text to token ids and back.
//
//   const auto tokenizer = data::load_tokenizer("models/llama");     // or a tokenizer.json, or the word "bytes"
//   const std::vector<std::int32_t> ids = tokenizer->encode("Hello", {.add_special = true});
//   const std::string text = tokenizer->decode(ids);
//
// Results are those of the Hugging Face tokenizers library for the same tokenizer.json (docs/tokenizers.md has the
// exceptions). All calls are const and can be made by several threads at once.
// Depends on: description and what is built from it; formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"

namespace trireme::data {

struct EncodeOptions {
  bool add_special = true;  ///< what the tokenizer puts around a text, as a begin-of-text token
};
struct DecodeOptions {
  bool skip_special = true;  ///< special tokens become nothing
};

/// Tokens that mean something to a training run; where they come from is in docs/tokenizers.md.
struct TokenRoles {
  std::optional<std::int32_t> bos = {}, eos = {};
  std::optional<std::int32_t> pad = {}, mask = {}, cls = {}, sep = {};  ///< of tokenizers that have a mask token
};

class Tokenizer {
 public:
  /// Every byte is a token, 0 to 255; 256 ends a text.
  static std::unique_ptr<Tokenizer> bytes();
  /// `source` names it in messages.
  Tokenizer(TokenizerDescription description, std::string source);
  ~Tokenizer();

  /// ConfigError with the byte when the text is not UTF-8; the tokenizer "bytes" takes any bytes.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
  /// Appends to `ids`.
  void encode(std::string_view text, EncodeOptions options, std::vector<std::int32_t>& ids) const;
  /// Always UTF-8: what is none becomes U+FFFD. ConfigError for a number that no token has.
  std::string decode(std::span<const std::int32_t> ids, DecodeOptions options = {}) const;

  /// One more than the largest token id: the rows that an embedding needs.
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(bytes_.size()); }
  /// The bytes that a token stands for in the middle of a text; none for special tokens and numbers without a token.
  /// Their lengths are what bits per byte are counted by.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// The token that is written like this in tokenizer.json.
  std::optional<std::int32_t> find(std::string_view content) const;
  const TokenRoles& roles() const { return roles_; }
  void set_roles(TokenRoles roles) { roles_ = roles; }

  /// Differs when tokens may: a hash of what save() writes, never 0. "bytes" has one too.
  std::uint64_t hash() const { return hash_; }
  const std::string& source() const { return source_; }
  bool is_bytes() const { return pipeline_ == nullptr; }
  /// A tokenizer.json that the Hugging Face library reads. ConfigError for "bytes", which has no file.
  void save(const std::filesystem::path& path) const;

 private:
  friend class StreamDecoder;
  struct Pipeline;

  Tokenizer();
  void check_id(std::int32_t id) const;

  std::string source_;
  std::uint64_t hash_ = 0;
  TokenizerDescription description_;
  std::unique_ptr<Pipeline> pipeline_;  // null: bytes
  std::vector<std::string> texts_;      // by number, as tokenizer.json has them
  std::vector<std::string> bytes_;      // by number
  std::vector<bool> special_, present_;
  TokenRoles roles_;
};

/// Text as tokens come, for generation: a character is given out when its last byte is there.
class StreamDecoder {
 public:
  /// Borrows the tokenizer.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// What became certain with this token; special tokens give nothing.
  std::string push(std::int32_t id);
  /// The rest, with U+FFFD for characters that were not finished.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool begun_ = false;
};

/// "bytes"; a tokenizer.json; or a folder that holds one. A tokenizer_config.json beside it tells the roles of tokens.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path_or_name);

}  // namespace trireme::data
