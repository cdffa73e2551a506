// comm/algorithms/builder.h -- what every algorithm is written with: a routine that grows step by step.
//
// An algorithm says which slices it sends, receives and combines, in order; RoutineBuilder puts in the waits. It knows
// which posted steps are still under way and which memory they use, and lets the routine wait for exactly those that
// the next step would disturb. So no routine can touch memory in flight, and cutting transfers into segments makes a
// pipeline by itself: a segment is passed on as soon as that segment has arrived, while later ones still travel.
// Input and output are treated as the same memory wherever the caller may make them so (see Space).
// Depends on: comm/routine.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/comm/routine.h"

namespace trireme::comm {

/// The ranks that run a part of an algorithm, and the place of this rank among them.
struct Subgroup {
  std::vector<int> ranks;  // ranks in the group
  int me = 0;              // index into `ranks`

  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int index) const { return ranks[static_cast<std::size_t>(index)]; }
};
/// Everyone, in order of rank.
Subgroup whole_group(const Shape& shape, int rank);

/// Elements [begin, begin + count) of the vector that a collective works on.
struct ElementRange {
  std::size_t begin = 0, count = 0;
  std::size_t end() const { return begin + count; }
};

/// A vector cut into consecutive blocks, one for each member of a parallel context.
class BlockBounds {
 public:
  /// BlockBounds that differ by one element at most, the longer ones first.
  static BlockBounds even(ElementRange whole, int parts);
  static BlockBounds of(std::span<const std::size_t> counts);

  int size() const { return static_cast<int>(bounds_.size()) - 1; }
  ElementRange operator[](int block) const { return range(block, block + 1); }
  ElementRange range(int first, int last) const;  // blocks first .. last-1
  ElementRange whole() const { return range(0, size()); }
  std::size_t longest() const;
  /// Neighbours united: block i is what lay in [bounds[i], bounds[i+1]).
  BlockBounds united(std::span<const int> bounds) const;

 private:
  std::vector<std::size_t> bounds_;
};

/// Where a part of the vector lies: `memory` holds its elements from `origin` on.
struct View {
  Slice memory;
  std::size_t origin = 0;

  Slice at(ElementRange range) const { return {memory.space, memory.begin + (range.begin - origin), range.count}; }
};

/// A block in several pieces; each piece is a message of its own.
using Bundle = std::vector<Slice>;
/// The blocks as they lie in `view`, one piece each.
std::vector<Bundle> bundles(const BlockBounds& blocks, const View& view);

enum class Cut : bool {
  kWhole,     ///< one message a transfer: the fewest latencies
  kSegments,  ///< messages of Shape::segment_bytes: combining or passing on one overlaps moving the next
};

class RoutineBuilder {
 public:
  RoutineBuilder(const Shape& shape, int rank, Cut cut);

  /// Memory of our own, free until the routine ends.
  Slice scratch(std::size_t count);

  // Empty transfers are left out; the peer leaves them out too, as both know the count.
  void send(int peer, Slice from);
  void recv(int peer, Slice to);
  void recv_reduce(int peer, Slice from, Slice to);  // to = from (+) what arrives
  void send(int peer, const Bundle& from);
  void recv(int peer, const Bundle& to);
  void recv_reduce(int peer, const Bundle& from, const Bundle& to);
  /// A receive and a send whose segments are posted in turn: where the memory of both is still in use, the first ones
  /// go on their way as soon as they can, and not after all of the other kind.
  void exchange(int from_peer, const Bundle& to, int to_peer, const Bundle& from);
  void copy(Slice from, Slice to);
  /// Done segment by segment, each just before a later step uses it, or at the end: so that what was combined first is
  /// passed on while the rest still arrives.
  void finish(Slice to);

  /// Messages without content, for barriers. await() returns when the peer's signal is there.
  void signal(int peer);
  void await(int peer);

  /// How far the routine has got; wait_for_posts(mark) waits for what was posted before that point.
  int mark() const { return static_cast<int>(routine_.steps.size()); }
  void wait_for_posts(int mark);
  void wait_for_all() { wait_for_posts(mark()); }
  /// The finished routine; waits for what is under way.
  Routine take();

 private:
  /// Memory that a step reads or writes. Scratch lies far behind the rest, input and output where they may share.
  struct Access {
    std::size_t begin, end;
    bool writes;
  };
  struct Pending {
    int step;
    Access access;
  };

  Access access(Slice slice, bool writes) const;
  void settle(const Access& access);
  void finish_first(const Access& access);
  int post(Step step);
  void run(Step step);
  std::size_t wait_for(std::size_t pending);
  std::size_t segment_of(std::size_t count) const;
  std::vector<Slice> segments(const Bundle& bundle) const;

  Routine routine_;
  std::vector<Slice> unfinished_;             // segments to be finished
  std::vector<Pending> pending_;              // as posted; what reads one slice and writes another has two in a row
  std::size_t segment_;                       // elements
  std::size_t in_shift_ = 0, out_shift_ = 0;  // from slices to the memory that both share when in place
};

// The buffers of the caller, as views of the operation's whole vector. For the operations with blocks, the vector is
// what all blocks make up together; a rank's own short side holds block `rank` of it.
View whole_input(const Shape& shape);
View whole_output(const Shape& shape);
View own_input(const Shape& shape, int rank);
View own_output(const Shape& shape, int rank);

}  // namespace trireme::comm
