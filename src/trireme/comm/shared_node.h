// comm/shared_node.h -- memory shared by the processes of one node: their event counts, and the boards of their groups.
//
// For every transport between processes. How the processes tell each other names and verdicts is the transport's own
// business: it brings a Bootstrap, of MPI's broadcasts or of keys in the control plane.
// Depends on: board.h, POSIX shared memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/board.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

/// Some ranks that are all in the same call: what they need to agree on anything.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  /// Whether this rank is the first of them.
  virtual bool is_first() const = 0;
  /// What the first one holds, to all.
  virtual void broadcast(void* data, std::size_t bytes) = 0;
  /// Whether all say yes.
  virtual bool all(bool mine) = 0;
};

/// Memory that several processes of a node have mapped. Its name is gone as soon as all have it, so nothing is left
/// behind however the processes end.
class SharedRegion {
 public:
  /// All ranks of the bootstrap call this; the first makes the region and `construct`s in it, the others map it. Null
  /// on every rank when one could not (no room in /dev/shm).
  static std::shared_ptr<SharedRegion> make(Bootstrap& bootstrap, std::size_t bytes,
                                            const std::function<void(void*)>& construct);
  ~SharedRegion();
  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  void create();
  void attach();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  char name_[64] = {};
};

/// What a process tells the others of itself: enough to find out who shares memory with it, and may read it.
struct ProcessCard {
  unsigned long node = 0;  // the same for those that may share memory: node_identity(), or what a launcher knows
  long process = 0;        // id
  unsigned long probe_address = 0, probe = 0;
};
/// This process's card; lets others of the node read its memory where the system asks for that.
ProcessCard own_process_card(unsigned long node);
/// The same for processes that share a kernel, a name, a table of processes and a /dev/shm.
unsigned long node_identity();

/// The node as this rank sees it.
class SharedNode {
 public:
  /// `cards` of all ranks of the world; `ranks_per_node` above 0: nodes are cut further into so many ranks each, in
  /// their order. `local` assembles the ranks of this rank's node; it is asked for after nodes are known.
  SharedNode(int rank, const std::vector<ProcessCard>& cards, int ranks_per_node,
             const std::function<std::unique_ptr<Bootstrap>(const std::vector<int>& ranks)>& assemble);

  /// The node of each rank of the world, numbered from 0 in the order of their first ranks.
  const std::vector<int>& node_of() const { return node_of_; }
  /// This rank's; null when there is no shared memory.
  EventCount* event_count() { return event_counts_ ? event_count_of(my_local_) : nullptr; }
  /// Whether the members are all on this node, and memory can be shared there.
  bool can_share(const Members& members) const;
  /// The members' board, made by all of them; null when the memory could not be had. Only where can_share().
  std::unique_ptr<Board> make_board(Bootstrap& bootstrap, const Members& members);

 private:
  EventCount* event_count_of(int local) { return reinterpret_cast<EventCount*>(event_counts_->data()) + local; }

  int my_local_ = 0, my_node_ = 0;
  std::vector<int> node_of_;
  std::vector<int> local_of_;                   // rank within its node, by world rank
  std::vector<pid_t> processes_;                // by world rank
  bool may_touch_ = false;                      // the ranks of this node may read each other's memory
  std::shared_ptr<SharedRegion> event_counts_;  // shared with the boards, which notify them
};

}  // namespace trireme::comm
