// Who owns which keys: the shares of servers, and what moves when one comes or goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "trireme/base/random.h"
#include "trireme/ps/range_clocks.h"
#include "trireme/ps/ring.h"

namespace trireme::ps {
namespace {

std::vector<int> servers_from(int first, int count) {
  std::vector<int> servers;
  for (int i = 0; i < count; ++i) servers.push_back(first + i);
  return servers;
}

std::map<int, double> shares(const std::vector<PlacedRange>& ranges, std::uint64_t keys) {
  std::map<int, double> shares;
  for (const PlacedRange& range : ranges)
    shares[range.chain.front()] += static_cast<double>(range.keys.size()) / static_cast<double>(keys);
  return shares;
}

TEST(HashRing, EveryKeyHasOneChainOfDistinctServersAndLoadsAreWithinAFifth) {
  for (const std::uint64_t keys : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{100'003}}) {
    for (const int servers : {1, 2, 3, 8}) {
      for (const int copies : {1, 2, 3}) {
        const auto ranges = HashRing(servers_from(1, servers)).place(keys, copies);
        std::uint64_t at = 0;
        for (const PlacedRange& range : ranges) {
          EXPECT_EQ(range.keys.begin, at);
          EXPECT_GT(range.keys.size(), 0u);
          at = range.keys.end;
          std::vector<int> chain = range.chain;
          EXPECT_EQ(chain.size(), static_cast<std::size_t>(std::min(copies, servers)));
          std::ranges::sort(chain);
          EXPECT_TRUE(std::ranges::adjacent_find(chain) == chain.end());
        }
        EXPECT_EQ(at, keys);
      }
    }
  }
  for (const auto& [server, share] : shares(HashRing(servers_from(1, 8)).place(10'000'000, 1), 10'000'000)) {
    EXPECT_GT(share * 8, 0.8) << server;
    EXPECT_LT(share * 8, 1.2) << server;
  }
}

TEST(HashRing, PlacesOfTheRingAndOfKeysAgree) {
  const HashRing ring(servers_from(3, 5));
  constexpr std::uint64_t kKeys = 1009;
  for (const PlacedRange& range : ring.place(kKeys, 2)) {
    for (std::uint64_t key = range.keys.begin; key < range.keys.end; ++key) {
      const auto place = static_cast<std::uint64_t>((static_cast<long double>(key) / kKeys) * 18446744073709551616.0L);
      EXPECT_EQ(ring.chain(place, 2), range.chain) << key;
    }
  }
}

TEST(HashRing, AServerThatComesTakesItsPartAndMovesNoKeyBetweenOthers) {
  constexpr std::uint64_t kKeys = 1'000'000;
  const auto before = HashRing(servers_from(1, 8)).place(kKeys, 1),
             after = HashRing(servers_from(1, 9)).place(kKeys, 1);
  std::uint64_t moved = 0;
  for (std::size_t a = 0, b = 0; a < before.size() && b < after.size();) {
    const Segment common = intersect(before[a].keys, after[b].keys);
    if (before[a].chain != after[b].chain) {
      EXPECT_EQ(after[b].chain.front(), 9);
      moved += common.size();
    }
    if (before[a].keys.end == common.end) ++a;
    if (after[b].keys.end == common.end) ++b;
  }
  EXPECT_NEAR(static_cast<double>(moved) / kKeys, 1.0 / 9, 0.2 / 9);
}

TEST(HashRing, WhoWillHaveKeysFollowsInTheirChainsWhileServersJoinOrLeave) {
  const View joining{.epoch = 2, .servers = {1, 2, 3}, .next = {1, 2, 3, 4}, .workers = {}, .copies = 2};
  const auto now = HashRing({1, 2, 3}).place(5000, 2), later = HashRing({1, 2, 3, 4}).place(5000, 2);
  std::uint64_t at = 0;
  for (const PlacedRange& range : place(joining, 5000)) {
    EXPECT_EQ(range.keys.begin, at);
    at = range.keys.end;
    const auto chain_in = [&](const std::vector<PlacedRange>& ranges) {
      return std::ranges::find_if(ranges, [&](const PlacedRange& r) { return r.keys.end > range.keys.begin; })->chain;
    };
    std::vector<int> expected = chain_in(now);
    for (const int server : chain_in(later)) {
      if (std::ranges::find(expected, server) == expected.end()) expected.push_back(server);
    }
    EXPECT_EQ(range.chain, expected);
  }
  EXPECT_EQ(at, 5000u);
}

TEST(Segments, ASetIsWhatItsKeysAre) {
  const Random random(5, "test/segments");
  std::uint64_t draws = 0;
  SegmentSet set;
  std::vector<bool> plain(60);
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t a = random.below(60, draws++), b = random.below(61, draws++);
    const Segment segment{std::min(a, b), std::max(a, b)};
    if (segment.size() == 0) continue;
    std::vector<Segment> parts = set.common(segment), rest = set.missing(segment);
    for (std::uint64_t key = segment.begin; key < segment.end; ++key) {
      const auto in = [&](const std::vector<Segment>& of) {
        return std::ranges::any_of(of, [&](const Segment& s) { return s.begin <= key && key < s.end; });
      };
      EXPECT_EQ(in(parts), plain[key]);
      EXPECT_EQ(in(rest), !plain[key]);
    }
    if (segment.size() > 8) continue;
    set.add(segment);
    for (std::uint64_t key = segment.begin; key < segment.end; ++key) plain[key] = true;
    EXPECT_EQ(set.keys(), static_cast<std::uint64_t>(std::ranges::count(plain, true)));
    for (std::size_t s = 1; s < set.segments().size(); ++s)
      EXPECT_LT(set.segments()[s - 1].end, set.segments()[s].begin);
  }
}

TEST(RangeClocks, AreTheClocksOfTheirKeysAndNoMoreThanBordersTimesWorkers) {
  constexpr std::uint64_t kKeys = 40;
  constexpr int kWorkers = 3;
  const Random random(7, "test/clocks");
  std::uint64_t draws = 0;
  RangeClocks clocks;
  std::map<std::pair<std::uint64_t, int>, std::uint64_t> plain;
  std::map<int, std::uint64_t> next;
  const std::uint64_t borders[] = {0, 11, 17, 30, 40};  // k = 4 ranges
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t a = random.below(5, draws++), b = random.below(5, draws++);
    if (a == b) continue;
    const Segment keys{borders[std::min(a, b)], borders[std::max(a, b)]};
    const int worker = static_cast<int>(random.below(kWorkers, draws++));
    clocks.advance(keys, worker, ++next[worker]);
    for (std::uint64_t key = keys.begin; key < keys.end; ++key) plain[{key, worker}] = next[worker];
    EXPECT_LE(clocks.ranges(), 4u);
    EXPECT_LE(clocks.clocks(), 4u * kWorkers);
  }
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      const std::uint64_t expected = plain[{key, worker}];
      EXPECT_EQ(clocks.least({key, key + 1}, worker), expected);
      EXPECT_EQ(clocks.lacking({key, key + 1}, worker, expected + 1).size(), 1u);
      EXPECT_TRUE(clocks.lacking({key, key + 1}, worker, expected).empty() || expected == 0);
    }
  }
  RangeClocks copy;
  copy.replace({5, 33}, clocks.read({5, 33}));
  EXPECT_EQ(copy.least({5, 33}, 1), clocks.least({5, 33}, 1));
  copy.keep(SegmentSet(std::vector<Segment>{{10, 20}}));
  EXPECT_EQ(copy.least({10, 20}, 1), clocks.least({10, 20}, 1));
  EXPECT_EQ(copy.least({5, 10}, 1), 0u);
}

}  // namespace
}  // namespace trireme::ps
