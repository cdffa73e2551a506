// Random programs: many calls under way at once on overlapping groups.
#include <fmt/format.h>

#include <deque>
#include <memory>
#include <numeric>

#include "tests/comm/collective_checks.h"
#include "tests/comm/reference.h"
#include "tests/comm/values.h"

namespace trireme::comm {
namespace {

std::uint64_t word(auto x) { return static_cast<std::uint64_t>(x); }

/// Draws that depend on the seed and how many were made before.
class Dice {
 public:
  explicit Dice(std::initializer_list<std::uint64_t> seed) : seed_(hash_of(seed)) {}
  std::uint64_t below(std::uint64_t n) { return hash_of({seed_, draws_++}) % n; }
  template <typename T, std::size_t N>
  const T& one_of(const T (&items)[N]) {
    return items[below(N)];
  }
  template <typename T>
  const T& one_of(const std::vector<T>& items) {
    return items[below(items.size())];
  }

 private:
  std::uint64_t seed_, draws_ = 0;
};

/// World, and groups split from it and from each other; null where this rank is in none.
std::vector<std::unique_ptr<Group>> make_groups(Rank& self, std::uint64_t seed) {
  Dice common{seed, 1};
  std::vector<std::unique_ptr<Group>> groups;
  const auto parent_of = [&](std::uint64_t i) { return i == 0 ? &self.world() : groups[i - 1].get(); };
  const std::uint64_t splits = 1 + common.below(4);
  for (std::uint64_t i = 0; i < splits; ++i) {
    const std::uint64_t parent = common.below(groups.size() + 1), colors = 1 + common.below(3);
    Dice own{seed, 2, i, word(self.rank())};
    const int color = own.below(6) == 0 ? -1 : static_cast<int>(own.below(colors)),
              key = static_cast<int>(own.below(9));
    Group* from = parent_of(parent);
    groups.push_back(from == nullptr ? nullptr : from->split(color, key, fmt::format("group {}", i)));
  }
  return groups;
}

/// Call number `number` on a group. Only what its members agree on may matter, but for messages, where each of the two
/// has its own side; empty for those that have none.
std::optional<Case> draw_call(const Group& group, std::uint64_t seed, std::uint64_t slot, std::uint64_t number,
                              const Place& place) {
  constexpr Op kOpsToDraw[] = {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather, Op::kAllToAll,
                               Op::kBroadcast, Op::kReduce,        Op::kGather,    Op::kScatter,
                               Op::kBarrier,   Op::kSend,          Op::kSend,      Op::kSend};
  constexpr std::size_t kCounts[] = {0, 1, 5, 5, 300, 300, 1500, 9000};
  Dice dice{seed, 3, slot, number};
  const auto ranks = word(group.size());
  Case c{.op = dice.one_of(kOpsToDraw),
         .type = dice.one_of(kAllDTypes),
         .reduce = dice.one_of(kAllReduces),
         .count = dice.below(60) == 0 ? 60'000 : dice.one_of(kCounts),
         .in_place = dice.below(2) == 1,
         .seed = hash_of({seed, slot, number}) % 1'000'000};
  if (place.on_gpu() && hash_of({seed, slot, number, 7}) % 4 != 0) c.place = place;
  const auto from = static_cast<int>(dice.below(ranks)), to = static_cast<int>(dice.below(ranks));
  if (c.op == Op::kSend) {
    c.tag = static_cast<int>(dice.below(2));
    if (group.rank() != from && group.rank() != to) return std::nullopt;
    c.op = group.rank() == from ? Op::kSend : Op::kRecv;
    c.root = group.rank() == from ? to : from;
    if (from == to) return std::nullopt;  // two calls of one rank: check_messages has those
    return c;
  }
  if (is_rooted(c.op)) c.root = from;
  if (is_blocked(c.op)) {
    c.count = (c.count + ranks - 1) / ranks;
    c.uneven = dice.below(3) == 0;
  }
  std::vector<Algorithm> algorithms = group.algorithms(collective_of(c.op));
  algorithms.push_back(Algorithm::kAuto);
  if (c.uneven) std::erase(algorithms, Algorithm::kBruck);
  c.algorithm = c.place.on_gpu() ? Algorithm::kAuto : dice.one_of(algorithms);
  return c;
}

}  // namespace

std::string check_program(Rank& self, std::uint64_t seed, const Place& place) {
  Dice common{seed, 4}, own{seed, 5, word(self.rank())};
  const std::vector<std::unique_ptr<Group>> groups = make_groups(self, seed);

  // Every group's calls in their order, but the groups interleaved as this rank likes.
  std::vector<std::uint64_t> turns;  // 0: world, i: groups[i - 1]
  for (std::uint64_t slot = 0; slot <= groups.size(); ++slot) {
    const std::uint64_t calls = 1 + common.below(12);
    if (slot == 0 || groups[slot - 1]) turns.insert(turns.end(), calls, slot);
  }
  for (std::size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[own.below(i)]);

  std::deque<Trial> trials;  // stay where they are
  std::vector<Work> works;
  std::vector<std::uint64_t> made(groups.size() + 1, 0);
  for (const std::uint64_t slot : turns) {
    Group& group = slot == 0 ? self.world() : *groups[slot - 1];
    const std::optional<Case> c = draw_call(group, seed, slot, made[slot]++, place);
    if (!c) continue;
    works.push_back(trials.emplace_back(*c, group.size(), group.rank()).start(group));
    if (own.below(4) == 0) (void)works[own.below(works.size())].test();
  }
  while (!works.empty()) {
    std::swap(works[own.below(works.size())], works.back());
    works.back().wait();
    works.pop_back();
  }
  place.wait();
  for (const Trial& trial : trials) {
    std::string wrong = trial.verify();
    if (!wrong.empty()) return fmt::format("program {}: {}", seed, wrong);
  }
  return {};
}

std::string check_early_receive(Rank& self, std::uint64_t seed, const Place& place) {
  const int ranks = self.ranks(), me = self.rank();
  const std::unique_ptr<Group> early = self.world().split(0, me, "early"), other = self.world().split(0, -me, "other");
  const Case message{
      .op = Op::kRecv, .count = seed % 2 == 0 ? 3u : 30'000u, .root = (me + 1) % ranks, .seed = seed, .place = place};
  Trial receive(message, ranks, me);
  Work received = receive.start(*early);
  for (std::uint64_t i = 0; i < 30; ++i) {
    Group& group = i % 3 == 0 ? self.world() : *other;
    Dice dice{seed, 6, i};
    constexpr std::size_t kCounts[] = {1, 300, 20'000};
    const Case c{.op = Op::kAllReduce,
                 .algorithm = place.on_gpu() ? Algorithm::kAuto : dice.one_of(group.algorithms(Collective::kAllReduce)),
                 .count = dice.one_of(kCounts),
                 .seed = seed + i,
                 .place = place};
    std::string wrong = try_case(group, c);
    if (!wrong.empty()) return wrong;
    // After the last one the sender may be ahead already.
    if (i + 1 < 30 && received.test()) return "a message was received before it was sent";
  }
  Case answer = message;
  answer.op = Op::kSend;
  answer.root = (me + ranks - 1) % ranks;
  std::string wrong = try_case(*early, answer);
  received.wait();
  place.wait();
  return wrong.empty() ? receive.verify() : wrong;
}

}  // namespace trireme::comm
