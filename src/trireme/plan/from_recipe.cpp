#include "trireme/plan/from_recipe.h"

#include <algorithm>

#include "trireme/schedule/builders.h"

namespace trireme::plan {

Recompute recompute_of(spec::RecomputeKind kind) {
  switch (kind) {
    case spec::RecomputeKind::kNone:
      return Recompute::kNone;
    case spec::RecomputeKind::kSelective:
      return Recompute::kSelective;
    default:
      return Recompute::kFull;
  }
}

cost::Arithmetic arithmetic_of(spec::Precision precision) {
  switch (precision) {
    case spec::Precision::kBf16:
      return cost::Arithmetic::kBf16;
    case spec::Precision::kFp16:
      return cost::Arithmetic::kFp16;
    default:
      return cost::Arithmetic::kFp32;
  }
}

std::int64_t batch_rows(const spec::Recipe& recipe) {
  const std::int64_t tokens = spec::batch_at(recipe.lr_schedule, recipe.batch, 0);
  return tokens % recipe.data.seq_len == 0 ? tokens / recipe.data.seq_len : 0;
}

void take_states(Job& job, const spec::Recipe& recipe) {
  job.moments = spec::moments_of(recipe.optim);
  const double compute = recipe.precision.compute == spec::Precision::kFp32 ? 4 : 2;
  const spec::MasterWeights master_weights = recipe.precision.master_weights;
  const bool narrow = spec::has_narrow_gradients(recipe.precision);
  const double moment = recipe.optim.state_dtype == spec::StateDtype::kBf16 ? 2 : 4;
  const auto types = [&](bool has_masters) {
    return StateTypes{
        .gradient_bytes = narrow || !has_masters ? compute : 4, .moment_bytes = moment, .master_weights = has_masters};
  };
  job.of_layers = types(master_weights == spec::MasterWeights::kFp32);
  job.of_tables = types(master_weights != spec::MasterWeights::kVectors);
}

Job job_of(const spec::Recipe& recipe, const spec::ModelShape& shape) {
  Job job;
  job.shape = shape;
  job.length = recipe.data.seq_len;
  job.batch = std::max<std::int64_t>(1, batch_rows(recipe));
  job.arithmetic = arithmetic_of(recipe.precision.compute);
  take_states(job, recipe);
  return job;
}

Layout layout_of(const spec::Recipe& recipe, const Job& job, int ranks) {
  Layout layout{.tp = recipe.layout.tp, .pp = recipe.layout.pp, .cp = recipe.layout.cp};
  layout.dp = std::max(1, ranks / (layout.tp * layout.pp * layout.cp));
  layout.zero = recipe.layout.zero;
  layout.zero_group = recipe.layout.zero_group.value_or(0);
  layout.sequence_parallel = recipe.layout.sequence_parallel;
  layout.recompute = recompute_of(recipe.train.recompute);
  const std::int64_t rows = (job.batch + layout.dp - 1) / layout.dp;  // of the copy that has most
  layout.micro_batch_size = recipe.train.micro_batch_size.value_or(layout.pp > 1 ? 1 : rows);
  layout.virtual_stages = recipe.pipeline.virtual_stages;
  if (layout.pp > 1) {
    layout.schedule = recipe.pipeline.schedule;
    if (!layout.schedule.starts_with("file:"))
      layout.virtual_stages = std::max(layout.virtual_stages, schedule::find_kind(layout.schedule).default_chunks);
  }
  return layout;
}

}  // namespace trireme::plan
