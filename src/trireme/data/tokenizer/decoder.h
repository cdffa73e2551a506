// data/tokenizer/decoder.h -- from the texts of tokens back to text, step by step as a tokenizer.json says.
//
// Depends on: description, normalizer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/normalizer.h"

namespace trireme::data {

class TokenDecoder {
 public:
  /// Without a part, tokens are joined with spaces between.
  TokenDecoder() = default;
  explicit TokenDecoder(const DecoderPart& part) { add(part); }

  /// The text of tokens in a row; what is no UTF-8 is replaced as the Hugging Face library replaces it.
  std::string decode(std::vector<std::string> tokens) const;

  /// The bytes one token stands for in the middle of a text.
  std::string bytes_of(std::string_view token) const;
  /// The same at the beginning of a text, where steps take a space away.
  std::string first_bytes_of(std::string_view token) const;

 private:
  struct Step {
    DecoderPart::Kind kind;
    std::string sign;       // kMetaspace: what stands for a space; kStrip: what is taken away; kWordPiece: the prefix
    bool cleanup = false;   // kWordPiece
    bool at_first = false;  // kMetaspace: the first token loses its signs
    std::int64_t start = 0;
    std::optional<Replacement> replacement;
  };
  void add(const DecoderPart& part);
  std::string bytes_of(std::string_view token, bool first) const;

  std::vector<Step> steps_;
};

/// "<0x0A>" as the byte it stands for.
std::optional<unsigned char> byte_of_fallback_token(std::string_view token);

}  // namespace trireme::data
