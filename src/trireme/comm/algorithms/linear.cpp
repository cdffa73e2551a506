// Linear: every transfer straight from its source to its goal, all posted at once.
//
// (p-1) alpha at the busiest rank, yet nothing is forwarded and nothing waits for anything else: hard to beat on few
// ranks, and where a network moves many messages at a time (Thakur et al., 3.6: all-to-all of medium blocks).
#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

namespace {

/// The others, beginning with the next rank, so that not everyone turns to rank 0 first.
std::vector<int> others(const Shape& shape, int rank) {
  std::vector<int> ranks;
  for (int step = 1; step < shape.ranks; ++step) ranks.push_back((rank + step) % shape.ranks);
  return ranks;
}

}  // namespace

Routine linear_broadcast(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Slice buffer = whole_output(shape).memory;
  if (rank == shape.root)
    for (const int peer : others(shape, rank)) to.send(peer, buffer);
  else
    to.recv(shape.root, buffer);
  return to.take();
}

Routine linear_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Slice output = whole_output(shape).memory;
  Slice current = whole_input(shape).memory;
  if (rank != shape.root) {
    to.send(shape.root, current);
    return to.take();
  }
  for (const int peer : others(shape, rank)) {
    to.recv_reduce(peer, current, output);
    current = output;
  }
  to.finish(output);
  return to.take();
}

Routine linear_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const Slice own = own_input(shape, rank).at(blocks[rank]);
  if (rank != shape.root) {
    to.send(shape.root, own);
    return to.take();
  }
  const View output = whole_output(shape);
  for (const int peer : others(shape, rank)) to.recv(peer, output.at(blocks[peer]));
  to.copy(own, output.at(blocks[rank]));
  return to.take();
}

Routine linear_scatter(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const Slice own = own_output(shape, rank).at(blocks[rank]);
  if (rank != shape.root) {
    to.recv(shape.root, own);
    return to.take();
  }
  const View input = whole_input(shape);
  for (const int peer : others(shape, rank)) to.send(peer, input.at(blocks[peer]));
  to.copy(input.at(blocks[rank]), own);
  return to.take();
}

Routine linear_all_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const Slice own = own_input(shape, rank).at(blocks[rank]);
  const View output = whole_output(shape);
  to.copy(own, output.at(blocks[rank]));
  for (const int peer : others(shape, rank)) to.recv(peer, output.at(blocks[peer]));
  for (const int peer : others(shape, rank)) to.send(peer, own);
  return to.take();
}

Routine linear_all_to_all(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const BlockBounds leaving = BlockBounds::of(shape.counts), coming = BlockBounds::of(shape.recv_counts);
  const View input{{Space::kInput, 0, leaving.whole().count}}, output{{Space::kOutput, 0, coming.whole().count}};
  for (const int peer : others(shape, rank)) to.recv(peer, output.at(coming[peer]));
  for (const int peer : others(shape, rank)) to.send(peer, input.at(leaving[peer]));
  to.copy(input.at(leaving[rank]), output.at(coming[rank]));
  return to.take();
}

}  // namespace trireme::comm
