#include "trireme/data/split.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/permutation.h"

namespace trireme::data {
namespace {

/// What is kept or not as a whole: documents, or blocks of tokens.
struct Units {
  const TokenFile& file;
  std::int64_t count;
  std::int64_t block;  // tokens; 0: units are documents

  std::int64_t begin(std::int64_t unit) const {
    return block == 0 ? file.document_begin(unit) : std::min(unit * block, file.tokens());
  }
};

/// Blocks are small enough for about 16 in validation: one would be a poor picture of the whole.
Units units_of(const TokenFile& file, double fraction) {
  const std::int64_t documents = file.documents(), tokens = file.tokens();
  if (static_cast<double>(documents) * fraction >= 1) return {file, documents, 0};
  const auto wanted = static_cast<std::int64_t>(static_cast<double>(tokens) * fraction / 16);
  const std::int64_t block = std::clamp<std::int64_t>(wanted, 64, 4096);
  return {file, (tokens + block - 1) / block, block};
}

/// Appends [begin, end), joined with the run before it where they meet.
void add(std::vector<TokenRun>& runs, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  if (!runs.empty() && runs.back().end == begin) {
    runs.back().end = end;
  } else {
    runs.push_back({begin, end});
  }
}

}  // namespace

std::int64_t validation_units(std::int64_t units, double fraction) {
  if (fraction <= 0 || units < 2) return 0;
  return std::clamp<std::int64_t>(std::llround(static_cast<double>(units) * fraction), 1, units - 1);
}

Random split_random(const TokenFile& file, std::uint64_t seed) {
  return Random(seed, "split/" + file.path().filename().string());
}

std::vector<TokenRun> runs_of(const TokenFile& file, Split split, const SplitRule& rule) {
  const Units units = units_of(file, rule.fraction);
  const std::int64_t kept = validation_units(units.count, rule.fraction);
  std::vector<TokenRun> runs;
  std::vector<std::uint64_t> validation(static_cast<std::size_t>(kept));
  const Permutation order(split_random(file, rule.seed), static_cast<std::uint64_t>(units.count));
  for (std::size_t i = 0; i < validation.size(); ++i) validation[i] = order.at(i);
  std::ranges::sort(validation);
  std::int64_t done = 0;
  for (const std::uint64_t number : validation) {
    const auto unit = static_cast<std::int64_t>(number);
    const std::int64_t begin = units.begin(unit), end = units.begin(unit + 1);
    if (split == Split::kTrain) {
      add(runs, done, begin);
    } else {
      add(runs, begin, end);
    }
    done = end;
  }
  if (split == Split::kTrain) add(runs, done, file.tokens());
  return runs;
}

}  // namespace trireme::data
