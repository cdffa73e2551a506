#include "trireme/train/engine/recipe_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/train/engine/device.h"

namespace trireme::train {

namespace {

/// Along which ranks hold copies that exchange what is compressed, or that update by themselves: data-parallel ranks,
/// of those that are dense among themselves (of a node, of a worker) one.
layout::AxisNames copy_axes(const spec::Recipe& recipe, const layout::Mesh& mesh) {
  const spec::CompressConfig& compress = recipe.compress;
  const int copies = mesh.size(nn::kDataAxis);
  int dense = 1;
  if (compress.across == spec::CompressAcross::kNode) {
    dense = std::min(copies, recipe.comm.ranks_per_node.value_or(1) / (recipe.layout.tp * recipe.layout.cp));
  } else if (compress.workers) {
    dense = copies / *compress.workers;
  }
  if (dense == copies) return {};
  return {dense == 1 ? std::string(nn::kDataAxis) : fmt::format("{}/{}", nn::kDataAxis, dense)};
}

}  // namespace

std::unique_ptr<ParallelGroups> form(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                     std::int64_t length) {
  return parallel::form(recipe.layout, shape, world, length, init_device_exchange(recipe, world));
}

parallel::DataParallelOptions data_parallel_options(const spec::Recipe& recipe, const ParallelGroups& parallel_groups) {
  const layout::Mesh& mesh = parallel_groups.parallel.mesh;
  const spec::LayoutConfig& layout = recipe.layout;
  parallel::DataParallelOptions options{
      .zero = layout.zero,
      .bucket_bytes = static_cast<std::int64_t>(layout.bucket_mb * 1e6),
      .first_bucket_bytes = static_cast<std::int64_t>(layout.first_bucket_mb.value_or(0) * 1e6),
      .reduce_groups = layout.reduce_groups,
      .find_unused = layout.find_unused,
      .reduce_bf16 = layout.reduce == spec::ReduceKind::kBf16,
      .offload = layout.offload == spec::OffloadKind::kOptimizer,
      .late_updates = layout.delayed_update,
      .precision = recipe.precision.compute,
      .device = parallel_groups.device,
      .reducer = parallel::reducer_named("dense"),
      .compress = recipe.compress,
      .seed = static_cast<std::uint64_t>(recipe.run.seed),
      .grad_clip_norm = recipe.optim.grad_clip_norm};
  for (const char* axis : {nn::kDataAxis, nn::kContextAxis}) {
    if (mesh.size(axis) > 1) options.data.emplace_back(axis);
  }
  if (recipe.compress.kind != spec::CompressKind::kNone) {
    options.reducer = parallel::reducer_named(spec::compress_name(recipe.compress.kind));
    options.copies = copy_axes(recipe, mesh);
  }
  if (layout.zero == 0) return options;
  const int copies = mesh.size(nn::kDataAxis), group = layout.zero_group.value_or(copies);
  if (group == copies) {
    options.shard = options.data;  // ranks that share a row hold copies too
  } else if (group > 1) {
    options.shard = {fmt::format("{}%{}", nn::kDataAxis, group)};
  }
  return options;
}

Share share_of(const spec::Recipe& recipe, const ParallelGroups& parallel_groups, std::int64_t length) {
  return {.rank = parallel_groups.dp_rank,
          .ranks = parallel_groups.dp_size,
          .length = length,
          .micro_batch_size = recipe.train.micro_batch_size.value_or(0),
          .weights = recipe.layout.dp_batch_weights,
          // ZeRO 2 and 3 reduce, and ZeRO-3 gathers, in every micro-batch; so do tokens travel to experts.
          .lockstep = recipe.layout.zero >= 2 || recipe.layout.ep > 1};
}

}  // namespace trireme::train
