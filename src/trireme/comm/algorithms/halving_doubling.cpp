// Recursive halving and doubling (Rabenseifner 2004; Thakur et al. 2005, 4.3-4.5).
//
// Reduce-scatter by exchanging n/2, n/4, ... with ever other partners, then all-gather (all_reduce) or a binomial
// gather (reduce) back the same way: 2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma.
// For all_reduce and reduce the members are numbered by reversed bits, which turns "distance halving" into
// Rabenseifner's distance doubling: the longest messages go to the nearest ranks, which are likely on the same node.
#include <bit>

#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

namespace {

/// Brings any group down to a power of two: the first 2r members pair up, and in each pair the second, the guest, hands
/// its part over to the first, the host (Rabenseifner 2004, section 2.2).
struct Fold {
  explicit Fold(const Subgroup& group) {
    const int members = static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size())));
    const int pairs = group.size() - members;
    if (group.me < 2 * pairs) (group.me % 2 == 0 ? host : guest) = true;
    if (host) mate = group.rank(group.me + 1);
    if (guest) mate = group.rank(group.me - 1);
    for (int index = 0; index < members; ++index) {
      bounds.push_back(index < pairs ? 2 * index : index + pairs);
      rest.ranks.push_back(group.rank(bounds.back()));
    }
    bounds.push_back(group.size());
    rest.me = group.me < 2 * pairs ? group.me / 2 : group.me - pairs;
  }

  bool host = false, guest = false;
  int mate = -1;  // the other of the pair, for host and guest
  Subgroup rest;  // those who go on; the guests' `me` is their host's
  std::vector<int>
      bounds;  // member i of `rest` stands for the indices [bounds[i], bounds[i+1]) of the parallel context
};

/// The pair cuts the vector in halves, each combines one, and the guest sends its half over: the arithmetic is shared.
/// The guest needs room for the upper half only.
void fold_in(RoutineBuilder& to, const Fold& fold, ElementRange whole, const View& source, const View& into) {
  const ElementRange lower{whole.begin, whole.count / 2}, upper{lower.end(), whole.count - lower.count};
  const ElementRange keep = fold.host ? lower : upper, give = fold.host ? upper : lower;
  to.recv_reduce(fold.mate, source.at(keep), into.at(keep));
  to.send(fold.mate, source.at(give));
  if (fold.host)
    to.recv(fold.mate, into.at(upper));
  else
    to.send(fold.mate, into.at(upper));
}

/// The same members, a power of two of them, in the order of their numbers read backwards in binary.
Subgroup bit_reversed(const Subgroup& group) {
  const auto reverse = [&](int index) {
    int reversed = 0;
    for (int bit = 1; bit < group.size(); bit *= 2) reversed = 2 * reversed + ((index & bit) != 0 ? 1 : 0);
    return reversed;
  };
  Subgroup result{{}, reverse(group.me)};
  for (int index = 0; index < group.size(); ++index) result.ranks.push_back(group.rank(reverse(index)));
  return result;
}

/// What a member still has to do with after the first exchange: the half that its own block lies in.
ElementRange kept_half(const Subgroup& group, const BlockBounds& blocks) {
  const int half = group.size() / 2;
  return group.me < half ? blocks.range(0, half) : blocks.range(half, group.size());
}

}  // namespace

void recursive_halving(RoutineBuilder& to, const Subgroup& group, const BlockBounds& blocks, View source,
                       const View& into, const View& last) {
  int first = 0;
  for (int half = group.size() / 2; half >= 1; half /= 2) {
    const bool lower = group.me < first + half;
    const int partner = lower ? group.me + half : group.me - half;
    const ElementRange low = blocks.range(first, first + half), high = blocks.range(first + half, first + 2 * half);
    if (!lower) first += half;
    const ElementRange keep = lower ? low : high, give = lower ? high : low;
    const View& target = half == 1 ? last : into;
    // Sending first: its segments leave as they come in from the step before, while the receive, which goes into the
    // same memory, has to wait for all of them.
    to.send(group.rank(partner), source.at(give));
    to.recv_reduce(group.rank(partner), source.at(keep), target.at(keep));
    source = target;
  }
}

