#include "trireme/parallel/parallel_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {
namespace {

void join_context(ParallelGroups& parallel_groups, const spec::LayoutConfig& layout, const spec::ModelShape& shape,
                  std::int64_t length) {
  nn::ParallelContext& parallel = parallel_groups.parallel;
  if (layout.cp == 1) return;
  const bool trade_all = layout.cp_kind == spec::ContextKind::kUlysses;
  const int inner = trade_all ? layout.cp : layout.cp_ulysses,
            at = parallel.mesh.coordinate(parallel.rank, nn::kContextAxis);
  parallel.tokens = {.outer = layout.cp / inner,
                     .outer_rank = at / inner,
                     .inner = inner,
                     .inner_rank = at % inner,
                     .zigzag = shape.causal && layout.cp > inner && length % (2 * layout.cp) == 0};
  parallel.context = layout.cp_kind;
  if (parallel.tokens.outer > 1)
    parallel.ring = parallel_groups.groups->along(
        {inner == 1 ? std::string(nn::kContextAxis) : fmt::format("{}/{}", nn::kContextAxis, inner)});
  if (inner > 1)
    parallel.heads = parallel_groups.groups->along(
        {inner == layout.cp ? std::string(nn::kContextAxis) : fmt::format("{}%{}", nn::kContextAxis, inner)});
}

}  // namespace

layout::Mesh mesh_of(const spec::LayoutConfig& layout, int ranks) {
  std::vector<layout::Axis> axes;
  for (const std::string& name : split(layout.order, ' ')) {
    int size = 1;
    if (name == nn::kPipelineAxis) size = layout.pp;
    if (name == nn::kContextAxis) size = layout.cp;
    if (name == nn::kTensorAxis) size = layout.tp;
    if (name == nn::kDataAxis) size = layout.dp.value_or(ranks / static_cast<int>(layout.ranks_per_copy()));
    axes.push_back({name, size});
  }
  return layout::Mesh(std::move(axes));
}

layout::AxisNames expert_axes(const layout::Mesh& mesh, int ep) {
  layout::AxisNames axes;
  int left = ep;
  for (auto axis = mesh.axes().rbegin(); axis != mesh.axes().rend(); ++axis) {
    if (axis->name != nn::kDataAxis && axis->name != nn::kContextAxis) continue;
    const int here = std::gcd(left, axis->size);
    left /= here;
    if (here > 1) axes.push_back(here == axis->size ? axis->name : fmt::format("{}%{}", axis->name, here));
  }
  TRIREME_CHECK(left == 1, "{} expert-parallel ranks of {}", ep, layout::to_text(mesh));
  std::ranges::reverse(axes);
  return axes;
}

void check_layout(const spec::LayoutConfig& layout, const spec::PipelineConfig& pipeline,
                  const spec::LayoutTask& task) {
  if (auto problems = spec::find_layout_problems(layout, pipeline, task); !problems.empty()) {
    throw config::ProblemsError("the layout", std::move(problems));
  }
}

std::unique_ptr<ParallelGroups> form(const spec::LayoutConfig& layout, const spec::ModelShape& shape,
                                     comm::Group& world, std::int64_t length, at::Device device) {
  auto parallel_groups = std::make_unique<ParallelGroups>();
  parallel_groups->device = device;
  parallel_groups->groups = std::make_unique<MeshGroups>(world, mesh_of(layout, world.size()));
  MeshGroups& groups = *parallel_groups->groups;
  parallel_groups->alone = world.split(world.rank(), 0, "alone");
  parallel_groups->data = groups.along({nn::kDataAxis});
  parallel_groups->pipeline = groups.along({nn::kPipelineAxis});
  nn::ParallelContext& parallel = parallel_groups->parallel;
  parallel.mesh = groups.mesh();
  parallel.rank = world.rank();
  parallel.tensor = groups.along({nn::kTensorAxis});
  parallel.sequence_parallel = layout.sequence_parallel;
  parallel.sp_save_gathered = layout.sp_save_gathered;
  parallel.overlap = layout.tp_overlap;
  join_context(*parallel_groups, layout, shape, length);
  if (shape.experts.used()) {
    parallel.expert_axes = expert_axes(parallel.mesh, layout.ep);
    parallel.experts = groups.along(parallel.expert_axes);
    parallel_groups->loads = groups.along({nn::kDataAxis, nn::kPipelineAxis});
  }
  parallel_groups->dp_size = parallel.mesh.size(nn::kDataAxis);
  parallel_groups->dp_rank = parallel.mesh.coordinate(parallel.rank, nn::kDataAxis);
  parallel_groups->stages = layout.pp;
  parallel_groups->stage = parallel.mesh.coordinate(parallel.rank, nn::kPipelineAxis);
  return parallel_groups;
}

}  // namespace trireme::parallel
