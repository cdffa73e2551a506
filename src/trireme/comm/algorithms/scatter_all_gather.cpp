// Van de Geijn's long broadcast: scatter the buffer down a binomial tree, then gather it everywhere (Thakur et al.,
// 3.4). 2 (p-1)/p n beta instead of lg p times n beta; the gathering doubles where the ranks are a power of two
// (2 lg p alpha in all) and goes round the ring otherwise ((ceil(lg p) + p-1) alpha).
#include <bit>

#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

Routine scatter_all_gather_broadcast(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Subgroup group = whole_group(shape, rank);
  const BlockBounds blocks = BlockBounds::even({0, shape.count}, shape.ranks);
  const View buffer = whole_output(shape);
  binomial_scatter(to, group, binomial_tree(shape.ranks, shape.root, rank), blocks, buffer);
  if (std::has_single_bit(static_cast<unsigned>(shape.ranks)))
    recursive_doubling_all_gather(to, group, blocks, buffer);
  else
    ring_all_gather(to, group, {buffer.at(blocks[rank])}, bundles(blocks, buffer));
  return to.take();
}

}  // namespace trireme::comm
