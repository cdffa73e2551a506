#include "trireme/cli/plan/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/units.h"
#include "trireme/plan/from_recipe.h"

namespace trireme::cli {
namespace {

/// A comment in the place of a section that only the user knows.
constexpr const char* kDataIsMissing = R"(
# Required: what to train on. `trireme tokenize TEXT -o shards --tokenizer tokenizer.json` makes such a folder.
# [[data.sources]]
# path = "shards"
)";

}  // namespace

void take_from_recipe(const spec::Recipe& recipe, plan::Choices& given, std::optional<std::int64_t>& length,
                      std::optional<std::int64_t>& batch, plan::Job& job) {
  const auto take = [](auto& target, const auto& value) {
    if (!target) target = value;
  };
  const plan::Job run = plan::job_of(recipe, job.shape);
  job.precision = run.precision;
  job.optim = run.optim;
  job.logits_chunk_bytes = run.logits_chunk_bytes;
  given.base = spec::parallel_config(recipe, recipe.comm.ranks.value_or(1), run.batch);
  take(given.tp, recipe.layout.tp);
  take(given.pp, recipe.layout.pp);
  take(given.cp, recipe.layout.cp);
  take(given.cp_kind, recipe.layout.cp_kind);
  if (recipe.layout.dp) take(given.dp, *recipe.layout.dp);
  take(given.zero, recipe.layout.zero);
  take(given.zero_group, recipe.layout.zero_group.value_or(0));
  take(given.sequence_parallel, recipe.layout.sequence_parallel);
  take(given.offload, recipe.layout.offload);
  if (recipe.layout.pp > 1) {
    take(given.schedule, recipe.pipeline.schedule);
    take(given.split, recipe.pipeline.split);
  }
  take(given.virtual_stages, plan::chunks_per_rank(given.base));
  if (recipe.train.micro_batch_size) take(given.micro_batch_size, *recipe.train.micro_batch_size);
  take(given.recompute, recipe.train.recompute);
  take(length, recipe.data.seq_len);
  take(batch, std::max<std::int64_t>(1, recipe.batch.global_batch_tokens / *length));
}

std::string recipe_text(const PlanTask& task, const plan::Estimate& estimate, const std::string& tokens) {
  spec::Recipe recipe = task.recipe;
  recipe.model = spec::config_of(task.job.shape);
  recipe.data.seq_len = task.job.seq_len;
  recipe.batch.global_batch_tokens = task.job.seq_len * task.job.batch;
  recipe.precision = task.job.precision;
  recipe.optim = task.job.optim;
  // The planner's CPU is a device without 16-bit units; all others are GPUs.
  const bool cpu = task.hardware.peak(cost::Arithmetic::kFp16) <= 0;
  recipe.run.device = cpu ? spec::DeviceKind::kCpu : spec::DeviceKind::kCuda;
  spec::apply(estimate.config, recipe);
  if (!tokens.empty()) {
    recipe.train.tokens = parse_count(tokens);
    recipe.train.steps.reset();
  } else if (!recipe.train.steps && !recipe.train.tokens) {
    recipe.train.steps = 100;
  }
  return fmt::format(
      "# Planned for {} x {} ({}): {}.\n"
      "# Predicted: {:.4g} s a step, {:.1f} model TFLOP/s a device, {:.1f} GiB on the fullest rank.\n"
      "# Look at it with: trireme check FILE --ranks {} --cluster {}\n{}\n{}",
      task.gpus, task.hardware.device.name, task.hardware.cluster.name, to_text(estimate.config),
      estimate.step_seconds(), estimate.tflops_per_gpu(), estimate.memory.peak() / 1073741824.0, task.gpus,
      task.hardware.cluster.name, spec::has_data(recipe.data) ? "" : kDataIsMissing, config::to_toml(recipe));
}

}  // namespace trireme::cli
