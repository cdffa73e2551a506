// data/tokenizer/wordpiece_model.h -- WordPiece, BERT's model: the longest token that a word begins with, then the
// longest that goes on, and so on; a word with a part that no token covers is unknown as a whole.
//
// Depends on: description, token_trie, word_cache.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/token_trie.h"
#include "trireme/data/tokenizer/word_cache.h"

namespace trireme::data {

class WordPieceModel {
 public:
  struct Scratch {
    WordCache cache;
    std::vector<std::int32_t> ids;
  };

  explicit WordPieceModel(const WordPieceDescription& description);

  /// Appends the tokens of one word.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  void find_pieces(std::string_view word, std::vector<std::int32_t>& ids) const;

  TokenTrie begins_, continues_;
  std::int32_t unk_ = -1;
  std::size_t most_characters_;
};

}  // namespace trireme::data
