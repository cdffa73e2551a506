// Two levels: inside each node, then across the nodes, then inside again.
//
// Links inside a node are faster than those across, so as little as possible should cross. With equally many ranks on
// every node the i-th ranks of all nodes work together on the i-th part, and each rank sends about 1/m of the vector
// across (m ranks a node): the two-dimensional scheme of NCCL and Horovod. With unequal nodes one leader a node speaks
// for it. Inside rings or binomial trees, across Rabenseifner's, rings or trees.
#include <algorithm>
#include <map>
#include <ranges>

#include "trireme/base/error.h"
#include "trireme/comm/algorithms/builders.h"
#include "trireme/comm/algorithms/parts.h"

namespace trireme::comm {

namespace {

/// Who sits where, as seen by one rank.
struct Nodes {
  Nodes(const Shape& shape, int rank) {
    TRIREME_CHECK(shape.node_of.size() == at(shape.ranks), "{} ranks, but the nodes of {} are known", shape.ranks,
                  shape.node_of.size());
    std::map<int, int> index_of;  // nodes in the order of their first ranks, however they are numbered
    for (int other = 0; other < shape.ranks; ++other) {
      const auto [found, fresh] = index_of.try_emplace(shape.node_of[at(other)], static_cast<int>(members.size()));
      if (fresh) members.emplace_back();
      if (other == rank) {
        mine = found->second;
        local = static_cast<int>(members[at(mine)].size());
      }
      members[at(found->second)].push_back(other);
    }
    equal = std::ranges::all_of(members, [&](const auto& node) { return node.size() == members.front().size(); });
  }

  int count() const { return static_cast<int>(members.size()); }
  int per_node() const { return static_cast<int>(members.front().size()); }  // when equal
  Subgroup inside() const { return {members[at(mine)], local}; }
  /// The i-th ranks of all nodes, where i is this rank's place on its own.
  Subgroup across() const {
    Subgroup group{{}, mine};
    for (const auto& node : members) group.ranks.push_back(node[at(local)]);
    return group;
  }

  std::vector<std::vector<int>> members;
  int mine = 0, local = 0;
  bool equal = true;
};

/// One rank of each node speaks for it: the root on the root's node, the first elsewhere.
struct Leaders {
  Leaders(const Nodes& nodes, int root) : group{{}, nodes.mine} {
    for (int node = 0; node < nodes.count(); ++node) {
      const auto& members = nodes.members[at(node)];
      const auto found = std::ranges::find(members, root);
      if (found != members.end()) root_node = node;
      const int local = found == members.end() ? 0 : static_cast<int>(found - members.begin());
      if (node == nodes.mine) local_leader = local;
      group.ranks.push_back(members[at(local)]);
    }
    leading = nodes.local == local_leader;
  }

  Subgroup group;
  int root_node = 0;     // index in `group`
  int local_leader = 0;  // index inside this rank's node
  bool leading = false;  // whether it is this rank
};

/// The blocks of some ranks, in pieces as long as possible.
Bundle joined(const BlockBounds& blocks, const View& view, const std::vector<int>& ranks) {
  Bundle bundle;
  for (const int rank : ranks) {
    const Slice piece = view.at(blocks[rank]);
    if (!bundle.empty() && bundle.back().begin + bundle.back().count == piece.begin)
      bundle.back().count += piece.count;
    else
      bundle.push_back(piece);
  }
  return bundle;
}

/// The ranks with place `local` on their nodes.
std::vector<int> column(const Nodes& nodes, int local) {
  std::vector<int> ranks;
  for (const auto& node : nodes.members) ranks.push_back(node[at(local)]);
  return ranks;
}

}  // namespace

std::string hierarchical_refuses(const Shape& shape) {
  if (shape.node_of.empty()) return "all ranks are on one node, so there are no two levels";
  const Nodes nodes(shape, 0);
  if (nodes.count() == 1) return "all ranks are on one node, so there are no two levels";
  if (nodes.count() == shape.ranks) return "every node has one rank only, so there are no two levels";
  return "";
}

Routine hierarchical_all_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Nodes nodes(shape, rank);
  const Subgroup inside = nodes.inside();
  const View input = whole_input(shape), output = whole_output(shape);
  const ElementRange whole{0, shape.count};
  if (nodes.equal) {
    const BlockBounds blocks = BlockBounds::even(whole, inside.size());
    const auto parts = bundles(blocks, output);
    ring_reduce_scatter(to, inside, bundles(blocks, input), parts);
    halving_doubling_all_reduce(to, nodes.across(), blocks[inside.me], output, output);
    ring_all_gather(to, inside, parts[at(inside.me)], parts);
    return to.take();
  }
  const Leaders leaders(nodes, 0);
  const Tree tree = binomial_tree(inside.size(), leaders.local_leader, inside.me);
  binomial_reduce(to, inside, tree, input.memory, output.memory);
  if (leaders.leading)
    halving_doubling_all_reduce(to, leaders.group, whole, inside.size() == 1 ? input : output, output);
  binomial_broadcast(to, inside, tree, output.memory);
  return to.take();
}

