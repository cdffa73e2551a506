// parallel/compress/staged_reductions.h -- reductions of several buckets under way at once: while one bucket's codes
// travel, backward goes on and another's are made.
//
// A reduction is a list of stages with an exchange between two of them. Ranks find an exchange arrived at different
// times, so each stage has a group of its own, whose calls go in the order of the buckets on all ranks: stage s of a
// bucket is run after stage s of all buckets before it that have one, never earlier.
// Depends on: comm.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "trireme/comm/work.h"

namespace trireme::parallel {

/// Each computes, starts an exchange and gives its work; the next one is run when that is over. A work that is empty is
/// over at once. What works borrow, the stages share and keep.
using Stages = std::vector<std::function<comm::Work()>>;

class StagedReductions {
 public:
  /// `before`: what must have arrived before the first stage.
  void add(comm::Work before, Stages stages);
  /// Runs what can be run without waiting.
  void advance();
  /// Until all are over.
  void finish();
  bool empty() const { return entries_.empty(); }
  /// Inside of stages, since this was called last.
  double take_seconds();

 private:
  struct Entry {
    Stages stages;  // outlive the work, which borrows from them
    std::size_t begun = 0;
    comm::Work work;
    bool is_over() { return begun == stages.size() && work.test(); }
  };
  /// As far as stage `before`, which an earlier reduction has not begun yet.
  void advance(Entry& entry, std::size_t before);

  std::deque<Entry> entries_;
  double seconds_ = 0;
};

}  // namespace trireme::parallel
