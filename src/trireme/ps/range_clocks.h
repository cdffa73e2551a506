// ps/range_clocks.h -- how far each worker's pushes have come, range by range: vector clocks (Li et al. 2014, 4.1).
//
// A clock for each key and worker would be as large as the model. Ranges that were always pushed together share one; a
// push that covers a part of a range splits it, so with k borders of pushes and m workers there are at most
// (k + 1) m clocks. The clock of a worker is the last of its tasks that was applied there: since a worker's pushes
// arrive in order, it also says whether a push that comes again was applied already.
// Depends on: segments.h.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/ps/segments.h"

namespace trireme::ps {

/// Of one range: worker -> its last task applied here.
struct RangeClock {
  Segment keys;
  std::map<int, std::uint64_t> tasks;
  bool operator==(const RangeClock&) const = default;
};

class RangeClocks {
 public:
  /// The parts that do not have this task of the worker yet.
  std::vector<Segment> lacking(const Segment& keys, int worker, std::uint64_t task) const;
  void advance(const Segment& keys, int worker, std::uint64_t task);
  /// The least task of a worker over the keys; 0 where some have none.
  std::uint64_t least(const Segment& keys, int worker) const;

  /// What a copy of these keys has to know, and is told.
  std::vector<RangeClock> read(const Segment& keys) const;
  void replace(const Segment& keys, const std::vector<RangeClock>& clocks);
  /// Forgets all other keys.
  void keep(const SegmentSet& keys);

  std::size_t ranges() const { return ranges_.size(); }
  std::size_t clocks() const;

 private:
  struct Entry {
    std::uint64_t end;
    std::map<int, std::uint64_t> tasks;
  };
  /// A border lies there afterwards, where there are clocks on both sides.
  void split_at(std::uint64_t key);
  void erase(const Segment& keys);
  void join(const Segment& keys);

  std::map<std::uint64_t, Entry> ranges_;  // by their beginning; keys without a clock are in none
};

}  // namespace trireme::ps
