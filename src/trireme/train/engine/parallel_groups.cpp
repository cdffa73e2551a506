#include "trireme/train/engine/parallel_groups.h"

#include <fmt/format.h>

#include "trireme/train/engine/device.h"

namespace trireme::train {

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
      .precision = recipe.precision.compute,
      .device = parallel_groups.device,
      .reducer = parallel::reducer_named("dense")};
  for (const char* axis : {nn::kDataAxis, nn::kContextAxis}) {
    if (mesh.size(axis) > 1) options.data.emplace_back(axis);
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
