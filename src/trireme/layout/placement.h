// layout/placement.h -- where the elements of one tensor live on one rank.
//
// A rank holds boxes of the global tensor, one after the other in memory (several for fused q, k, v or gate and up),
// each row by row. Padding that kernels want is memory after a box; it is no part of the global tensor, so layouts with
// different padding describe the same tensor. On top, ZeRO keeps only an interval of that memory. Global elements are
// numbered row by row. Everything is computed on runs, stretches that are contiguous both globally and locally, never
// element by element. placing.h builds placements, reduction.h says which ranks sum a gradient, coverage.h checks the
// placements of all ranks against each other.
// Depends on: base.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/layout/mesh.h"

namespace trireme::layout {

using Index = std::int64_t;
using Shape = std::vector<Index>;

/// The number of elements. ConfigError for a negative size or more elements than can be numbered.
Index elements(const Shape& shape);

/// begin[i] <= index[i] < end[i] in every dimension. No dimensions: the one element of a scalar.
struct Box {
  std::vector<Index> begin, end;
  Index elements() const;
  bool operator==(const Box&) const = default;
};

struct Piece {
  Box box;
  Index padding = 0;  ///< elements of memory after the box that belong to no global element
  AxisNames
      replica_axes;  ///< the ranks along these hold the same box; differs between pieces for grouped-query attention
  bool operator==(const Piece&) const = default;
};

/// The part [begin, end) of the memory of all pieces that a rank keeps; `end` may lie beyond it: padding again.
struct Partition {
  Index begin = 0, end = 0;
  AxisNames axes;  ///< the other parts lie along these
  bool operator==(const Partition&) const = default;
};

struct Placement {
  std::string name;
  Shape shape;  ///< of the global tensor, without padding
  std::vector<Piece> pieces;
  std::optional<Partition> partition;
  AxisNames absent_axes = {};  ///< the other ranks along these hold nothing of it: stages of a pipeline
  bool operator==(const Placement&) const = default;
};

/// Elements global .. global + count are at local .. local + count of the rank's memory.
struct ContiguousRun {
  Index global = 0, local = 0, count = 0;
  bool operator==(const ContiguousRun&) const = default;
};

struct Range {
  Index begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};

/// Elements of memory that the rank needs, padding included: of its partition, and of what the partition is a part of.
Index local_elements(const Placement& placement);
Index unpartitioned_elements(const Placement& placement);
/// Elements of the global tensor that the rank holds.
Index held_elements(const Placement& placement);

/// The global element at a place of the rank's memory; nothing for padding.
std::optional<Index> global_index(const Placement& placement, Index local);
/// Where the rank has a global element; nothing when it does not.
std::optional<Index> local_index(const Placement& placement, Index global);

/// Everything the rank holds, by ascending place in memory. A run stays within pieces of the same copies.
std::vector<ContiguousRun> runs(const Placement& placement);
/// The runs of which this rank has the first copy: over all ranks each element once. What is written to a checkpoint.
std::vector<ContiguousRun> first_copy_runs(const Mesh& mesh, int rank, const Placement& placement);
/// The global elements held, ascending, as few ranges as possible: equal exactly when the same elements are held.
std::vector<Range> held_ranges(const Placement& placement);

/// The piece whose memory, padding included, contains this place; null beyond the end.
const Piece* piece_at(const Placement& placement, Index local);

/// Whether the rank is the first of those that hold copies along these axes.
bool is_first_copy(const Mesh& mesh, int rank, const AxisNames& replica_axes);

/// "wqkv (12 x 4): [0:2, 0:4] copies along dp, [8:9, 0:4] copies along dp tp%2, elements 0:6 of that along zp"
std::string to_text(const Placement& placement);
/// "[3, 0]": the coordinates of a global element.
std::string element_text(const Shape& shape, Index global);

}  // namespace trireme::layout
