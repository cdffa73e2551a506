// A thousand random programs on overlapping groups, each with its own order of groups on each rank.
#include <gtest/gtest.h>

#include "tests/comm/thread_ranks.h"

namespace trireme::comm {
namespace {

// Under the sanitizers the first so many of the same programs are run.
#if defined(TRIREME_TSAN)
constexpr std::uint64_t kPrograms = 160;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kPrograms = 400;
#else
constexpr std::uint64_t kPrograms = 1200;
#endif
constexpr std::uint64_t kParts = 4;  // so that a failing test stays short

class Programs : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Part, Programs, testing::Range<std::uint64_t>(0, kParts));

TEST_P(Programs, EqualTheReference) {
  for (std::uint64_t seed = GetParam(); seed < kPrograms; seed += kParts) {
    const int ranks = 2 + static_cast<int>(seed / kParts % 5), ranks_per_node = seed % 3 == 0 ? 2 : 0;
    ASSERT_EQ(check_on(on_threads(ranks_per_node), ranks, [&](Rank& self) { return check_program(self, seed); }), "")
        << "program " << seed;
  }
}

TEST(EarlyReceive, HoldsUpNoCollectiveOfOtherGroups) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 4);
    EXPECT_EQ(check_on(on_threads(), ranks, [&](Rank& self) { return check_early_receive(self, seed); }), "");
  }
}

}  // namespace
}  // namespace trireme::comm
