// Ring: p-1 steps, each rank talks to its two neighbours only (Patarasuk and Yuan; baidu-allreduce).
//
// All-reduce costs 2(p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma: the bytes a rank sends hardly depend on p. In
// step k of the reduce-scatter, rank r sends block r-k-1 and combines block r-k-2, so it ends as the owner of block r;
// baidu's numbering ends with block r+1, which differs by the name of the blocks only. Every element is combined along
// one walk round the ring, by whichever rank has it, and the others get a copy: the bits are the same everywhere.
#include <algorithm>

#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

namespace {

struct Ring {
  explicit Ring(const Subgroup& group)
      : size(group.size()), me(group.me), left(group.rank(back(1))), right(group.rank((me + 1) % size)) {}
  /// The index `steps` before this one.
  int back(int steps) const { return ((me - steps) % size + size) % size; }

  int size, me, left, right;
};

/// Keeps two steps of the ring under way. What was sent earlier has left long ago, so waiting for it costs nothing, and
/// neither builder nor transport has to look after the messages of a whole tour of the ring.
class TwoSteps {
 public:
  explicit TwoSteps(RoutineBuilder& to) : to_(to) {}
  void next() {
    to_.wait_for_posts(step_before_);
    step_before_ = to_.mark();
  }

 private:
  RoutineBuilder& to_;
  int step_before_ = 0;
};

const Bundle& bundle_at(const std::vector<Bundle>& blocks, int block) {
  return blocks[static_cast<std::size_t>(block)];
}

}  // namespace

void ring_reduce_scatter(RoutineBuilder& to, const Subgroup& group, const std::vector<Bundle>& source,
                         const std::vector<Bundle>& into) {
  const Ring ring(group);
  TwoSteps under_way(to);
  for (int step = 0; step + 1 < ring.size; ++step) {
    under_way.next();
    const int give = ring.back(step + 1), take = ring.back(step + 2);
    to.recv_reduce(ring.left, bundle_at(source, take), bundle_at(into, take));
    to.send(ring.right, step == 0 ? bundle_at(source, give) : bundle_at(into, give));
  }
}

void ring_all_gather(RoutineBuilder& to, const Subgroup& group, const Bundle& own, const std::vector<Bundle>& into) {
  const Ring ring(group);
  TwoSteps under_way(to);
  for (int step = 0; step + 1 < ring.size; ++step) {
    under_way.next();
    to.exchange(ring.left, bundle_at(into, ring.back(step + 1)), ring.right,
                step == 0 ? own : bundle_at(into, ring.back(step)));
  }
}

Routine ring_all_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Subgroup group = whole_group(shape, rank);
  const BlockBounds blocks = BlockBounds::even({0, shape.count}, shape.ranks);
  const auto output = bundles(blocks, whole_output(shape));
  ring_reduce_scatter(to, group, bundles(blocks, whole_input(shape)), output);
  to.finish(whole_output(shape).at(blocks[rank]));
  ring_all_gather(to, group, bundle_at(output, rank), output);
  return to.take();
}

Routine ring_reduce_scatter(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Subgroup group = whole_group(shape, rank);
  const Ring ring(group);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  // The input may not be written and the output has room for one block: the partial sums that pass through lie in two
  // places in turn, one being filled while the other is sent on.
  Slice places[2];
  for (int place = 0; place < std::min(2, shape.ranks - 2); ++place) places[place] = to.scratch(blocks.longest());
  auto into = bundles(blocks, whole_input(shape));
  for (int step = 0; step + 2 < shape.ranks; ++step) {
    Slice& partial = into[static_cast<std::size_t>(ring.back(step + 2))].front();
    partial = {Space::kScratch, places[step % 2].begin, partial.count};
  }
  const Slice own = own_output(shape, rank).at(blocks[rank]);
  into[static_cast<std::size_t>(rank)] = {own};
  ring_reduce_scatter(to, group, bundles(blocks, whole_input(shape)), into);
  to.finish(own);
  return to.take();
}

Routine ring_all_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const auto output = bundles(blocks, whole_output(shape));
  const Slice own = own_input(shape, rank).at(blocks[rank]);
  ring_all_gather(to, whole_group(shape, rank), {own}, output);
  to.copy(own, bundle_at(output, rank).front());
  return to.take();
}

}  // namespace trireme::comm