void halving_doubling_all_reduce(RoutineBuilder& to, const Subgroup& group, ElementRange whole, const View& source,
                                 const View& into) {
  const Fold fold(group);
  if (fold.host || fold.guest) fold_in(to, fold, whole, source, into);
  if (fold.guest) return to.recv(fold.mate, into.at(whole));

  const Subgroup members = bit_reversed(fold.rest);
  const BlockBounds blocks = BlockBounds::even(whole, members.size());
  if (members.size() == 1) to.copy(source.at(whole), into.at(whole));
  recursive_halving(to, members, blocks, fold.host ? into : source, into, into);
  to.finish(into.at(blocks[members.me]));
  recursive_doubling_all_gather(to, members, blocks, into);
  if (fold.host) to.send(fold.mate, into.at(whole));
}

Routine halving_doubling_all_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  halving_doubling_all_reduce(to, whole_group(shape, rank), {0, shape.count}, whole_input(shape), whole_output(shape));
  return to.take();
}

Routine halving_doubling_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  // The root comes first: so it is never a guest, and it is the root of the gathering tree.
  Subgroup group{{}, (rank - shape.root + shape.ranks) % shape.ranks};
  for (int index = 0; index < shape.ranks; ++index) group.ranks.push_back((shape.root + index) % shape.ranks);
  const Fold fold(group);
  const ElementRange whole{0, shape.count};
  const Subgroup members = bit_reversed(fold.rest);
  const BlockBounds blocks = BlockBounds::even(whole, members.size());

  View into = whole_output(shape);
  if (rank != shape.root) {
    ElementRange held = kept_half(members, blocks);
    if (fold.host) held = whole;
    if (fold.guest) held = {shape.count / 2, shape.count - shape.count / 2};
    into = {to.scratch(held.count), held.begin};
  }
  const View source = whole_input(shape);
  if (fold.host || fold.guest) fold_in(to, fold, whole, source, into);
  if (fold.guest) return to.take();
  recursive_halving(to, members, blocks, fold.host ? into : source, into, into);
  to.finish(into.at(blocks[members.me]));
  binomial_gather(to, members, binomial_tree(members.size(), 0, members.me), blocks, into);
  return to.take();
}

Routine halving_doubling_reduce_scatter(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Fold fold(whole_group(shape, rank));
  const BlockBounds all = BlockBounds::of(shape.counts);
  const ElementRange whole = all.whole();
  const View source = whole_input(shape), output = own_output(shape, rank);
  if (fold.guest) {
    const ElementRange upper{whole.count / 2, whole.count - whole.count / 2};
    fold_in(to, fold, whole, source, {to.scratch(upper.count), upper.begin});
    to.recv(fold.mate, output.at(all[rank]));
    return to.take();
  }
  // A host ends with its guest's block beside its own; they are combined as one.
  const BlockBounds blocks = all.united(fold.bounds);
  if (!fold.host) {
    const bool direct = fold.rest.size() == 2;  // the only exchange yields the output
    const ElementRange held = direct ? ElementRange{} : kept_half(fold.rest, blocks);
    recursive_halving(to, fold.rest, blocks, source, {to.scratch(held.count), held.begin}, output);
    to.finish(output.at(all[rank]));
    return to.take();
  }
  const View into{to.scratch(whole.count), 0};
  fold_in(to, fold, whole, source, into);
  recursive_halving(to, fold.rest, blocks, into, into, into);
  to.finish(into.at(blocks[fold.rest.me]));
  to.send(fold.mate, into.at(all[rank + 1]));
  to.copy(into.at(all[rank]), output.at(all[rank]));
  return to.take();
}

}  // namespace trireme::comm
