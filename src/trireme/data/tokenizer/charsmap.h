// data/tokenizer/charsmap.h -- SentencePiece's character map (precompiled_charsmap), which T5, mT5 and XLM-R normalize
// with.
//
// The map is a double-array trie (Darts) of UTF-8 texts, then the texts they become, ended by zeros. The Hugging Face
// library asks it for each grapheme cluster of less than six bytes, then for each character; of texts that begin alike
// it takes the shortest. Ours does the same, cluster by cluster.
// Depends on: utf8proc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class Charsmap {
 public:
  /// ConfigError when it is no base64, or the trie and its texts do not fit.
  explicit Charsmap(std::string_view base64);

  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view key) const;
  void append(std::string_view cluster, std::string& out) const;

  std::vector<std::uint32_t> trie_;
  std::string texts_;
};

/// Nothing where the text is no base64 with padding.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace trireme::data
