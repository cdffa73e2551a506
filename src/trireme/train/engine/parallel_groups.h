// train/engine/parallel_groups.h -- how a recipe's layout stands on the ranks of a world: mesh, groups, and this rank's
// team.
//
// Depends on: comm, layout, nn, parallel, spec.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/data/batch.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/step_plan.h"

namespace trireme::train {

struct ParallelGroups {
  std::unique_ptr<parallel::MeshGroups> groups;
  std::unique_ptr<comm::Group> alone;  ///< this rank by itself
  nn::ParallelContext parallel;
  at::Device device = at::kCPU;     ///< what this rank computes with
  comm::Group* copies = nullptr;    ///< along dp: they read different rows
  comm::Group* pipeline = nullptr;  ///< along pp; null without stages
  int copies_count = 1, copy = 0, stages = 1, stage = 0;

  comm::Group& readers() { return copies != nullptr ? *copies : *alone; }
  /// Of ranks with the same tokens, the one that counts them: tp ranks all have the same losses.
  bool counts_loss() const { return parallel.tensor_rank() == 0; }
  bool counts_rows() const {
    return counts_loss() && parallel.tokens.outer_rank == 0 && parallel.tokens.inner_rank == 0;
  }
};

/// "pp=2 dp=2 tp=2", in the recipe's order; dp is what the other axes leave.
layout::Mesh mesh_of(const spec::LayoutConfig& layout, int ranks);

/// On all ranks together; `world` is borrowed. A ProblemsError with everything that the layout and the model do not
/// agree on.
std::unique_ptr<ParallelGroups> form(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                     std::int64_t length);

parallel::DataParallelOptions data_parallel_options(const spec::Recipe& recipe, const ParallelGroups& parallel_groups);
Share share_of(const spec::Recipe& recipe, const ParallelGroups& parallel_groups, std::int64_t length);

}  // namespace trireme::train
