// layout/reshard.h -- how a tensor gets from one layout into another: which rank sends which stretch to which.
//
// The plan is a value. Whoever moves the bytes (a checkpoint reader, a group, a test with arrays) only walks it. Its
// cost grows with the number of runs of the placements, not with the elements. No plan moves less: a rank keeps what it
// has and gets the rest once. Where several ranks have a copy, they share the work: each sends about the same bytes.
// Depends on: base.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "trireme/layout/placement.h"

namespace trireme::layout {

/// Elements from .. from + count of the source's memory go to .. to + count of the target's.
struct Copy {
  Index from = 0, to = 0, count = 0;
  bool operator==(const Copy&) const = default;
};

struct ReshardTransfer {
  int source = 0, target = 0;
  std::vector<Copy> copies;  ///< by ascending `to`; no two could be one
  bool operator==(const ReshardTransfer&) const = default;
};

struct ReshardPlan {
  std::string name;
  std::size_t element_bytes = 1;
  std::vector<ReshardTransfer> transfers;  ///< by target, then source
  bool operator==(const ReshardPlan&) const = default;
};

/// How the work is shared between copies.
struct Sharing {
  /// Per source, what it sends to others for other tensors: carry it along with add_sent(), or each tensor's remainder
  /// falls to the same ranks. Empty: nothing yet.
  std::vector<std::size_t> sent_bytes;
  /// A copy whose share would be smaller takes none: below this, one more message costs more than it saves.
  std::size_t grain_bytes = 64 << 10;
};

/// from[rank] and to[rank]: the same tensor on all ranks before and after; the numbers of ranks may differ. Every
/// element of a target comes exactly once: from the rank itself where it has it, otherwise from one of the copies.
/// Padding of the target is not written. ConfigError when the shapes differ or nobody has an element.
ReshardPlan plan_reshard(std::span<const Placement> from, std::span<const Placement> to, std::size_t element_bytes,
                         const Sharing& sharing = {});

/// Adds what each source sends to other ranks; grows the list where the plan has more sources.
void add_sent(const ReshardPlan& plan, std::vector<std::size_t>& sent_bytes);

struct ReshardVolume {
  std::size_t kept_bytes = 0;       ///< copied within a rank
  std::size_t moved_bytes = 0;      ///< between ranks
  std::size_t most_sent_bytes = 0;  ///< by the busiest source to others
  std::size_t messages = 0;         ///< pairs of different ranks
  std::size_t copies = 0;
  bool operator==(const ReshardVolume&) const = default;
};
ReshardVolume volume(const ReshardPlan& plan);

/// A line a transfer, "0 -> 2: [4,8) to [0,4)" in elements, with at most `copies` stretches each.
std::string to_text(const ReshardPlan& plan, std::size_t copies = 8);

}  // namespace trireme::layout
