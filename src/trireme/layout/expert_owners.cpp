// Experts that change their owner.
#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/layout/expert_placement.h"

namespace trireme::layout {
namespace {

using Numbers = std::vector<std::int64_t>;

std::size_t place_at(std::int64_t index) { return static_cast<std::size_t>(index); }

Numbers loads_of_owners(std::span<const std::int64_t> loads, std::span<const std::int64_t> order, std::int64_t ranks) {
  Numbers filled(place_at(ranks), 0);
  const std::int64_t each = static_cast<std::int64_t>(order.size()) / ranks;
  for (std::size_t place = 0; place < order.size(); ++place)
    filled[place / place_at(each)] += loads[place_at(order[place])];
  return filled;
}

/// Two experts change places, one of them the busiest rank's: the two after which the larger of both ranks is least.
/// Each swap takes from the busiest rank and makes no other as busy, so this ends.
Numbers swapped(std::span<const std::int64_t> loads, const ExpertOwners& now) {
  Numbers order = now.order;
  const auto experts = static_cast<std::int64_t>(order.size()), each = experts / now.ranks;
  for (;;) {
    const Numbers filled = loads_of_owners(loads, order, now.ranks);
    const std::int64_t busiest = std::ranges::max_element(filled) - filled.begin();
    std::int64_t least = filled[place_at(busiest)], mine = -1, other = -1;
    for (std::int64_t from = busiest * each; from < (busiest + 1) * each; ++from) {
      for (std::int64_t to = 0; to < experts; ++to) {
        const std::int64_t rank = to / each;
        if (rank == busiest || (now.node_ranks > 0 && rank / now.node_ranks != busiest / now.node_ranks)) continue;
        const std::int64_t gives = loads[place_at(order[place_at(from)])] - loads[place_at(order[place_at(to)])];
        const std::int64_t then = std::max(filled[place_at(busiest)] - gives, filled[place_at(rank)] + gives);
        if (gives > 0 && then < least) least = then, mine = from, other = to;
      }
    }
    if (mine < 0) return order;
    std::swap(order[place_at(mine)], order[place_at(other)]);
  }
}

/// `packed` with its parts given to those ranks, and its experts to those places, that most of them have already.
Numbers moved_least(const Numbers& packed, const ExpertOwners& now) {
  const auto experts = static_cast<std::int64_t>(packed.size()), each = experts / now.ranks;
  Numbers owner(packed.size());
  for (std::int64_t place = 0; place < experts; ++place) owner[place_at(now.order[place_at(place)])] = place / each;
  struct Match {
    std::int64_t shared, part, rank;
  };
  std::vector<Match> matches;
  for (std::int64_t part = 0; part < now.ranks; ++part) {
    Numbers shared(place_at(now.ranks), 0);
    for (std::int64_t i = part * each; i < (part + 1) * each; ++i)
      ++shared[place_at(owner[place_at(packed[place_at(i)])])];
    for (std::int64_t rank = 0; rank < now.ranks; ++rank) matches.push_back({shared[place_at(rank)], part, rank});
  }
  std::ranges::stable_sort(matches, [](const Match& a, const Match& b) { return a.shared > b.shared; });
  Numbers part_of(place_at(now.ranks), -1), rank_of(place_at(now.ranks), -1);
  for (const Match& match : matches) {
    if (rank_of[place_at(match.part)] >= 0 || part_of[place_at(match.rank)] >= 0) continue;
    rank_of[place_at(match.part)] = match.rank;
    part_of[place_at(match.rank)] = match.part;
  }
  Numbers order(packed.size(), -1);
  for (std::int64_t rank = 0; rank < now.ranks; ++rank) {
    const auto first = packed.begin() + part_of[place_at(rank)] * each;
    Numbers come;
    for (const std::int64_t expert : Numbers(first, first + each)) {
      const auto here = std::find(now.order.begin() + rank * each, now.order.begin() + (rank + 1) * each, expert);
      if (here != now.order.begin() + (rank + 1) * each) {
        order[static_cast<std::size_t>(here - now.order.begin())] = expert;
      } else {
        come.push_back(expert);
      }
    }
    std::ranges::sort(come);
    auto next = come.begin();
    for (std::int64_t place = rank * each; place < (rank + 1) * each; ++place) {
      if (order[place_at(place)] < 0) order[place_at(place)] = *next++;
    }
  }
  return order;
}

}  // namespace

std::vector<std::int64_t> in_order(std::span<const std::int64_t> of_experts, std::span<const std::int64_t> order) {
  Numbers found(of_experts.begin(), of_experts.end());
  for (std::size_t place = 0; place < order.size(); ++place) found[place] = of_experts[place_at(order[place])];
  return found;
}

std::vector<std::int64_t> place_owners(std::span<const std::int64_t> loads, const ExpertOwners& now) {
  const auto experts = static_cast<std::int64_t>(loads.size());
  TRIREME_CHECK(now.order.size() == loads.size() && now.ranks > 0 && experts % now.ranks == 0,
                "{} experts in an order of {} on {} ranks", experts, now.order.size(), now.ranks);
  const auto busiest = [&](const Numbers& order) {
    return static_cast<double>(std::ranges::max(loads_of_owners(loads, order, now.ranks)));
  };
  Numbers best = swapped(loads, now);
  if (now.node_ranks == 0) {
    ExpertOwners other = now;
    other.order = moved_least(place_experts(loads, {.slots = experts, .ranks = now.ranks}).expert_of_slot, now);
    const Numbers packed = swapped(loads, other);
    if (busiest(packed) < (1 - kLeastGain) * busiest(best)) best = packed;
  }
  return busiest(best) <= (1 - kLeastGain) * busiest(now.order) ? best : now.order;
}

}  // namespace trireme::layout
