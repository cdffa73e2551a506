// checkpoint/memory_snapshots.h -- the state of a run in the memory of its ranks: what survivors of a world go on from.
//
//   MemorySnapshots snapshots;                          outlives worlds
//   SnapshotTaker taker(state, world, snapshots, epoch);   once a world, on all ranks together: plans who keeps what
//   taker.take(step);                                   at a step edge
//   ... a rank dies; in the next world, on all of its ranks:
//   if (const auto found = newest_snapshot(snapshots, world)) load_snapshot(snapshots, *found, state, world);
//
// Every element is kept by one rank, each about as many bytes (save_plan.h), and once more by the next rank: any one
// rank may be lost, and several that do not stand side by side. The image of a part is that of its file in a
// checkpoint, so reading is that of a checkpoint too, under any layout; only that bytes come from memory, over the new
// world. Two snapshots are kept, since a rank may die while the newer one is being taken.
// Depends on: base, comm, formats, layout, nn.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/save_plan.h"
#include "trireme/comm/group.h"
#include "trireme/nn/state.h"

namespace trireme::checkpoint {

/// Which snapshot: epochs tell worlds apart that have computed the same step.
struct SnapshotId {
  std::int64_t epoch = 0, step = 0;
  auto operator<=>(const SnapshotId&) const = default;
};

/// What a rank has of one.
struct HeldSnapshot {
  SnapshotId id;
  std::vector<std::size_t> parts;  ///< numbers in the manifest
  std::size_t of = 0;              ///< so many there are
  bool operator==(const HeldSnapshot&) const = default;
};

/// The latest step of which every part is held by somebody; of two epochs the later. [rank]
std::optional<SnapshotId> choose_snapshot(const std::vector<std::vector<HeldSnapshot>>& holdings);
/// Who sends which part: the first rank that holds it, so that each is sent by one. [part]
std::vector<int> holders_of(const SnapshotId& id, const std::vector<std::vector<HeldSnapshot>>& holdings);

class MemorySnapshots {
 public:
  struct Snapshot {
    SnapshotId id;
    /// Where everything is; shared with the world's other snapshots, and with who takes them.
    std::shared_ptr<const formats::CheckpointManifest> layout;
    std::string values;                                   // of the state, beside tensors: JSON
    std::size_t of = 0;                                   // parts
    std::map<std::size_t, std::vector<std::byte>> parts;  // images of files
    /// As that of a checkpoint. Made when it is asked for: most snapshots never are.
    std::string manifest_text() const;
  };
  /// Of those that are kept.
  std::vector<HeldSnapshot> holdings() const;
  const Snapshot* find(const SnapshotId& id) const;
  /// Puts it beside the newest one, in the place of those before.
  void keep(Snapshot snapshot);
  /// An image of a snapshot that would be the next to go, to be written over; empty when there is none of that size.
  std::vector<std::byte> recycle(std::size_t bytes);
  std::size_t bytes() const;

 private:
  std::deque<Snapshot> kept_;  // the newest last
  std::vector<std::vector<std::byte>> spare_;
};

/// What a world's snapshots have cost one rank so far.
struct SnapshotCost {
  std::int64_t taken = 0;
  std::uint64_t bytes = 0;              ///< copied and sent, all together
  double seconds = 0, cpu_seconds = 0;  ///< of the process: its other threads are counted too
};

class SnapshotTaker {
 public:
  /// All are borrowed. On all ranks together.
  SnapshotTaker(const nn::State& state, comm::Group& world, MemorySnapshots& snapshots, std::int64_t epoch);
  /// On all ranks together; the state must not change meanwhile.
  void take(std::int64_t step);
  /// Copied and sent by this rank each time.
  std::uint64_t bytes() const { return mine_.bytes; }
  const SnapshotCost& cost() const { return cost_; }

 private:
  struct Part {
    std::optional<std::size_t> number;  // in the manifest; nothing to keep otherwise
    std::uint64_t bytes = 0;
  };
  void plan();
  void copy_mine(std::byte* to) const;

  const nn::State& state_;
  comm::Group& world_;
  MemorySnapshots& snapshots_;
  const std::int64_t epoch_;
  std::int64_t placement_changes_ = 0;  // that the plan knows of
  SavePlan plan_;                       // of other ranks without runs
  PartPlan part_;
  std::string prefix_;
  std::shared_ptr<const formats::CheckpointManifest> layout_;  // shared with the snapshots taken
  Part mine_, theirs_;                                         // theirs: of the rank before
  SnapshotCost cost_;
};

/// On all ranks of the world together; the same everywhere.
std::optional<SnapshotId> newest_snapshot(const MemorySnapshots& snapshots, comm::Group& world);
/// Reads the state of it. On all ranks of the world together. CommError when a rank is lost meanwhile.
void load_snapshot(const MemorySnapshots& snapshots, const SnapshotId& id, nn::State& state, comm::Group& world);

}  // namespace trireme::checkpoint