Routine hierarchical_broadcast(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Nodes nodes(shape, rank);
  const Leaders leaders(nodes, shape.root);
  const Subgroup inside = nodes.inside();
  const Slice buffer = whole_output(shape).memory;
  if (leaders.leading)
    binomial_broadcast(to, leaders.group, binomial_tree(nodes.count(), leaders.root_node, nodes.mine), buffer);
  binomial_broadcast(to, inside, binomial_tree(inside.size(), leaders.local_leader, inside.me), buffer);
  return to.take();
}

Routine hierarchical_reduce(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Nodes nodes(shape, rank);
  const Leaders leaders(nodes, shape.root);
  const Subgroup inside = nodes.inside();
  const Tree tree = binomial_tree(inside.size(), leaders.local_leader, inside.me);
  const Tree above = binomial_tree(nodes.count(), leaders.root_node, nodes.mine);
  const bool combines = !tree.children.empty() || (leaders.leading && !above.children.empty());
  const Slice input = whole_input(shape).memory;
  Slice into = whole_output(shape).memory;
  if (rank != shape.root) into = combines ? to.scratch(shape.count) : Slice{};

  binomial_reduce(to, inside, tree, input, into);
  if (leaders.leading) binomial_reduce(to, leaders.group, above, inside.size() == 1 ? input : into, into);
  if (rank == shape.root) to.finish(into);
  return to.take();
}

Routine hierarchical_all_gather(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Nodes nodes(shape, rank);
  const Subgroup inside = nodes.inside();
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const View output = whole_output(shape);
  const Slice own = own_input(shape, rank).at(blocks[rank]);
  if (nodes.equal) {
    to.copy(own, output.at(blocks[rank]));
    std::vector<Bundle> across, columns;
    for (const int other : column(nodes, nodes.local)) across.push_back({output.at(blocks[other])});
    for (int local = 0; local < nodes.per_node(); ++local)
      columns.push_back(joined(blocks, output, column(nodes, local)));
    ring_all_gather(to, nodes.across(), across[at(nodes.mine)], across);
    ring_all_gather(to, inside, columns[at(nodes.local)], columns);
    return to.take();
  }
  const Leaders leaders(nodes, 0);
  if (leaders.leading) {
    to.copy(own, output.at(blocks[rank]));
    for (const int member : inside.ranks)
      if (member != rank) to.recv(member, output.at(blocks[member]));
    std::vector<Bundle> shares;
    for (const auto& members : nodes.members) shares.push_back(joined(blocks, output, members));
    ring_all_gather(to, leaders.group, shares[at(nodes.mine)], shares);
  } else {
    to.send(inside.rank(leaders.local_leader), own);
  }
  binomial_broadcast(to, inside, binomial_tree(inside.size(), leaders.local_leader, inside.me), output.memory);
  return to.take();
}

