// data/split.h -- which tokens of a file are trained on and which are kept for validation.
//
// A function of the seed, the file's name and the document's number: adding files or changing the length of rows moves
// no document from one side to the other. Files with too few documents for that (one long text) are split by blocks.
// Depends on: base, data/token_file.h.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/data/token_file.h"

namespace trireme::data {

enum class Split : std::uint8_t { kTrain, kValidation };

struct SplitRule {
  double fraction = 0;  ///< kept for validation; 0: nothing
  std::uint64_t seed = 0;
};

/// Neighbouring tokens of a file: [begin, end).
struct TokenRun {
  std::int64_t begin = 0, end = 0;
  bool operator==(const TokenRun&) const = default;
};

/// The tokens of one side, in order. Runs of the two sides together are the file; they are as few as validation has
/// units, so a large file takes little memory.
std::vector<TokenRun> runs_of(const TokenFile& file, Split split, const SplitRule& rule);

/// How many of `units` are kept for validation.
std::int64_t validation_units(std::int64_t units, double fraction);
/// Random numbers that decide which: of a permutation of the units, the first ones.
Random split_random(const TokenFile& file, std::uint64_t seed);

}  // namespace trireme::data
