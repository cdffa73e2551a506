// tests/comm/routine_shapes.h -- the shapes that every algorithm is tried on.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "trireme/comm/routine.h"

namespace trireme::comm {

inline constexpr std::size_t kElementBytes = 4;
inline constexpr std::size_t kSegment = 4;  // elements; small, so that small vectors are cut already

inline bool has_root(Collective op) {
  return op == Collective::kBroadcast || op == Collective::kReduce || op == Collective::kGather ||
         op == Collective::kScatter;
}
inline bool has_blocks(Collective op) {
  return op == Collective::kReduceScatter || op == Collective::kAllGather || op == Collective::kAllToAll ||
         op == Collective::kGather || op == Collective::kScatter;
}

inline Shape base_shape(Collective op, int ranks) {
  Shape shape;
  shape.op = op;
  shape.ranks = ranks;
  shape.element_bytes = kElementBytes;
  shape.segment_bytes = kSegment * kElementBytes;
  return shape;
}

/// The same on all ranks.
inline std::vector<Shape> everywhere(const Shape& shape) {
  return std::vector<Shape>(static_cast<std::size_t>(shape.ranks), shape);
}

/// `count` elements in the buffer, or in every block.
inline std::vector<Shape> plain_shapes(Collective op, int ranks, std::size_t count) {
  Shape shape = base_shape(op, ranks);
  if (has_blocks(op))
    shape.counts.assign(static_cast<std::size_t>(ranks), count);
  else
    shape.count = count;
  if (op == Collective::kAllToAll) shape.recv_counts = shape.counts;
  return everywhere(shape);
}

/// Blocks of different lengths, some empty; `pattern` tells which.
inline std::vector<Shape> uneven_shapes(Collective op, int ranks, int pattern) {
  const auto length = [&](int from, int to) -> std::size_t {
    switch (pattern) {
      case 0:
        return static_cast<std::size_t>((3 * from + 7 * to + 2) % 5);
      case 1:  // all at one rank
        return to == ranks / 2 ? 11 : 0;
      default:  // growing past a segment
        return static_cast<std::size_t>(from + to);
    }
  };
  std::vector<Shape> shapes;
  for (int rank = 0; rank < ranks; ++rank) {
    Shape& shape = shapes.emplace_back(base_shape(op, ranks));
    const bool all_to_all = op == Collective::kAllToAll;
    for (int other = 0; other < ranks; ++other) {
      shape.counts.push_back(length(all_to_all ? rank : 0, other));
      if (all_to_all) shape.recv_counts.push_back(length(other, rank));
    }
    shape.uneven = all_to_all;
  }
  return shapes;
}

/// Ways to spread the ranks over nodes: all that differ among a few equal, unequal, interleaved and lonely ones.
inline std::vector<std::vector<int>> node_plans(int ranks) {
  std::set<std::vector<int>> plans;
  const auto add = [&](auto node_of) {
    std::vector<int> plan;
    for (int rank = 0; rank < ranks; ++rank) plan.push_back(node_of(rank));
    plans.insert(plan);
  };
  for (const int per_node : {2, 3, 4}) add([&](int rank) { return rank / per_node; });
  for (const int nodes : {2, 3}) add([&](int rank) { return rank % nodes; });
  add([&](int rank) { return rank == 0 ? 9 : 4; });            // one rank alone; numbers with gaps
  add([&](int rank) { return rank < 2 ? 0 : rank % 3 + 1; });  // unequal and interleaved
  return {plans.begin(), plans.end()};
}

inline std::string describe(const Shape& shape) {
  return fmt::format("{} ranks, root {}, count {}, counts [{}], nodes [{}]", shape.ranks, shape.root, shape.count,
                     fmt::join(shape.counts, " "), fmt::join(shape.node_of, " "));
}

inline std::vector<Routine> build_all(const AlgorithmEntry& entry, const std::vector<Shape>& shapes) {
  std::vector<Routine> routines;
  for (int rank = 0; rank < static_cast<int>(shapes.size()); ++rank)
    routines.push_back(entry.build(shapes[static_cast<std::size_t>(rank)], rank));
  return routines;
}

}  // namespace trireme::comm
