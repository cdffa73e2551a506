#include "trireme/train/formation.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/spec/layout_check.h"
#include "trireme/train/device.h"

namespace trireme::train {
namespace {

/// Every group that some rank will ask for: they are made by all ranks together, whatever a rank's own stage needs.
void make_groups(parallel::MeshGroups& groups, const spec::LayoutConfig& layout, const spec::ModelShape& shape) {
  groups.along({"tp"});
  // Heads of keys that several ranks hold: their gradients are summed among those.
  if (shape.kv_heads > 1 && shape.kv_heads < layout.tp)
    groups.along({fmt::format("tp%{}", layout.tp / shape.kv_heads)});
}

void join_context(Formation& formation, const spec::LayoutConfig& layout, const spec::ModelShape& shape,
                  std::int64_t length) {
  nn::Team& team = formation.team;
  if (layout.cp == 1) return;
  const bool trade_all = layout.cp_kind == spec::ContextKind::kUlysses;
  const int inner = trade_all ? layout.cp : layout.cp_inner, at = team.mesh.coordinate(team.rank, "cp");
  team.tokens = {.outer = layout.cp / inner,
                 .outer_rank = at / inner,
                 .inner = inner,
                 .inner_rank = at % inner,
                 .zigzag = shape.causal && layout.cp > inner && length % (2 * layout.cp) == 0};
  team.context = layout.cp_kind;
  if (team.tokens.outer > 1) team.ring = formation.groups->along({inner == 1 ? "cp" : fmt::format("cp/{}", inner)});
  if (inner > 1) team.heads = formation.groups->along({inner == layout.cp ? "cp" : fmt::format("cp%{}", inner)});
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

std::unique_ptr<Formation> form(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                std::int64_t length) {
  const spec::LayoutConfig& layout = recipe.layout;
  const std::int64_t rows = spec::pace_at(recipe.optim, recipe.schedule, recipe.batch, {}).batch / length;
  spec::PipelineConfig pipeline = recipe.pipeline;
  if (auto problems = spec::find_layout_problems(layout, pipeline,
                                                 {.shape = shape,
                                                  .sequence = length,
                                                  .batch_rows = rows,
                                                  .microbatch = recipe.train.microbatch,
                                                  .ranks = world.size()});
      !problems.empty()) {
    throw config::ProblemsError("the layout", std::move(problems));
  }
  auto formation = std::make_unique<Formation>();
  formation->device = meet_on_devices(recipe, world);
  formation->groups = std::make_unique<parallel::MeshGroups>(world, mesh_of(layout, world.size()));
  parallel::MeshGroups& groups = *formation->groups;
  make_groups(groups, layout, shape);
  formation->alone = world.split(world.rank(), 0, "alone");
  formation->copies = groups.along({"dp"});
  formation->pipeline = groups.along({"pp"});
  nn::Team& team = formation->team;
  team.mesh = groups.mesh();
  team.rank = world.rank();
  team.tensor = groups.along({"tp"});
  team.sequence_parallel = layout.sequence_parallel;
  team.keep_gathered = layout.keep_gathered;
  team.overlap = layout.tp_overlap;
  join_context(*formation, layout, shape, length);
  formation->copies_count = team.mesh.size("dp");
  formation->copy = team.mesh.coordinate(team.rank, "dp");
  formation->stages = layout.pp;
  formation->stage = team.mesh.coordinate(team.rank, "pp");
  if (!layout.shares.empty() && static_cast<int>(layout.shares.size()) != formation->copies_count) {
    throw ConfigError(fmt::format("layout.shares has {} numbers for {} copies of the model", layout.shares.size(),
                                  formation->copies_count),
                      "give one for each copy, or leave it out");
  }
  return formation;
}

parallel::ReplicaOptions replica_options(const spec::Recipe& recipe, const Formation& formation) {
  const layout::Mesh& mesh = formation.team.mesh;
  const spec::LayoutConfig& layout = recipe.layout;
  parallel::ReplicaOptions options{.zero = layout.zero,
                                   .bucket_bytes = static_cast<std::int64_t>(layout.bucket_mb * 1e6),
                                   .reduce_bf16 = layout.reduce == spec::ReduceKind::kBf16,
                                   .offload = layout.offload == spec::OffloadKind::kOptimizer,
                                   .precision = recipe.precision.compute,
                                   .device = formation.device};
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

Share share_of(const spec::Recipe& recipe, const Formation& formation, std::int64_t length) {
  return {.rank = formation.copy,
          .ranks = formation.copies_count,
          .length = length,
          .microbatch = recipe.train.microbatch.value_or(0),
          .weights = recipe.layout.shares};
}

}  // namespace trireme::train
