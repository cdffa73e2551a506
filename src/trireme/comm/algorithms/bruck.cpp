// Bruck et al. (1997): ceil(lg p) rounds for any p, in which blocks travel in lumps (Thakur et al., 3.2 and 3.6).
//
// All-gather: ceil(lg p) alpha + (p-1)/p n beta, the best for short blocks when p is no power of two. All-to-all: each
// block goes by the binary digits of its distance, ceil(lg p) alpha + about lg p n/2 beta, the best for tiny blocks.
// The barrier is the same pattern without content (dissemination). All blocks must be of one length.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

std::string bruck_refuses(const Shape& shape) {
  if (shape.op == Collective::kBarrier) return "";
  if (shape.uneven) return "bruck needs blocks of one length on all ranks; use pairwise or linear";
  const auto same = [&](std::size_t count) { return count == shape.counts.front(); };
  if (std::ranges::all_of(shape.counts, same) && std::ranges::all_of(shape.recv_counts, same)) return "";
  return fmt::format("bruck needs blocks of one length; they have {} to {} elements", std::ranges::min(shape.counts),
                     std::ranges::max(shape.counts));
}

Routine bruck_all_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const std::size_t count = shape.counts.front();
  const Slice input{Space::kInput, 0, count};
  // Blocks are held in the order of ranks that starts with the own: rank, rank+1, ... For rank 0 that is the order of
  // the output; the others turn it in the end.
  const Slice held = rank == 0 ? whole_output(shape).memory : to.scratch(count * shape.counts.size());
  const auto blocks = [&](int first, int last) {
    return Slice{held.space, held.begin + static_cast<std::size_t>(first) * count,
                 static_cast<std::size_t>(last - first) * count};
  };
  to.copy(input, blocks(0, 1));
  for (int have = 1; have < shape.ranks; have *= 2) {
    const int more = std::min(have, shape.ranks - have);
    to.recv((rank + have) % shape.ranks, blocks(have, have + more));
    to.send((rank - have + shape.ranks) % shape.ranks, have == 1 ? input : blocks(0, more));
  }
  if (rank == 0) return to.take();
  const std::size_t turn = static_cast<std::size_t>(shape.ranks - rank) * count;
  to.copy(blocks(0, shape.ranks - rank), {Space::kOutput, static_cast<std::size_t>(rank) * count, turn});
  to.copy(blocks(shape.ranks - rank, shape.ranks), {Space::kOutput, 0, static_cast<std::size_t>(rank) * count});
  return to.take();
}

Routine bruck_all_to_all(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const int ranks = shape.ranks;
  const std::size_t count = shape.counts.front();
  const auto block = [&](Space space, int index) {
    return Slice{space, static_cast<std::size_t>((index % ranks + ranks) % ranks) * count, count};
  };
  // `distance` names a block here: at first the one for rank + distance, in the end the one from rank - distance. The
  // latter's place in the output serves as its home in between, so nothing has to be turned before or after.
  std::vector<Slice> home;
  for (int distance = 0; distance < ranks; ++distance) home.push_back(block(Space::kInput, rank + distance));
  to.copy(home[0], block(Space::kOutput, rank));

  const auto lump = static_cast<std::size_t>((ranks + 1) / 2);  // no digit is set in more of the distances
  const Slice leaving = to.scratch(lump * count), coming = to.scratch(lump * count);
  for (int digit = 1; digit < ranks; digit *= 2) {
    std::vector<int> moved;
    for (int distance = digit; distance < ranks; ++distance)
      if ((distance & digit) != 0) moved.push_back(distance);
    const auto piece = [&](Slice of, std::size_t index) { return Slice{of.space, of.begin + index * count, count}; };
    const Slice out{leaving.space, leaving.begin, moved.size() * count};
    const Slice in{coming.space, coming.begin, moved.size() * count};

    to.recv((rank - digit + ranks) % ranks, in);
    for (std::size_t index = 0; index < moved.size(); ++index)
      to.copy(home[static_cast<std::size_t>(moved[index])], piece(out, index));
    to.send((rank + digit) % ranks, out);
    for (std::size_t index = 0; index < moved.size(); ++index) {
      Slice& place = home[static_cast<std::size_t>(moved[index])];
      place = block(Space::kOutput, rank - moved[index]);
      to.copy(piece(in, index), place);
    }
  }
  return to.take();
}

void dissemination(RoutineBuilder& to, const Subgroup& group) {
  for (int distance = 1; distance < group.size(); distance *= 2) {
    to.signal(group.rank((group.me + distance) % group.size()));
    to.await(group.rank((group.me - distance + group.size()) % group.size()));
  }
}

Routine bruck_barrier(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  dissemination(to, whole_group(shape, rank));
  return to.take();
}

}  // namespace trireme::comm
