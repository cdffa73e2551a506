#include "trireme/layout/expert_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::layout {
namespace {

using Numbers = std::vector<std::int64_t>;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Numbers sorted_by_weight(std::span<const double> weights) {
  Numbers order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return weights[at(a)] > weights[at(b)]; });
  return order;
}

struct Packing {
  Numbers pack, place;  // of each item
};
/// Equally many items a pack, the heaviest first, each into the lightest that has room.
Packing pack_evenly(std::span<const double> weights, std::int64_t packs) {
  const auto items = static_cast<std::int64_t>(weights.size()), each = items / packs;
  Packing packing{Numbers(weights.size()), Numbers(weights.size(), 0)};
  if (each == 1) {
    std::iota(packing.pack.begin(), packing.pack.end(), 0);
    return packing;
  }
  std::vector<double> filled(at(packs), 0);
  Numbers count(at(packs), 0);
  for (const std::int64_t item : sorted_by_weight(weights)) {
    std::int64_t lightest = -1;
    for (std::int64_t pack = 0; pack < packs; ++pack) {
      if (count[at(pack)] < each && (lightest < 0 || filled[at(pack)] < filled[at(lightest)])) lightest = pack;
    }
    packing.pack[at(item)] = lightest;
    packing.place[at(item)] = count[at(lightest)]++;
    filled[at(lightest)] += weights[at(item)];
  }
  return packing;
}

struct Replicas {
  Numbers item_of_slot;  // items themselves first
  Numbers count;         // of each item
};
/// One slot after the other goes to the item whose copies have most to do.
Replicas replicate(std::span<const double> weights, std::int64_t slots) {
  Replicas found{Numbers(weights.size()), Numbers(weights.size(), 1)};
  std::iota(found.item_of_slot.begin(), found.item_of_slot.end(), 0);
  while (static_cast<std::int64_t>(found.item_of_slot.size()) < slots) {
    std::size_t hottest = 0;
    const auto share = [&](std::size_t item) { return weights[item] / static_cast<double>(found.count[item]); };
    for (std::size_t item = 1; item < weights.size(); ++item) {
      if (share(item) > share(hottest)) hottest = item;
    }
    found.item_of_slot.push_back(static_cast<std::int64_t>(hottest));
    ++found.count[hottest];
  }
  return found;
}

/// Copies share evenly.
std::vector<double> loads_of_ranks(std::span<const std::int64_t> loads, std::int64_t ranks,
                                   std::span<const std::int64_t> copies) {
  const auto experts = static_cast<std::int64_t>(loads.size()), each = experts / ranks;
  const std::int64_t room = static_cast<std::int64_t>(copies.size()) / ranks;
  Numbers count(loads.size(), 1);
  for (const std::int64_t expert : copies) {
    if (expert >= 0) ++count[at(expert)];
  }
  std::vector<double> filled(at(ranks), 0);
  const auto share = [&](std::int64_t expert) {
    return static_cast<double>(loads[at(expert)]) / static_cast<double>(count[at(expert)]);
  };
  for (std::int64_t expert = 0; expert < experts; ++expert) filled[at(expert / each)] += share(expert);
  for (std::size_t slot = 0; slot < copies.size(); ++slot) {
    if (copies[slot] >= 0) filled[slot / at(room)] += share(copies[slot]);
  }
  return filled;
}

/// As EPLB chooses: slots go to the experts whose copies have most to do, and then to the ranks that have least.
Numbers copies_of_hottest(std::span<const std::int64_t> loads, std::int64_t ranks, std::int64_t room) {
  const auto experts = static_cast<std::int64_t>(loads.size()), each = experts / ranks;
  const std::vector<double> weights(loads.begin(), loads.end());
  const Replicas replicas = replicate(weights, experts + ranks * room);
  const auto share = [&](std::int64_t expert) {
    return weights[at(expert)] / static_cast<double>(replicas.count[at(expert)]);
  };
  std::vector<double> filled(at(ranks), 0);
  for (std::int64_t expert = 0; expert < experts; ++expert) filled[at(expert / each)] += share(expert);
  std::vector<Numbers> of_rank(at(ranks));
  std::vector<double> of_copies;
  const std::span<const std::int64_t> made = std::span(replicas.item_of_slot).subspan(at(experts));
  for (const std::int64_t expert : made) of_copies.push_back(share(expert));
  for (const std::int64_t copy : sorted_by_weight(of_copies)) {
    const std::int64_t expert = made[at(copy)];
    std::int64_t idlest = -1;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Numbers& there = of_rank[at(rank)];
      const bool fits = static_cast<std::int64_t>(there.size()) < room && expert / each != rank &&
                        std::ranges::find(there, expert) == there.end();
      if (fits && (idlest < 0 || filled[at(rank)] < filled[at(idlest)])) idlest = rank;
    }
    if (idlest < 0 || weights[at(expert)] == 0) continue;  // nowhere to put it, or nothing to share
    of_rank[at(idlest)].push_back(expert);
    filled[at(idlest)] += share(expert);
  }
  Numbers copies(at(ranks * room), -1);
  for (std::int64_t rank = 0; rank < ranks; ++rank) std::ranges::copy(of_rank[at(rank)], copies.begin() + rank * room);
  return copies;
}

