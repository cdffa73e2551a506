#include "trireme/nn/flops.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

/// One pair after the other.
double plain_pairs(const Visibility& visibility, const std::vector<std::int32_t>& q, const std::vector<std::int32_t>& k,
                   std::int64_t first_query, std::int64_t first_key) {
  double pairs = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    for (std::size_t j = 0; j < k.size(); ++j) {
      const std::int64_t back = first_query + static_cast<std::int64_t>(i) - first_key - static_cast<std::int64_t>(j);
      if (visibility.causal && back < 0) continue;
      if (visibility.window > 0 && (back >= visibility.window || -back >= visibility.window)) continue;
      pairs += q[i] == k[j];
    }
  }
  return pairs;
}

at::Tensor token_row(const std::vector<std::int32_t>& numbers) {
  return at::tensor(numbers, at::kInt).view({1, static_cast<std::int64_t>(numbers.size())});
}

TEST(VisiblePairs, AreThoseOfThePlainLoop) {
  const Random random(1, "pairs");
  std::uint64_t draw = 0;
  for (int round = 0; round < 400; ++round) {
    const auto length = 1 + random.below(17, draw++), key_length = 1 + random.below(17, draw++);
    const bool sorted = random.below(2, draw++) == 0, documents = random.below(4, draw++) != 0;
    std::vector<std::int32_t> q(length), k(key_length);
    for (auto* numbers : {&q, &k}) {
      for (auto& number : *numbers) number = documents ? static_cast<std::int32_t>(random.below(4, draw++)) : 0;
      if (sorted) std::sort(numbers->begin(), numbers->end());
    }
    const Visibility visibility{random.below(2, draw++) == 0, static_cast<std::int64_t>(random.below(6, draw++))};
    TokenSpan queries{.first = static_cast<std::int64_t>(random.below(9, draw++)),
                      .count = static_cast<std::int64_t>(length)};
    TokenSpan keys{.first = static_cast<std::int64_t>(random.below(9, draw++)),
                   .count = static_cast<std::int64_t>(key_length)};
    if (documents) queries.documents = token_row(q), keys.documents = token_row(k);
    EXPECT_EQ(visible_pairs(visibility, queries, keys, 1), plain_pairs(visibility, q, k, queries.first, keys.first))
        << "round " << round;
  }
}

TEST(VisiblePairs, CountEveryRow) { EXPECT_EQ(visible_pairs({.causal = true}, {.count = 4}, {.count = 4}, 3), 30); }

}  // namespace
}  // namespace trireme::nn
