// Every collective x algorithm x type x reduction x number of ranks against the plain reference, on threads.
#include <gtest/gtest.h>

#include "tests/comm/thread_ranks.h"

namespace trireme::comm {
namespace {

// The sanitizers slow things down tenfold and more: there a part of the same calls is tried, always the same part.
#if defined(TRIREME_TSAN)
constexpr std::uint64_t kSmallOneIn = 6, kLargeOneIn = 48, kSeeds = 1;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSmallOneIn = 3, kLargeOneIn = 24, kSeeds = 2;
#else
constexpr std::uint64_t kSmallOneIn = 1, kLargeOneIn = 6, kSeeds = 3;
#endif

class Collectives : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Range(1, 10),
                         [](const auto& row) { return std::to_string(row.param); });

TEST_P(Collectives, EqualTheReference) {
  const Sweep sweep{.large_one_in = kLargeOneIn, .small_one_in = kSmallOneIn};
  EXPECT_EQ(check_on(on_threads(), GetParam(), [&](Rank& self) { return check_collectives(self.world(), sweep); }), "");
}

TEST_P(Collectives, EqualTheReferenceOnSeveralNodes) {
  const Sweep sweep{
      .seed = 2, .counts = {0, 1, 7, 1300}, .large_one_in = 2 * kLargeOneIn, .small_one_in = 3 * kSmallOneIn};
  for (const int ranks_per_node : {2, 3}) {
    EXPECT_EQ(check_on(on_threads(ranks_per_node), GetParam(),
                       [&](Rank& self) { return check_collectives(self.world(), sweep); }),
              "");
  }
}

TEST_P(Collectives, MessagesArriveInOrder) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(check_on(on_threads(), GetParam(), [&](Rank& self) { return check_messages(self.world(), seed); }), "");
  }
}

TEST_P(Collectives, OfFloatsAreDeterministicAndNearTheExactResult) {
  EXPECT_EQ(check_on(on_threads(2), GetParam(), [](Rank& self) { return check_float_bits(self.world(), 4); }), "");
}

TEST_P(Collectives, PassNanOnAndOrderZeros) {
  EXPECT_EQ(check_on(on_threads(2), GetParam(), [](Rank& self) { return check_extremes(self.world(), 5); }), "");
}

/// Large enough that a call is done in several pieces, and that results bypass the caches.
TEST(LargeCollectives, EqualTheReference) {
  const Sweep sweep{.seed = 6, .counts = {1'500'007}, .large_one_in = 12 * kLargeOneIn};
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(
        check_on(on_threads(0, 256 << 10), ranks, [&](Rank& self) { return check_collectives(self.world(), sweep); }),
        "");
  }
}

}  // namespace
}  // namespace trireme::comm
