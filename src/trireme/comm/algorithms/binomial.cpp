// Binomial trees: ceil(lg p) rounds from or to a root (Thakur et al., 3.3 and 4.3).
//
// Broadcast ceil(lg p) (alpha + n beta), reduce the same plus n gamma a round; gather and scatter move each block once
// a level, ceil(lg p) alpha + (p-1)/p n beta. The best for short vectors.
#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

#include <algorithm>
#include <ranges>

namespace trireme::comm {

Tree binomial_tree(int size, int root, int me) {
  // On level k the indices form runs of 2^k; a run is held by the root if that is inside, else by its first index. Two
  // neighbouring runs make the next level's, and one of their holders goes on holding it: so this is a tree for any
  // root and any size, of depth ceil(lg size), without renumbering the indices from the root.
  const auto holder = [&](int run, int level) { return (root >> level) == run ? root : run << level; };
  Tree tree{.first = me, .last = me + 1};
  for (int level = 0; (1 << level) < size; ++level) {
    const int run = me >> level, above = holder(run >> 1, level + 1);
    if (above != me) {
      tree.parent = above;
      break;
    }
    const int sibling = run ^ 1, first = sibling << level;
    if (first >= size) continue;
    const int last = std::min(size, first + (1 << level));
    tree.children.push_back({holder(sibling, level), first, last});
    tree.first = std::min(tree.first, first);
    tree.last = std::max(tree.last, last);
  }
  return tree;
}

void binomial_broadcast(RoutineBuilder& to, const Subgroup& group, const Tree& tree, Slice buffer) {
  if (tree.parent >= 0) to.recv(group.rank(tree.parent), buffer);
  // The largest subtree has the longest way to go.
  for (const Tree::Child& child : tree.children | std::views::reverse) to.send(group.rank(child.index), buffer);
}

void binomial_reduce(RoutineBuilder& to, const Subgroup& group, const Tree& tree, Slice source, Slice into) {
  for (const Tree::Child& child : tree.children) {
    to.recv_reduce(group.rank(child.index), source, into);
    source = into;
  }
  if (tree.parent >= 0) to.send(group.rank(tree.parent), source);
}

void binomial_gather(RoutineBuilder& to, const Subgroup& group, const Tree& tree, const BlockBounds& blocks,
                     const View& view) {
  for (const Tree::Child& child : tree.children)
    to.recv(group.rank(child.index), view.at(blocks.range(child.first, child.last)));
  if (tree.parent >= 0) to.send(group.rank(tree.parent), view.at(blocks.range(tree.first, tree.last)));
}

void binomial_scatter(RoutineBuilder& to, const Subgroup& group, const Tree& tree, const BlockBounds& blocks,
                      const View& view) {
  if (tree.parent >= 0) to.recv(group.rank(tree.parent), view.at(blocks.range(tree.first, tree.last)));
  for (const Tree::Child& child : tree.children | std::views::reverse)
    to.send(group.rank(child.index), view.at(blocks.range(child.first, child.last)));
}

Routine binomial_broadcast(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  binomial_broadcast(to, whole_group(shape, rank), binomial_tree(shape.ranks, shape.root, rank),
                     whole_output(shape).memory);
  return to.take();
}

Routine binomial_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Tree tree = binomial_tree(shape.ranks, shape.root, rank);
  Slice into = whole_output(shape).memory;
  if (rank != shape.root) into = tree.children.empty() ? Slice{} : to.scratch(shape.count);
  binomial_reduce(to, whole_group(shape, rank), tree, whole_input(shape).memory, into);
  if (rank == shape.root) to.finish(into);
  return to.take();
}

Routine binomial_all_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Subgroup group = whole_group(shape, rank);
  const Tree tree = binomial_tree(shape.ranks, 0, rank);
  const Slice output = whole_output(shape).memory;
  binomial_reduce(to, group, tree, whole_input(shape).memory, output);
  if (rank == 0) to.finish(output);
  binomial_broadcast(to, group, tree, output);
  return to.take();
}

Routine binomial_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Tree tree = binomial_tree(shape.ranks, shape.root, rank);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const View own = own_input(shape, rank);
  View view = whole_output(shape);
  if (rank != shape.root) {
    const ElementRange subtree = blocks.range(tree.first, tree.last);
    view = tree.children.empty() ? own : View{to.scratch(subtree.count), subtree.begin};
  }
  to.copy(own.at(blocks[rank]), view.at(blocks[rank]));
  binomial_gather(to, whole_group(shape, rank), tree, blocks, view);
  return to.take();
}

Routine binomial_scatter(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Tree tree = binomial_tree(shape.ranks, shape.root, rank);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const View own = own_output(shape, rank);
  View view = whole_input(shape);
  if (rank != shape.root) {
    const ElementRange subtree = blocks.range(tree.first, tree.last);
    view = tree.children.empty() ? own : View{to.scratch(subtree.count), subtree.begin};
  }
  binomial_scatter(to, whole_group(shape, rank), tree, blocks, view);
  to.copy(view.at(blocks[rank]), own.at(blocks[rank]));
  return to.take();
}

}  // namespace trireme::comm
