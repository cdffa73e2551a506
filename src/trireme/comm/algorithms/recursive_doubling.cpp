// Recursive doubling: in step k exchange all one has with the rank whose number differs in bit k (Thakur et al., 3.1
// and 4.5). lg p steps, so it is the fastest for short vectors.
#include <fmt/format.h>

#include <bit>

#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

void recursive_doubling_all_gather(RoutineBuilder& to, const Subgroup& group, const BlockBounds& blocks,
                                   const View& view) {
  for (int held = 1; held < group.size(); held *= 2) {
    const int partner = group.me ^ held;
    const int mine = group.me & ~(held - 1), theirs = partner & ~(held - 1);
    to.exchange(group.rank(partner), {view.at(blocks.range(theirs, theirs + held))}, group.rank(partner),
                {view.at(blocks.range(mine, mine + held))});
  }
}

Routine recursive_doubling_all_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  to.copy(own_input(shape, rank).at(blocks[rank]), whole_output(shape).at(blocks[rank]));
  recursive_doubling_all_gather(to, whole_group(shape, rank), blocks, whole_output(shape));
  return to.take();
}

std::string recursive_doubling_all_gather_refuses(const Shape& shape) {
  if (std::has_single_bit(static_cast<unsigned>(shape.ranks))) return "";
  return fmt::format("recursive doubling gathers among a power of two of ranks, not {}; use bruck or ring",
                     shape.ranks);
}

Routine recursive_doubling_all_reduce(const Shape& shape, int rank) {
  // Not cut: this algorithm is for vectors so short that only the number of messages counts.
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Slice input = whole_input(shape).memory, output = whole_output(shape).memory;
  const int members = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.ranks)));
  const int pairs = shape.ranks - members;

  // With other counts than powers of two the first 2r ranks pair up: the even one gives its vector away and gets the
  // result in the end (Thakur et al., 4.5).
  Slice current = input;
  if (rank < 2 * pairs) {
    if (rank % 2 == 0) {
      to.send(rank + 1, input);
      to.recv(rank + 1, output);
      return to.take();
    }
    to.recv_reduce(rank - 1, input, output);
    current = output;
  }
  const int me = rank < 2 * pairs ? rank / 2 : rank - pairs;

  // A step reads `current` for the peer and for itself while the sum is being made, so the sum goes elsewhere: scratch
  // and output take turns. Input and output count as one place, as they may be the same memory.
  const Slice scratch = to.scratch(shape.count);
  for (int bit = 1; bit < members; bit *= 2) {
    const int partner = me ^ bit;
    const int peer = partner < pairs ? 2 * partner + 1 : partner + pairs;
    const Slice next = current == scratch ? output : scratch;
    to.recv_reduce(peer, current, next);
    to.send(peer, current);
    current = next;
  }
  to.copy(current, output);
  to.finish(output);
  if (rank < 2 * pairs) to.send(rank - 1, output);
  return to.take();
}

}  // namespace trireme::comm