/// One after the other the copy of an expert of the busiest rank after which the busiest has least, while one helps.
Numbers copies_one_by_one(std::span<const std::int64_t> loads, std::int64_t ranks, std::int64_t room) {
  const std::int64_t each = static_cast<std::int64_t>(loads.size()) / ranks;
  Numbers copies(at(ranks * room), -1), used(at(ranks), 0);
  for (;;) {
    const std::vector<double> filled = loads_of_ranks(loads, ranks, copies);
    const auto busiest = std::ranges::max_element(filled) - filled.begin();
    double least = filled[at(busiest)];
    Numbers there(at(each));
    std::iota(there.begin(), there.end(), busiest * each);
    for (std::int64_t i = 0; i < used[at(busiest)]; ++i) there.push_back(copies[at(busiest * room + i)]);
    std::int64_t expert_taken = -1, rank_taken = -1;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      if (used[at(rank)] == room) continue;
      const std::span<std::int64_t> here = std::span(copies).subspan(at(rank * room), at(room));
      for (const std::int64_t expert : there) {
        if (expert / each == rank || std::ranges::find(here, expert) != here.end()) continue;
        here[at(used[at(rank)])] = expert;
        const double then = std::ranges::max(loads_of_ranks(loads, ranks, copies));
        here[at(used[at(rank)])] = -1;
        if (then < least) least = then, expert_taken = expert, rank_taken = rank;
      }
    }
    if (expert_taken < 0) return copies;
    copies[at(rank_taken * room + used[at(rank_taken)]++)] = expert_taken;
  }
}

void check_cluster(std::int64_t experts, const ExpertCluster& cluster) {
  const auto divides = [](std::int64_t whole, std::int64_t part) { return part > 0 && whole % part == 0; };
  if (cluster.slots < experts)
    throw ConfigError(fmt::format("{} slots for {} experts", cluster.slots, experts),
                      fmt::format("take at least {} slots", experts));
  if (!divides(cluster.slots, cluster.ranks) || !divides(cluster.ranks, cluster.nodes) ||
      !divides(experts, cluster.groups))
    throw ConfigError(fmt::format("{} slots on {} ranks of {} nodes, {} experts in {} groups: each must divide",
                                  cluster.slots, cluster.ranks, cluster.nodes, experts, cluster.groups),
                      "take a number of slots that the ranks divide, ranks that the nodes divide and experts that the "
                      "groups divide");
}

}  // namespace

ExpertPlacement place_experts(std::span<const std::int64_t> loads, const ExpertCluster& cluster) {
  const auto experts = static_cast<std::int64_t>(loads.size());
  check_cluster(experts, cluster);
  const bool by_node = cluster.groups % cluster.nodes == 0;
  const std::int64_t groups = by_node ? cluster.groups : 1, nodes = by_node ? cluster.nodes : 1;
  const std::int64_t group_size = experts / groups, node_experts = experts / nodes, node_slots = cluster.slots / nodes,
                     node_ranks = cluster.ranks / nodes, rank_slots = cluster.slots / cluster.ranks;
  // Groups onto nodes.
  std::vector<double> of_groups(at(groups), 0);
  for (std::int64_t expert = 0; expert < experts; ++expert)
    of_groups[at(expert / group_size)] += static_cast<double>(loads[at(expert)]);
  const Packing nodes_of = pack_evenly(of_groups, nodes);
  Numbers expert_at(at(experts));  // by node
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t group = expert / group_size;
    const std::int64_t place = nodes_of.pack[at(group)] * (groups / nodes) + nodes_of.place[at(group)];
    expert_at[at(place * group_size + expert % group_size)] = expert;
  }
  ExpertPlacement placement{Numbers(at(cluster.slots), 0), Numbers(at(experts), 0)};
  for (std::int64_t node = 0; node < nodes; ++node) {
    std::vector<double> weights;
    for (std::int64_t i = 0; i < node_experts; ++i)
      weights.push_back(static_cast<double>(loads[at(expert_at[at(node * node_experts + i)])]));
    const Replicas replicas = replicate(weights, node_slots);
    std::vector<double> of_slots;
    for (const std::int64_t item : replicas.item_of_slot)
      of_slots.push_back(weights[at(item)] / static_cast<double>(replicas.count[at(item)]));
    const Packing ranks_of = pack_evenly(of_slots, node_ranks);
    for (std::int64_t slot = 0; slot < node_slots; ++slot) {
      const std::int64_t expert = expert_at[at(node * node_experts + replicas.item_of_slot[at(slot)])];
      const std::int64_t place = ranks_of.pack[at(slot)] * rank_slots + ranks_of.place[at(slot)];
      placement.expert_of_slot[at(node * node_slots + place)] = expert;
      ++placement.copies[at(expert)];
    }
  }
  return placement;
}

std::vector<std::int64_t> place_copies(std::span<const std::int64_t> loads, std::int64_t ranks, std::int64_t room) {
  const auto experts = static_cast<std::int64_t>(loads.size());
  TRIREME_CHECK(experts % ranks == 0 && room >= 0, "{} experts and {} copies on each of {} ranks", experts, room,
                ranks);
  Numbers best(at(ranks * room), -1);
  for (const Numbers& copies : {copies_of_hottest(loads, ranks, room), copies_one_by_one(loads, ranks, room)}) {
    if (busiest_rank(loads, ranks, copies) < busiest_rank(loads, ranks, best)) best = copies;
  }
  return best;
}

double busiest_rank(std::span<const std::int64_t> loads, std::int64_t ranks, std::span<const std::int64_t> copies) {
  const std::vector<double> filled = loads_of_ranks(loads, ranks, copies);
  const double all = std::accumulate(filled.begin(), filled.end(), 0.0);
  return all > 0 ? std::ranges::max(filled) * static_cast<double>(ranks) / all : 1;
}

}  // namespace trireme::layout
