// Pairwise exchange: p-1 steps, in each a different partner (Thakur et al., 3.6 and 4.2).
//
// Every block goes straight to where it belongs, so uneven blocks are no trouble: (p-1) alpha + (p-1)/p n beta, plus
// (p-1)/p n gamma for reduce_scatter, which needs no scratch at all. For long blocks.
#include <bit>

#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

namespace {

struct Partners {
  int to, from;
};

/// Among a power of two of members both are the same one; otherwise the distance grows in opposite directions.
Partners partners(const Subgroup& group, int step) {
  if (std::has_single_bit(static_cast<unsigned>(group.size()))) return {group.me ^ step, group.me ^ step};
  return {(group.me + step) % group.size(), (group.me - step + group.size()) % group.size()};
}

}  // namespace

void pairwise_reduce_scatter(RoutineBuilder& to, const Subgroup& group, const std::vector<Slice>& source, Slice into) {
  Slice current = source[static_cast<std::size_t>(group.me)];
  for (int step = 1; step < group.size(); ++step) {
    const Partners with = partners(group, step);
    to.recv_reduce(group.rank(with.from), current, into);
    to.send(group.rank(with.to), source[static_cast<std::size_t>(with.to)]);
    current = into;
  }
}

Routine pairwise_reduce_scatter(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  std::vector<Slice> source;
  for (int block = 0; block < shape.ranks; ++block) source.push_back(whole_input(shape).at(blocks[block]));
  const Slice output = own_output(shape, rank).at(blocks[rank]);
  pairwise_reduce_scatter(to, whole_group(shape, rank), source, output);
  to.finish(output);
  return to.take();
}

Routine pairwise_all_to_all(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Subgroup group = whole_group(shape, rank);
  const BlockBounds leaving = BlockBounds::of(shape.counts), coming = BlockBounds::of(shape.recv_counts);
  const View input{{Space::kInput, 0, leaving.whole().count}}, output{{Space::kOutput, 0, coming.whole().count}};
  to.copy(input.at(leaving[rank]), output.at(coming[rank]));
  for (int step = 1; step < shape.ranks; ++step) {
    const Partners with = partners(group, step);
    to.recv(with.from, output.at(coming[with.from]));
    to.send(with.to, input.at(leaving[with.to]));
    to.wait_for_all();  // one partner at a time is the point: no rank is flooded by several at once
  }
  return to.take();
}

}  // namespace trireme::comm
