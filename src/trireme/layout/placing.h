// layout/placing.h -- builds a placement: every rank has the whole tensor, until axes are used to split it.
//
//   Placing(mesh, rank, "up.weight", {4 * width, width}).split(0, "tp").partition({"dp"}).placement()
//
// An axis that was not used is one along which copies exist. Each axis, or part of one, is used once.
// Depends on: base.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/layout/placement.h"

namespace trireme::layout {

/// Rows of a fused tensor that are split by themselves. With `units` (heads), a rank gets whole units; when there are
/// fewer units than ranks, neighbouring ranks hold copies of one (grouped-query attention), which takes units that
/// divide ranks.
struct Block {
  Index size = 0;
  Index units = 0;  ///< 0: any row may be the last of a rank
};

class Placing {
 public:
  Placing(const Mesh& mesh, int rank, std::string name, Shape shape);

  /// Rank k of n gets [k d / n, (k + 1) d / n) of each box: even where n divides d.
  Placing& split(std::size_t dimension, const std::string& axis);
  /// Each block of a fused dimension split by itself; the blocks' parts follow each other in memory.
  Placing& split_blocks(std::size_t dimension, const std::string& axis, std::span<const Block> blocks);
  /// Dimension 0 padded to `rows` and split evenly, as a vocabulary is: the last ranks hold padding. After other
  /// splits.
  Placing& split_padded(const std::string& axis, Index rows);
  /// Only the ranks at this coordinate hold the tensor, as those of one pipeline stage do.
  Placing& only_at(const std::string& axis, int coordinate);
  /// ZeRO: the memory of the group along `axes` is cut into equal parts, each a multiple of `multiple` elements. Last.
  Placing& partition(const AxisNames& axes, Index multiple = 1);

  const Placement& placement() const { return placement_; }

 private:
  [[noreturn]] void refuse(const std::string& why, const std::string& hint) const;
  /// Before a split along `dimension`: it exists, and neither padding nor partition came before.
  void check_open(std::size_t dimension) const;
  AxisNames use(const AxisNames& axes, const std::string& used) const;

  const Mesh& mesh_;
  int rank_;
  bool padded_ = false;
  Placement placement_;
};

/// One tensor for each rank along `axes`, which hold copies of this one (not partitioned) and something of their own
/// for it, such as what compression has left out of each one's gradient: a leading dimension counts them.
Placement stack_copies(const Mesh& mesh, int rank, Placement placement, const AxisNames& axes);

/// The placements of all ranks: `build` says what happens to each.
std::vector<Placement> place_all(const Mesh& mesh, const std::string& name, const Shape& shape,
                                 const std::function<void(Placing&)>& build);

}  // namespace trireme::layout
