// data/batch.h -- the tokens of a micro-batch as the trainer takes them: plain arrays, row by row.
//
// Depends on: std.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::data {

inline constexpr std::int64_t kNoTarget = -100;  ///< this token has no loss

/// Tokens [rows, length] that one side of a model reads.
struct TokenRows {
  std::int64_t length = 0;
  std::vector<std::int64_t> ids, positions;  ///< positions: each token's place in its document
  std::vector<std::int32_t> documents;       ///< equal numbers in a row see each other; empty: each row is one document
};

struct Batch {
  std::vector<std::int64_t> samples;   ///< [rows]: global numbers of the rows, which dropout draws by
  TokenRows tokens;                    ///< what the model reads, or its decoder
  TokenRows source;                    ///< what an encoder reads beside a decoder; length 0: there is none
  std::vector<std::int64_t> targets;   ///< [rows, length], kNoTarget: no loss
  std::vector<float> weights;          ///< of each target's loss; empty: 1
  std::vector<std::int64_t> segments;  ///< BERT's token types; empty: all zero
  bool filler = false;                 ///< stands for no row, where ranks run equally many: there is no loss

  std::int64_t rows() const { return static_cast<std::int64_t>(samples.size()); }
};

}  // namespace trireme::data
