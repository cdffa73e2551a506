// comm/mpi_plugin/mpi_node.h -- memory shared by the ranks of one node: their event counts, and the boards of their
// groups.
// Depends on: board.h, MPI, POSIX shared memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/board.h"
#include "trireme/comm/mpi_plugin/mpi_common.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

/// Memory that several processes of a node have mapped. Its name is gone as soon as all have it, so nothing is left
/// behind however the processes end.
class SharedRegion {
 public:
  /// All ranks of `comm`, which share a node, call this; rank 0 makes the region, `construct`s in it, and the others
  /// map it. Null on every rank when one could not (no room in /dev/shm).
  template <typename Construct>
  static std::shared_ptr<SharedRegion> make(MPI_Comm comm, std::size_t bytes, Construct&& construct) {
    auto region = std::make_shared<SharedRegion>();
    const bool first = region->create(comm, bytes);
    if (first && region->data_ != nullptr) construct(region->data_);
    return region->attach(comm) ? region : nullptr;
  }
  ~SharedRegion();
  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  bool create(MPI_Comm comm, std::size_t bytes);
  bool attach(MPI_Comm comm);

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  char name_[64] = {};
};

/// The node as this rank sees it.
class MpiNode {
 public:
  /// `ranks_per_node` above 0: nodes are cut further into so many ranks each, in their order.
  MpiNode(MPI_Comm world, int ranks_per_node);
  ~MpiNode();

  /// The node of each rank of the world, numbered from 0 in the order of their first ranks.
  const std::vector<int>& node_of() const { return node_of_; }
  /// This rank's; null when there is no shared memory.
  EventCount* event_count() { return event_counts_ ? event_count_of(my_local_) : nullptr; }
  /// Null unless all members are on this node.
  std::unique_ptr<Board> make_board(MPI_Comm comm, const Members& members);

 private:
  EventCount* event_count_of(int local) { return reinterpret_cast<EventCount*>(event_counts_->data()) + local; }

  MPI_Comm local_ = MPI_COMM_NULL;
  int my_local_ = 0, my_node_ = 0;
  std::vector<int> node_of_;
  std::vector<int> local_of_;                   // rank within its node, by world rank
  std::vector<pid_t> processes_;                // by world rank
  bool may_touch_ = false;                      // the ranks of this node may read each other's memory
  std::shared_ptr<SharedRegion> event_counts_;  // shared with the boards, which notify them
};

}  // namespace trireme::comm
