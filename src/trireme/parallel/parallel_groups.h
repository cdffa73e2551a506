// parallel/parallel_groups.h -- how a layout stands on the ranks of a world: mesh, groups, and this rank's context.
//
// Training forms them from a recipe (train/engine/recipe_layout.h), inference from a tensor-parallel size.
// Depends on: comm, layout, nn, spec.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "trireme/comm/group.h"
#include "trireme/nn/loss_terms.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/parallel/mesh_groups.h"
#include "trireme/spec/layout_check.h"

namespace trireme::parallel {

struct ParallelGroups {
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<comm::Group> alone;  ///< this rank by itself
  nn::ParallelContext parallel;
  at::Device device = at::kCPU;     ///< what this rank computes with
  comm::Group* data = nullptr;      ///< along dp: they read different rows
  comm::Group* pipeline = nullptr;  ///< along pp; null without stages
  comm::Group* loads = nullptr;     ///< along dp and pp: over whom loads of experts are summed; null: nobody else
  int dp_size = 1, dp_rank = 0, stages = 1, stage = 0;

  comm::Group& readers() { return data != nullptr ? *data : *alone; }
  bool is_first_of_row() const { return parallel.tokens.outer_rank == 0 && parallel.tokens.inner_rank == 0; }
  /// Of ranks that hold the same term of a loss, or parts of it: whether this one's is added up.
  bool counts(const nn::LossTerm& term) const {
    return (term.sum_over_tp || parallel.tensor_rank() == 0) && (term.sum_over_cp || is_first_of_row());
  }
  /// Of ranks with the same rows, the one that counts them.
  bool counts_rows() const { return parallel.tensor_rank() == 0 && is_first_of_row(); }
};

/// "pp=2 dp=2 tp=2", in the layout's order; dp is what the other axes leave.
layout::Mesh mesh_of(const spec::LayoutConfig& layout, int ranks);

/// The (parts of) dp and cp that `ep` ranks lie along, outermost first: neighbours, so those of the inner axis before
/// those of the outer. `ep` divides dp x cp.
layout::AxisNames expert_axes(const layout::Mesh& mesh, int ep);

/// A ProblemsError with everything that the layout and the model do not agree on.
void check_layout(const spec::LayoutConfig& layout, const spec::PipelineConfig& pipeline, const spec::LayoutTask& task);

/// Of a layout that was checked, on all ranks together, whose devices are chosen. `world` is borrowed; rows have
/// `length` tokens.
std::unique_ptr<ParallelGroups> form(const spec::LayoutConfig& layout, const spec::ModelShape& shape,
                                     comm::Group& world, std::int64_t length, at::Device device);

}  // namespace trireme::parallel
