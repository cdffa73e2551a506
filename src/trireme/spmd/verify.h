// spmd/verify.h -- holds what ran against what must come out and against what was listed.
//
// Depends on: executor, reference.
#pragma once

#include <string>
#include <vector>

#include "trireme/spmd/executor.h"
#include "trireme/spmd/reference.h"

namespace trireme::spmd {

struct Deviation {
  double worst = 0;  ///< relative to the largest element of the gradient, or to 1e-3 of the largest of all
  std::string parameter;
  std::size_t compared = 0;
};

/// This rank's blocks of gradients against the whole ones.
Deviation compare(const pg::Graph& both, const Executor& executor, const StepResult& result,
                  const Reference& reference);

/// Where what ranks carried out is not the lowering's list: in order, kind, axes and bytes. Halos: [rank] received, of
/// which the list has the most. Empty: to the byte.
std::vector<std::string> compare_collectives(const pg::Graph& both, const pg::Strategy& strategy,
                                             const pg::Lowering& lowering,
                                             const std::vector<std::vector<pg::Inserted>>& executed);

}  // namespace trireme::spmd
