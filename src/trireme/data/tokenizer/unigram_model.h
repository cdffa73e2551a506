// data/tokenizer/unigram_model.h -- SentencePiece's unigram model, T5's and XLM-R's: of all ways to cut a text into
// tokens the one with the largest sum of scores, found by Viterbi's algorithm.
//
// A character that is no token costs ten more than the worst token. Unknown characters in a row are one unknown text:
// its bytes where there is a token for each (byte fallback), else one unknown token. Sums are made in the order, and
// ties broken in the way, of the Hugging Face library, as both decide results.
// Depends on: description, token_trie, word_cache.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/token_trie.h"
#include "trireme/data/tokenizer/word_cache.h"

namespace trireme::data {

class UnigramModel {
 public:
  struct Scratch {
    WordCache cache;
    struct Best {  ///< path to a place in the text
      double score = 0;
      std::int64_t begin = -1;  ///< of its last token; -1: there is no path yet
      std::int32_t id = -1;
    };
    std::vector<Best> best;
    std::vector<std::int32_t> ids;
  };

  explicit UnigramModel(const UnigramDescription& description);

  /// Appends the tokens of one piece. ConfigError where a character is unknown and there is no unknown token.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  void find_best(std::string_view piece, std::vector<Scratch::Best>& best) const;
  void add_unknown(std::string_view text, std::vector<std::int32_t>& reversed) const;

  TokenTrie trie_;
  std::vector<double> scores_;
  double unk_score_ = 0;
  std::int32_t unk_ = -1;  // -1: there is none
  bool byte_fallback_;
  std::int32_t bytes_[256];  // fallback tokens; -1: none
};

/// A score as the library has it after reading a file: its JSON reader divides the digits by a power of ten, which
/// rounds twice. Scores that differ in their last bit decide between "!" "!!" and "!!" "!", so this is done too.
double score_as_read(double written);

}  // namespace trireme::data
