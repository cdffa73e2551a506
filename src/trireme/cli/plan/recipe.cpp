#include "trireme/cli/plan/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/units.h"
#include "trireme/plan/from_recipe.h"

namespace trireme::cli {
namespace {

spec::RecomputeKind recompute_of(plan::Recompute mode) {
  switch (mode) {
    case plan::Recompute::kNone:
      return spec::RecomputeKind::kNone;
    case plan::Recompute::kSelective:
      return spec::RecomputeKind::kSelective;
    case plan::Recompute::kFull:
      return spec::RecomputeKind::kFull;
  }
  return spec::RecomputeKind::kNone;
}

spec::Precision precision_of(cost::Arithmetic arithmetic) {
  switch (arithmetic) {
    case cost::Arithmetic::kFp32:
      return spec::Precision::kFp32;
    case cost::Arithmetic::kFp16:
      return spec::Precision::kFp16;
    case cost::Arithmetic::kBf16:
      return spec::Precision::kBf16;
    case cost::Arithmetic::kFp8:
      throw ConfigError("recipes have no fp8 yet", "plan with --precision bf16 to write a recipe");
  }
  return spec::Precision::kBf16;
}

void set_layout(const plan::Layout& layout, spec::Recipe& recipe) {
  recipe.layout.dp = layout.dp;
  recipe.layout.tp = layout.tp;
  recipe.layout.pp = layout.pp;
  recipe.layout.cp = layout.cp;
  recipe.layout.zero = layout.zero;
  recipe.layout.sequence_parallel = layout.sequence_parallel && layout.tp > 1;
  recipe.pipeline.schedule = layout.schedule;
  recipe.pipeline.virtual_stages = layout.virtual_stages;
  recipe.train.micro_batch_size = layout.micro_batch_size;
  recipe.train.recompute = recompute_of(layout.recompute);
  recipe.comm.ranks = layout.gpus();
}

}  // namespace

void take_from_recipe(const spec::Recipe& recipe, plan::Choices& given, std::optional<std::int64_t>& length,
                      std::optional<std::int64_t>& batch, std::string& precision) {
  const auto take = [](auto& target, const auto& value) {
    if (!target) target = value;
  };
  take(given.tp, recipe.layout.tp);
  take(given.pp, recipe.layout.pp);
  take(given.cp, recipe.layout.cp);
  if (recipe.layout.dp) take(given.dp, *recipe.layout.dp);
  take(given.zero, recipe.layout.zero);
  take(given.sequence_parallel, recipe.layout.sequence_parallel);
  take(given.virtual_stages, recipe.pipeline.virtual_stages);
  if (recipe.layout.pp > 1) take(given.schedule, recipe.pipeline.schedule);
  if (recipe.train.micro_batch_size) take(given.micro_batch_size, *recipe.train.micro_batch_size);
  take(given.recompute, plan::recompute_of(recipe.train.recompute));
  take(length, recipe.data.seq_len);
  take(batch, std::max<std::int64_t>(1, recipe.batch.global_batch_tokens / *length));
  if (precision.empty() && recipe.precision.compute != spec::Precision::kFp64)
    precision = name_in(enum_names(std::type_identity<spec::Precision>{}), recipe.precision.compute);
}

std::string recipe_text(const PlanTask& task, const plan::Estimate& estimate, const std::string& tokens) {
  if (task.job.mixture != plan::Mixture{})
    throw ConfigError("recipes have no experts yet", "plan a dense model to write a recipe, or leave out --write");
  if (estimate.layout.offload != plan::Offload::kNone)
    throw ConfigError("recipes cannot offload weights to the host yet", "leave out --offload or --write");
  spec::Recipe recipe = task.recipe;
  recipe.model = spec::config_of(task.job.shape);
  recipe.data.seq_len = task.job.length;
  if (recipe.data.sources.empty() && !recipe.data.synthetic.kind) {
    recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
    recipe.data.synthetic.vocab_size = std::min<std::int64_t>(task.job.shape.vocab_size, 64);
  }
  recipe.batch.global_batch_tokens = task.job.length * task.job.batch;
  recipe.precision.compute = precision_of(task.job.arithmetic);
  set_layout(estimate.layout, recipe);
  if (!tokens.empty()) {
    recipe.train.tokens = parse_count(tokens);
    recipe.train.steps.reset();
  } else if (!recipe.train.steps && !recipe.train.tokens) {
    recipe.train.steps = 100;
  }
  return fmt::format(
      "# Planned for {} x {} ({}): {}.\n"
      "# Predicted: {:.4g} s a step, {:.1f} model TFLOP/s a device, {:.1f} GiB on the fullest rank.\n\n{}",
      task.gpus, task.hardware.device.name, task.hardware.cluster.name, to_text(estimate.layout),
      estimate.step_seconds(), estimate.tflops_per_gpu(), estimate.memory.peak() / 1073741824.0,
      config::to_toml(recipe));
}

}  // namespace trireme::cli
