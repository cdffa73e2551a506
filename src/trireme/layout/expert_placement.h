// layout/expert_placement.h -- which rank gets which expert, and copies of which, from the loads that were counted.
//
// place_experts() is EPLB (DeepSeek's expert-parallel load balancer, github.com/deepseek-ai/EPLB): slots for experts
// are more than experts, hot ones get several. Groups of experts are packed onto nodes so that node-limited routing
// stays inside them, copies are made within each node, and slots are packed onto its ranks; where groups do not divide
// among the nodes, the whole is one node. place_copies() is the same idea for training, where an expert's master
// weights and optimizer state stay with its owner: only copies are placed, on ranks that have little to do. Ties go to
// the lowest number. place_owners() moves experts themselves, with all that belongs to them, between equal parts.
// Depends on: base.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::layout {

struct ExpertCluster {
  std::int64_t slots = 0;   ///< for experts and their copies, over all ranks
  std::int64_t groups = 1;  ///< of neighbouring experts, which stay on one node
  std::int64_t nodes = 1;
  std::int64_t ranks = 1;
};

struct ExpertPlacement {
  std::vector<std::int64_t> expert_of_slot;  ///< [slots]: ranks have equally many, one after the other
  std::vector<std::int64_t> copies;          ///< [experts]
};
/// `loads` [experts]. ConfigError where numbers do not divide, or slots are fewer than experts.
ExpertPlacement place_experts(std::span<const std::int64_t> loads, const ExpertCluster& cluster);

/// Experts lie on ranks in equal, contiguous parts, and each rank has room for `room` copies of others. [ranks x room]:
/// of which expert each is, -1 for none, those behind the others. A rank has an expert at most once. The better of two
/// ways, EPLB's and one copy after the other; none where neither makes the busiest rank less busy.
std::vector<std::int64_t> place_copies(std::span<const std::int64_t> loads, std::int64_t ranks, std::int64_t room);

/// The busiest rank's share of the loads over an even one; copies share evenly.
double busiest_rank(std::span<const std::int64_t> loads, std::int64_t ranks, std::span<const std::int64_t> copies);

/// How experts lie on the ranks that own them, equally many on each.
struct ExpertOwners {
  std::vector<std::int64_t> order;  ///< [experts]: who lies in each place, rank by rank
  std::int64_t ranks = 1;
  std::int64_t node_ranks = 0;  ///< neighbouring ranks that are a node, which no expert leaves; 0: any rank may own any
};
/// The order after experts have moved so that the busiest rank has less to do: of swaps between ranks, one after the
/// other while one helps, and of EPLB's packing, which moves more, the better one. The order as it is where neither
/// takes kLeastGain off the busiest rank's load. Experts that stay with their rank keep their place.
std::vector<std::int64_t> place_owners(std::span<const std::int64_t> loads, const ExpertOwners& now);
inline constexpr double kLeastGain = 0.02;

/// Of what is given by expert, what lies in each place of an order; 0, 1, ... where that is empty.
std::vector<std::int64_t> in_order(std::span<const std::int64_t> of_experts, std::span<const std::int64_t> order);

}  // namespace trireme::layout