namespace {

/// First inside each node, where member i combines what belongs to the i-th ranks of all nodes; then those among them.
void reduce_scatter_in_columns(RoutineBuilder& to, const Shape& shape, const Nodes& nodes, const BlockBounds& blocks,
                               Slice output) {
  const Subgroup inside = nodes.inside();
  const View input = whole_input(shape);
  std::vector<Bundle> source;
  std::size_t longest = 0;
  for (int local = 0; local < inside.size(); ++local) {
    Bundle& bundle = source.emplace_back();
    std::size_t length = 0;
    for (const int other : column(nodes, local)) {
      bundle.push_back(input.at(blocks[other]));
      length += bundle.back().count;
    }
    longest = std::max(longest, length);
  }
  // As in the ring reduce_scatter: two places in turn for what passes through.
  Slice places[2];
  for (int place = 0; place < std::min(2, inside.size() - 1); ++place) places[place] = to.scratch(longest);
  std::vector<Bundle> into = source;
  for (int step = 0; step + 1 < inside.size(); ++step) {
    std::size_t begin = places[step % 2].begin;
    for (Slice& piece : into[at((inside.me - step - 2 + 2 * inside.size()) % inside.size())]) {
      piece = {Space::kScratch, begin, piece.count};
      begin += piece.count;
    }
  }
  ring_reduce_scatter(to, inside, source, into);
  pairwise_reduce_scatter(to, nodes.across(), into[at(inside.me)], output);
  to.finish(output);
}

void reduce_scatter_by_leaders(RoutineBuilder& to, const Shape& shape, const Nodes& nodes, const BlockBounds& blocks,
                               Slice output) {
  const Leaders leaders(nodes, 0);
  const Subgroup inside = nodes.inside();
  const View input = whole_input(shape);
  const Tree tree = binomial_tree(inside.size(), leaders.local_leader, inside.me);
  const bool combines = leaders.leading || !tree.children.empty();
  const View sums{combines ? to.scratch(blocks.whole().count) : Slice{}, 0};
  binomial_reduce(to, inside, tree, input.memory, sums.memory);
  if (!leaders.leading) return to.recv(inside.rank(leaders.local_leader), output);

  std::vector<Bundle> source, into;
  for (const auto& members : nodes.members) {
    source.push_back(joined(blocks, inside.size() == 1 ? input : sums, members));
    into.push_back(joined(blocks, sums, members));
  }
  ring_reduce_scatter(to, leaders.group, source, into);
  for (const Slice& piece : into[at(nodes.mine)]) to.finish(piece);
  for (const int member : inside.ranks) {
    const Slice block = sums.at(blocks[member]);
    if (member == inside.rank(inside.me))
      to.copy(block, output);
    else
      to.send(member, block);
  }
}

}  // namespace

Routine hierarchical_reduce_scatter(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kSegments);
  const Nodes nodes(shape, rank);
  const BlockBounds blocks = BlockBounds::of(shape.counts);
  const Slice output = own_output(shape, rank).at(blocks[rank]);
  if (nodes.equal)
    reduce_scatter_in_columns(to, shape, nodes, blocks, output);
  else
    reduce_scatter_by_leaders(to, shape, nodes, blocks, output);
  return to.take();
}

Routine hierarchical_barrier(const Shape& shape, int rank) {
  RoutineBuilder to(shape, rank, Cut::kWhole);
  const Nodes nodes(shape, rank);
  const Leaders leaders(nodes, 0);
  const Subgroup inside = nodes.inside();
  const Tree tree = binomial_tree(inside.size(), leaders.local_leader, inside.me);
  for (const Tree::Child& child : tree.children) to.await(inside.rank(child.index));
  if (tree.parent >= 0) {
    to.signal(inside.rank(tree.parent));
    to.await(inside.rank(tree.parent));
  }
  if (leaders.leading) dissemination(to, leaders.group);
  for (const Tree::Child& child : tree.children | std::views::reverse) to.signal(inside.rank(child.index));
  return to.take();
}

}  // namespace trireme::comm
