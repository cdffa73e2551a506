// nn/recompute_plan.h -- which stretches of a chain of blocks are recomputed in backward, and what inside of them
// again.
//
// A plan is a value: parts one after the other, each a block that saves its activations or a segment that saves its
// input alone. In backward a segment runs forward again by a plan of its own (Chen et al. 2016, section 4: recursion).
// plan_within() is exact: of all plans that fit into a budget one that recomputes least.
// Depends on: base. No tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::nn {

/// Of one block and one micro-batch, in any units.
struct BlockCost {
  double saved = 0;    ///< bytes that its forward leaves for its backward, its input among them
  double input = 0;    ///< bytes of its input
  double forward = 1;  ///< how long its forward takes
  bool operator==(const BlockCost&) const = default;
};

struct RecomputePart {
  std::int64_t begin = 0, end = 0;         ///< blocks
  std::vector<RecomputePart> inside = {};  ///< of a segment: how it runs again. Empty: one block that saves
  bool recomputed() const { return !inside.empty(); }
  bool operator==(const RecomputePart&) const = default;
};
using RecomputePlan = std::vector<RecomputePart>;

/// Most bytes at any time of forward and backward: what parts save, and what the segment that runs again saves.
double peak_bytes(const RecomputePlan& plan, std::span<const BlockCost> blocks);
/// Time of all forwards that run again.
double recomputed_time(const RecomputePlan& plan, std::span<const BlockCost> blocks);

/// Halves of halves: the first one is a segment, the second goes on. About log2(n) inputs and one block are in memory
/// at a time, and each block runs again about log2(n) / 2 times (Chen et al. 2016, section 4.4 with k = 1).
RecomputePlan recursive_plan(std::int64_t blocks);

/// Of all plans whose peak is at most `budget` one that takes least time, by dynamic programming over stretches and
/// memory. Bytes are counted in budget / `units`, rounded up: exact where sizes are whole multiples of that, on the
/// safe side elsewhere. A ConfigError with the least that would do where none fits.
RecomputePlan plan_within(std::span<const BlockCost> blocks, double budget, int units = 256);

}  // namespace trireme::nn
