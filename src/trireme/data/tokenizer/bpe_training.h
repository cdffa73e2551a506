// data/tokenizer/bpe_training.h -- learns a byte-level BPE vocabulary from texts.
//
// Words are cut by the pattern and counted, by several threads; then the most frequent pair of neighbours is merged in
// all words, again and again. Of equally frequent pairs the one with the smallest token ids goes first, as in the
// Hugging Face trainer: the same texts give the same vocabulary there, and here for any number of threads.
// Depends on: description, known_patterns.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/base/progress.h"
#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/known_patterns.h"

namespace trireme::data {

struct BpeTrainingOptions {
  std::int32_t vocab_size = 32000;  ///< special tokens and the 256 bytes included; fewer when the texts have no more
  KnownPattern pattern = KnownPattern::kGpt2;                ///< kQwen: in Unicode's form C
  std::vector<std::string> special_tokens{"<|endoftext|>"};  ///< the first numbers
  std::string begin;                                         ///< a special token before every text; empty: none
  std::int64_t least_count = 2;                              ///< pairs that are less frequent are not merged
  Progress::Output progress = Progress::to_stderr();
};

/// How often each word occurs.
using WordCounts = std::unordered_map<std::string, std::int64_t>;

/// Cuts texts into words as the tokenizer will, and counts them.
class WordCounter {
 public:
  explicit WordCounter(KnownPattern pattern) : pattern_(pattern) {}
  void add(std::string_view text);
  /// Takes in what another one counted.
  void add(WordCounts&& others);
  WordCounts take() { return std::move(counts_); }

 private:
  KnownPattern pattern_;
  WordCounts counts_;
  std::string word_;  // for looking up
};

/// ConfigError when the vocabulary has no room for bytes and special tokens.
TokenizerDescription train_bpe(const WordCounts& words, const BpeTrainingOptions& options);

}  // namespace trireme::data
