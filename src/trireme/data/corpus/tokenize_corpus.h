// data/corpus/tokenize_corpus.h -- a corpus becomes token shards, or counts of words: by several threads, and
// resumable.
//
// One chunk of the corpus becomes one shard, so what is in a shard depends on the corpus and the options alone, never
// on the threads. A shard appears when it is whole: called again after it was stopped, this goes on with those that are
// missing. A file beside the shards says what they are made of; another corpus or tokenizer is refused there, unless
// the call before failed: what that left may be replaced.
// Depends on: data/corpus/corpus.h, data/tokenizer, data/shard_writer.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "trireme/base/progress.h"
#include "trireme/data/corpus/corpus.h"
#include "trireme/data/tokenizer/bpe_training.h"
#include "trireme/data/tokenizer/tokenizer.h"

namespace trireme::data {

struct TokenizeOptions {
  std::filesystem::path out;  ///< a folder; made when there is none
  int threads = 1;
  std::uint64_t chunk_bytes = 256 << 20;  ///< of text in a shard
  bool add_special = true;                ///< what the tokenizer puts around a text
  bool end_documents = true;              ///< the token that ends a text after every document, where there is one
  std::optional<ChatFormat> chat = {};    ///< documents are conversations, and shards get loss masks
  Progress::Output progress = Progress::to_stderr();
};

struct TokenizeResult {
  std::vector<std::filesystem::path> shards;
  std::size_t kept = 0;  ///< shards that were there already
  std::uint64_t documents = 0, tokens = 0;
  std::uint64_t learnt = 0;                       ///< tokens that are targets, of shards made by this call
  std::uint64_t text_bytes = 0, made_tokens = 0;  ///< of shards made by this call
};

inline constexpr const char* kPlanName = "tokenize.json";
inline constexpr std::uint64_t kMostPlanBytes = 1 << 30;

/// ConfigError where the corpus holds no document. What fails before a shard is whole leaves no folder.
TokenizeResult tokenize_corpus(const Corpus& corpus, const Tokenizer& tokenizer, const TokenizeOptions& options);

WordCounts count_words(const Corpus& corpus, KnownPattern pattern, int threads,
                       const Progress::Output& progress = Progress::to_stderr());

}  // namespace trireme::data
