// What the tests of samples share: recipes over shards in a folder, and text in which every token is unique, so that
// where a token came from can be read off it.
#pragma once

#include <map>
#include <numeric>
#include <set>

#include "tests/data/token_files.h"
#include "trireme/data/open_samples.h"

namespace trireme::data {

/// Documents with tokens first, first + 1, ...; empty and long ones among them.
inline Documents numbered_documents(std::uint64_t seed, std::size_t count, std::uint64_t longest, std::int32_t first) {
  Documents documents = random_documents(seed, count, longest, 2);
  for (auto& document : documents) {
    for (auto& token : document) token = first++;
  }
  return documents;
}

inline constexpr std::int64_t kVocabulary = 100'000;

inline spec::Recipe recipe_over(const std::vector<fs::path>& paths, std::int64_t sequence) {
  spec::Recipe recipe;
  recipe.run.seed = 5;
  recipe.data.seq_len = sequence;
  recipe.data.validation_fraction = 0;
  for (const fs::path& path : paths) recipe.data.sources.push_back({path.string(), std::nullopt});
  return recipe;
}

inline Batch read_one(const Samples& samples, std::int64_t sample) {
  return samples.read(std::span<const std::int64_t>(&sample, 1));
}

inline std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

/// Equal in every part.
inline void expect_same(const Batch& a, const Batch& b) {
  const auto same_rows = [](const TokenRows& x, const TokenRows& y) {
    EXPECT_EQ(x.length, y.length);
    EXPECT_EQ(x.ids, y.ids);
    EXPECT_EQ(x.positions, y.positions);
    EXPECT_EQ(x.documents, y.documents);
  };
  EXPECT_EQ(a.samples, b.samples);
  same_rows(a.tokens, b.tokens);
  same_rows(a.source, b.source);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.segments, b.segments);
}

/// What was read and then learnt: how often each.
using Pairs = std::map<std::pair<std::int64_t, std::int64_t>, int>;
inline void add_pairs(const Batch& batch, Pairs& pairs) {
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] != kNoTarget) ++pairs[{batch.tokens.ids[i], batch.targets[i]}];
  }
}

}  // namespace trireme::data
