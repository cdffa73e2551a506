#include "tests/comm/collective_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "tests/comm/reference.h"
#include "tests/comm/values.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

constexpr std::size_t kLargeCount = 1000;

/// The algorithms that exist for this operation on this group, in its v-form or not.
std::vector<Algorithm> algorithms_for(const Group& group, Op op, bool uneven, bool on_gpu) {
  std::vector<Algorithm> out = group.algorithms(collective_of(op));
  // Bruck's algorithms need blocks of one length: refused, as FailuresTest says.
  if (uneven) std::erase(out, Algorithm::kBruck);
  if (on_gpu) out.clear();
  out.push_back(Algorithm::kAuto);
  return out;
}

/// The reductions that make a difference to the operation.
std::vector<Reduce> reductions_for(Op op) {
  if (!reduces(op)) return {Reduce::kSum};
  return {std::begin(kAllReduces), std::end(kAllReduces)};
}

/// Calls one after the other; stops at the first that goes wrong.
class Sweeper {
 public:
  Sweeper(Group& group, const Sweep& sweep) : group_(group), sweep_(sweep) {}

  std::string run() {
    for (const Collective collective : cost::all_collectives()) {
      const Op op = op_of(collective);
      for (const bool uneven : {false, true}) {
        if (uneven && !is_blocked(op)) continue;
        for (const Algorithm algorithm : algorithms_for(group_, op, uneven, sweep_.place.on_gpu())) {
          std::string wrong = run({.op = op, .algorithm = algorithm, .uneven = uneven, .place = sweep_.place});
          if (!wrong.empty()) return wrong;
        }
      }
    }
    return {};
  }

 private:
  std::string run(Case c) {
    if (c.op == Op::kBarrier) return try_case(group_, c);
    for (const DType type : kAllDTypes) {
      for (const Reduce reduce : reductions_for(c.op)) {
        for (const std::size_t count : sweep_.counts) {
          c.type = type;
          c.reduce = reduce;
          if (!draw(c, count)) continue;
          std::string wrong = with_context(to_text(c), [&] { return try_case(group_, c); });
          if (!wrong.empty()) return wrong;
        }
      }
    }
    return {};
  }

  /// Whether the case is among those tried; if so, draws the rest of it.
  bool draw(Case& c, std::size_t count) {
    const auto word = [](auto x) { return static_cast<std::uint64_t>(x); };
    c.seed =
        hash_of({sweep_.seed, word(c.op), word(c.algorithm), word(c.uneven), word(c.type), word(c.reduce), count}) %
        1'000'000;
    const std::uint64_t drawn = hash_of({c.seed, 1});
    if (drawn % (count >= kLargeCount ? sweep_.large_one_in : sweep_.small_one_in) != 0) return false;
    const auto ranks = static_cast<std::size_t>(group_.size());
    c.count = is_blocked(c.op) && count >= kLargeCount ? count / ranks : count;
    c.in_place = drawn >> 32 & 1;
    c.root = is_rooted(c.op) ? static_cast<int>((drawn >> 33) % ranks) : 0;
    return true;
  }

  Group& group_;
  const Sweep& sweep_;
};

}  // namespace

std::string check_on(const Runner& run, int ranks, const Check& check) {
  try {
    run(ranks, [&](Rank& rank) {
      const std::string wrong = check(rank);
      if (!wrong.empty()) throw CheckFailed(wrong);
    });
  } catch (const Error& error) {
    return fmt::format("{} ranks: {}", ranks, error.block());
  } catch (const std::exception& error) {
    return fmt::format("{} ranks: {}", ranks, error.what());
  }
  return {};
}

std::string check_collectives(Group& group, const Sweep& sweep) { return Sweeper(group, sweep).run(); }

std::string check_messages(Group& group, std::uint64_t seed, const Place& place) {
  const int ranks = group.size(), me = group.rank();
  constexpr std::size_t kCounts[] = {0, 1, 7, 1300, 50'021};
  constexpr int kTags = 3;
  std::deque<Trial> trials;  // stay where they are
  std::vector<Work> works;
  const auto post = [&](Op op, int peer, int tag, std::size_t number) {
    const int from = op == Op::kSend ? me : peer, to = op == Op::kSend ? peer : me;
    const auto word = [](auto x) { return static_cast<std::uint64_t>(x); };
    const std::uint64_t drawn = hash_of({seed, word(from), word(to), word(tag), number});
    const Case c{.op = op,
                 .type = kAllDTypes[drawn % std::size(kAllDTypes)],
                 .count = kCounts[(drawn >> 8) % std::size(kCounts)],
                 .root = peer,
                 .tag = tag,
                 .seed = drawn % 1'000'000,
                 .place = place};
    works.push_back(trials.emplace_back(c, ranks, me).start(group));
  };
  for (std::size_t number = 0; number < 4; ++number) {
    for (int tag = 0; tag < kTags; ++tag) {
      for (int step = 0; step < ranks; ++step) {
        post(Op::kSend, (me + step) % ranks, tag, number);
        post(Op::kRecv, (me + ranks - step) % ranks, kTags - 1 - tag, number);
      }
    }
  }
  // Last first: nothing may depend on who is waited for.
  while (!works.empty()) {
    works.back().wait();
    works.pop_back();
  }
  place.wait();
  for (const Trial& trial : trials) {
    std::string wrong = trial.verify();
    if (!wrong.empty()) return wrong;
  }
  return {};
}

}  // namespace trireme::comm
