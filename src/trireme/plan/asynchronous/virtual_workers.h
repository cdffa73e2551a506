// plan/asynchronous/virtual_workers.h -- unequal devices become virtual workers (HetPipe, Park et al. 2020, section 6):
// who goes together, and which layers each of them holds.
//
// Node partition puts devices of one kind together, equal distribution one of every kind into each virtual worker,
// hybrid pairs kinds so that virtual workers come out about equally fast. Within a virtual worker the order of its
// devices and the cuts are those whose slowest stage, computing and receiving, is fastest, with what each holds within
// its memory.
// Depends on: base.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::plan {

struct UnequalDevice {
  std::string kind;
  double speed = 1;   ///< of a layer's cost a second
  double memory = 0;  ///< bytes
};

struct UnequalLayer {
  double cost = 1;          ///< forward and backward of a minibatch
  double weight_bytes = 0;  ///< with its gradient and optimizer state
  double output_bytes = 0;  ///< that cross to the next layer, and are saved for backward
};

enum class AllocationPolicy : std::uint8_t { kNodePartition, kEqualDistribution, kHybrid };
std::span<const Named<AllocationPolicy>> enum_names(std::type_identity<AllocationPolicy>);

/// By virtual worker: its devices, as indices. As many virtual workers as each policy makes of `stages` devices each;
/// ConfigError where devices are left over or a kind does not go round.
std::vector<std::vector<int>> allocate(AllocationPolicy policy, const std::vector<UnequalDevice>& devices, int stages);

struct UnequalCut {
  std::vector<int> order;   ///< devices of the stages, from the first layers on
  std::vector<int> begins;  ///< the first layer of each stage
  double slowest = 0;       ///< seconds of the slowest stage, for a minibatch
};
/// `in_flight`: minibatches whose saved activations and weights the first stage holds; each later one holds one fewer.
/// Nothing where no cut fits the memories.
std::optional<UnequalCut> cut_for(const std::vector<UnequalDevice>& worker, std::span<const UnequalLayer> layers,
                                  double bytes_per_second, int in_flight);
/// Where chunks begin, as pipeline.split writes it: "layers.3,norm". `blocks`: transformer blocks, which come first.
std::string to_split(const UnequalCut& cut, int blocks);
/// The most minibatches in flight that a virtual worker has memory for, up to `most`; 0: none (Nm of the paper).
int most_in_flight(const std::vector<UnequalDevice>& worker, std::span<const UnequalLayer> layers,
                   double bytes_per_second, int most);

}  // namespace trireme::plan
