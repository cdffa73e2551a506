// layout/coverage.h -- the placements of all ranks side by side: who holds which element, and whether that is right.
//
// Ranks whose placements hold the same places are one layout: a tensor with a thousand copies costs what one costs.
// Depends on: base.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/layout/placement.h"

namespace trireme::layout {

struct Coverage {
  struct Holder {
    int layout = 0;   ///< all ranks of ranks_of[layout] hold the segment ...
    Index local = 0;  ///< ... from this place of their memory on
    bool operator==(const Holder&) const = default;
  };
  /// A stretch of global elements that the same layouts hold in one run; no holders: nobody has it.
  struct Segment {
    Index begin = 0, end = 0;
    std::vector<Holder> holders;
  };

  std::vector<std::vector<int>> ranks_of;  ///< per layout, ascending
  std::vector<Segment> segments;           ///< ascending, without gaps, from 0 to the end of the tensor
};

/// placements[rank], all of one tensor.
Coverage cover(std::span<const Placement> placements);

/// What is wrong in the first place where something is: a box outside the tensor, an element that no rank holds, that
/// one rank holds twice, or whose copies are not exactly where the replica axes say. Empty when all is right.
std::string find_problem(const Mesh& mesh, std::span<const Placement> placements);

}  // namespace trireme::layout
