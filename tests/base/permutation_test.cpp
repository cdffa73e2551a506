#include "trireme/base/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(Permutation, HitsEveryValueOnceAndFindsItsWayBack) {
  for (std::uint64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 24, 25, 26, 97, 100, 1000, 1023, 1024, 4097}) {
    const Permutation permutation(Random(5, "shuffle"), n);
    std::vector<bool> seen(n, false);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t value = permutation.at(i);
      ASSERT_LT(value, n);
      ASSERT_FALSE(seen[value]) << value << " twice, of " << n;
      seen[value] = true;
      ASSERT_EQ(permutation.index_of(value), i) << "of " << n;
    }
  }
}

TEST(Permutation, WorksWhereNoListWouldFit) {
  for (const std::uint64_t n : {(1ULL << 32) - 1, 1ULL << 40, 999'999'999'999'989ULL, 1ULL << 62}) {
    const Permutation permutation(Random(6, "huge"), n);
    for (std::uint64_t i : {std::uint64_t{0}, std::uint64_t{1}, n / 3, n - 1}) {
      ASSERT_LT(permutation.at(i), n);
      ASSERT_EQ(permutation.index_of(permutation.at(i)), i) << "of " << n;
    }
  }
}

TEST(Permutation, GivesEveryOrderOfAFewEquallyOften) {
  // 24 orders of 4, 24,000 seeds: each about 1,000 times (standard deviation 31).
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < 24'000; ++seed) {
    const Permutation permutation(Random(seed, "orders"), 4);
    std::string order;
    for (std::uint64_t i = 0; i < 4; ++i) order += std::to_string(permutation.at(i));
    ++seen[order];
  }
  EXPECT_EQ(seen.size(), 24u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 160) << order;
}

TEST(Permutation, LooksShuffled) {
  const std::uint64_t n = 10'000;
  const Permutation permutation(Random(7, "shuffle"), n);
  double correlation = 0;
  int rising = 0, fixed = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(i) / n - 0.5, y = static_cast<double>(permutation.at(i)) / n - 0.5;
    correlation += 12 * x * y / n;
    fixed += permutation.at(i) == i ? 1 : 0;
    if (i > 0) rising += permutation.at(i) > permutation.at(i - 1) ? 1 : 0;
  }
  EXPECT_NEAR(correlation, 0, 4 / std::sqrt(static_cast<double>(n)));
  EXPECT_NEAR(rising, n / 2.0, 4 * std::sqrt(n / 12.0));
  EXPECT_LT(fixed, 8) << "a random permutation keeps one element in place on average";
}

TEST(Permutation, NeverChanges) {
  const Permutation permutation(Random(42, "golden"), 1'000'000);
  EXPECT_EQ(permutation.at(0), 288360u);
  EXPECT_EQ(permutation.at(999'999), 935436u);
}

TEST(Permutation, RefusesPositionsOutside) {
  EXPECT_THROW((void)Permutation(Random(1, "x"), 10).at(10), InternalError);
  EXPECT_THROW((void)Permutation(Random(1, "x"), 10).index_of(10), InternalError);
  EXPECT_THROW((void)Permutation(Random(1, "x"), 0).at(0), InternalError);
  EXPECT_THROW(Permutation(Random(1, "x"), (1ULL << 62) + 1), InternalError);
}

}  // namespace
}  // namespace trireme
