#include "trireme/train/engine/parallel_groups.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/spec/layout_check.h"
#include "trireme/train/engine/device.h"

namespace trireme::train {
namespace {

void join_context(ParallelGroups& parallel_groups, const spec::LayoutConfig& layout, const spec::ModelShape& shape,
                  std::int64_t length) {
  nn::ParallelContext& parallel = parallel_groups.parallel;
  if (layout.cp == 1) return;
  const bool trade_all = layout.cp_kind == spec::ContextKind::kUlysses;
  const int inner = trade_all ? layout.cp : layout.cp_ulysses, at = parallel.mesh.coordinate(parallel.rank, "cp");
  parallel.tokens = {.outer = layout.cp / inner,
                     .outer_rank = at / inner,
                     .inner = inner,
                     .inner_rank = at % inner,
                     .zigzag = shape.causal && layout.cp > inner && length % (2 * layout.cp) == 0};
  parallel.context = layout.cp_kind;
  if (parallel.tokens.outer > 1)
    parallel.ring = parallel_groups.groups->along({inner == 1 ? "cp" : fmt::format("cp/{}", inner)});
  if (inner > 1)
    parallel.heads = parallel_groups.groups->along({inner == layout.cp ? "cp" : fmt::format("cp%{}", inner)});
}

}  // namespace

layout::Mesh mesh_of(const spec::LayoutConfig& layout, int ranks) {
  std::vector<layout::Axis> axes;
  for (const std::string& name : split(layout.order, ' ')) {
    int size = 1;
    if (name == "pp") size = layout.pp;
    if (name == "cp") size = layout.cp;
    if (name == "tp") size = layout.tp;
    if (name == "dp") size = layout.dp.value_or(ranks / static_cast<int>(layout.ranks_per_copy()));
    axes.push_back({name, size});
  }
  return layout::Mesh(std::move(axes));
}

std::unique_ptr<ParallelGroups> form(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                     std::int64_t length) {
  const spec::LayoutConfig& layout = recipe.layout;
  const std::int64_t rows = spec::hyperparameters_at(recipe.optim, recipe.lr_schedule, recipe.batch, {}).batch / length;
  spec::PipelineConfig pipeline = recipe.pipeline;
  if (auto problems = spec::find_layout_problems(layout, pipeline,
                                                 {.shape = shape,
                                                  .sequence = length,
                                                  .batch_rows = rows,
                                                  .micro_batch_size = recipe.train.micro_batch_size,
                                                  .ranks = world.size()});
      !problems.empty()) {
    throw config::ProblemsError("the layout", std::move(problems));
  }
  auto parallel_groups = std::make_unique<ParallelGroups>();
  parallel_groups->device = meet_on_devices(recipe, world);
  parallel_groups->groups = std::make_unique<parallel::MeshGroups>(world, mesh_of(layout, world.size()));
  parallel::MeshGroups& groups = *parallel_groups->groups;
  parallel_groups->alone = world.split(world.rank(), 0, "alone");
  parallel_groups->copies = groups.along({"dp"});
  parallel_groups->pipeline = groups.along({"pp"});
  nn::ParallelContext& parallel = parallel_groups->parallel;
  parallel.mesh = groups.mesh();
  parallel.rank = world.rank();
  parallel.tensor = groups.along({"tp"});
  parallel.sequence_parallel = layout.sequence_parallel;
  parallel.sp_save_gathered = layout.sp_save_gathered;
  parallel.overlap = layout.tp_overlap;
  join_context(*parallel_groups, layout, shape, length);
  parallel_groups->copies_count = parallel.mesh.size("dp");
  parallel_groups->copy = parallel.mesh.coordinate(parallel.rank, "dp");
  parallel_groups->stages = layout.pp;
  parallel_groups->stage = parallel.mesh.coordinate(parallel.rank, "pp");
  if (!layout.dp_batch_weights.empty() &&
      static_cast<int>(layout.dp_batch_weights.size()) != parallel_groups->copies_count) {
    throw ConfigError(fmt::format("layout.dp_batch_weights has {} numbers for {} copies of the model",
                                  layout.dp_batch_weights.size(), parallel_groups->copies_count),
                      "give one for each copy, or leave it out");
  }
  return parallel_groups;
}

parallel::DataParallelOptions data_parallel_options(const spec::Recipe& recipe, const ParallelGroups& parallel_groups) {
  const layout::Mesh& mesh = parallel_groups.parallel.mesh;
  const spec::LayoutConfig& layout = recipe.layout;
  parallel::DataParallelOptions options{.zero = layout.zero,
                                        .bucket_bytes = static_cast<std::int64_t>(layout.bucket_mb * 1e6),
                                        .reduce_bf16 = layout.reduce == spec::ReduceKind::kBf16,
                                        .offload = layout.offload == spec::OffloadKind::kOptimizer,
                                        .precision = recipe.precision.compute,
                                        .device = parallel_groups.device,
                                        .reducer = parallel::reducer_named("dense")};
  for (const char* axis : {"dp", "cp"}) {
    if (mesh.size(axis) > 1) options.data.emplace_back(axis);
  }
  if (layout.zero == 0) return options;
  const int copies = mesh.size("dp"), group = layout.zero_group.value_or(copies);
  if (group == copies) {
    options.shard = options.data;  // ranks that share a row hold copies too
  } else if (group > 1) {
    options.shard = {fmt::format("dp%{}", group)};
  }
  return options;
}

Share share_of(const spec::Recipe& recipe, const ParallelGroups& parallel_groups, std::int64_t length) {
  return {.rank = parallel_groups.copy,
          .ranks = parallel_groups.copies_count,
          .length = length,
          .micro_batch_size = recipe.train.micro_batch_size.value_or(0),
          .weights = recipe.layout.dp_batch_weights};
}

}  // namespace trireme::train
