#include "trireme/spec/parallel_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/spec/batch_split.h"
#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

/// Empty where they are of another number of ranks, which a rule refuses and searches come by.
std::vector<double> batch_weights(const LayoutConfig& layout) {
  const bool suit = layout.dp_batch_weights.size() == static_cast<std::size_t>(layout.dp.value_or(1));
  return suit ? layout.dp_batch_weights : std::vector<double>();
}

}  // namespace

std::int64_t ParallelConfig::micros(std::int64_t batch_rows) const {
  return most_micros(batch_rows, dp(), batch_weights(layout), micro_batch_size);
}
std::int64_t ParallelConfig::rows(std::int64_t batch_rows) const {
  return most_rows(batch_rows, dp(), batch_weights(layout));
}

std::string to_text(const ParallelConfig& config) {
  const LayoutConfig& layout = config.layout;
  std::string out = fmt::format("tp {}, pp {}, dp {}", layout.tp, layout.pp, config.dp());
  if (layout.cp > 1)
    out +=
        fmt::format(", cp {} ({})", layout.cp, name_in(enum_names(std::type_identity<ContextKind>{}), layout.cp_kind));
  if (layout.ep > 1) out += fmt::format(", ep {}", layout.ep);
  if (config.pipeline.virtual_stages > 1) out += fmt::format(", {} virtual stages", config.pipeline.virtual_stages);
  out += fmt::format(", micro-batch {}", config.micro_batch_size);
  if (layout.pp > 1) out += fmt::format(", {}", config.pipeline.schedule);
  if (layout.pp > 1 && config.pipeline.split != "count") out += ", uneven stages";
  if (!config.pipeline.stage_ranks.empty())
    out += fmt::format(", stages on {} ranks", fmt::join(config.pipeline.stage_ranks, "+"));
  if (config.pipeline.scatter_gather) out += ", scatter/gather";
  if (layout.zero > 0) out += fmt::format(", ZeRO-{}", layout.zero);
  if (layout.zero > 0 && layout.zero_group) out += fmt::format(" in groups of {}", *layout.zero_group);
  if (layout.sequence_parallel) out += ", sequence parallel";
  if (layout.offload != OffloadKind::kNone) out += ", optimizer on the host";
  out += fmt::format(", recompute {}", name_in(enum_names(std::type_identity<RecomputeKind>{}), config.recompute));
  return out;
}

ParallelConfig parallel_config(const Recipe& recipe, int ranks, std::int64_t batch_rows) {
  ParallelConfig config{.layout = recipe.layout,
                        .pipeline = recipe.pipeline,
                        .recompute = recipe.train.recompute,
                        .recompute_every = recipe.train.recompute_every,
                        .recompute_gb = recipe.train.recompute_gb,
                        .recompute_norms = recipe.train.recompute_norms,
                        .save_mlp_activations = recipe.train.save_mlp_activations,
                        .offload_activations = recipe.train.offload_activations,
                        .partition_activations = recipe.train.partition_activations};
  config.layout.dp = recipe.layout.dp.value_or(std::max(1, ranks / static_cast<int>(recipe.layout.ranks_per_copy())));
  config.micro_batch_size = recipe.train.micro_batch_size.value_or(config.layout.pp > 1 ? 1 : config.rows(batch_rows));
  if (recipe.train.layer_keep) config.pipeline.overlap_experts = false;  // a dropped layer has no parts to go on in
  return config;
}

void apply(const ParallelConfig& config, Recipe& recipe) {
  recipe.layout = config.layout;
  recipe.pipeline = config.pipeline;
  recipe.train.micro_batch_size = config.micro_batch_size;
  recipe.train.recompute = config.recompute;
  recipe.train.recompute_every = config.recompute_every;
  recipe.train.recompute_gb = config.recompute_gb;
  recipe.train.recompute_norms = config.recompute_norms;
  recipe.train.save_mlp_activations = config.save_mlp_activations;
  recipe.train.offload_activations = config.offload_activations;
  recipe.train.partition_activations = config.partition_activations;
  recipe.comm.ranks = config.ranks();
}

void undistribute(Recipe& recipe) {
  recipe.layout = {};
  recipe.pipeline = {};
  recipe.train.partition_activations = false;
  recipe.train.mode = TrainMode::kSynchronous;
  recipe.train.work_stealing = false;
  recipe.downpour = {};
  if (recipe.train.recompute == RecomputeKind::kStage) recipe.train.recompute = RecomputeKind::kFull;
}

}  // namespace trireme::spec
