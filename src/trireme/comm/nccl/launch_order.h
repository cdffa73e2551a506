// comm/nccl/launch_order.h -- in which order a rank gives calls to its GPU, so that all ranks take the same order.
//
// Kernels of NCCL wait on the GPU for their partners. Two ranks that gave two calls to their GPUs in opposite orders
// could block each other for good; and threads, timing and receives posted early do mix orders up. So the ranks of a
// call agree on a stamp first, once all of them have arrived (Skeen's total order): each proposes a number above all it
// has seen, the largest is the call's stamp, and a rank launches a call when nothing that might come before it is
// still open. Nobody waits for a rank that has not arrived yet, and the exchange of proposals needs no caller's help,
// so nothing here can wait for what it holds up.
// Depends on: std.
#pragma once

#include <compare>
#include <cstdint>
#include <map>

namespace trireme::comm {

/// One call, named the same on all its ranks: settles which of two equal stamps comes first.
struct LaunchId {
  std::uint32_t channel = 0;
  int from = -1, to = -1;  // of a message, ranks of the world
  std::uint64_t number = 0;
  auto operator<=>(const LaunchId&) const = default;
};

class LaunchOrder {
 public:
  /// All ranks of the call have arrived: this rank's proposal.
  std::uint64_t propose(const LaunchId& id);
  /// All proposals are known; `stamp` is the largest.
  void settle(const LaunchId& id, std::uint64_t stamp);
  /// Whether it is this call's turn.
  bool may_launch(const LaunchId& id) const;
  /// It has been given to the GPU, or given up.
  void leave(const LaunchId& id);
  bool empty() const { return calls_.empty(); }

 private:
  struct Entry {
    std::uint64_t stamp;
    bool settled;
  };
  std::uint64_t clock_ = 0;
  std::map<LaunchId, Entry> calls_;
};

}  // namespace trireme::comm
