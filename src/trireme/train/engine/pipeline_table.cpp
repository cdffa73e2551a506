#include "trireme/train/engine/pipeline_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/plan/run_setup.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replicated.h"

namespace trireme::train {
namespace {

constexpr std::string_view kFile = "file:";

bool recomputes_stages(const spec::Recipe& recipe) { return recipe.train.recompute == spec::RecomputeKind::kStage; }

schedule::Schedule table_of_file(const std::string& name, const schedule::Shape& shape) {
  const schedule::Schedule table = schedule::build(name, shape);
  if (table.steps() == shape.steps) return schedule::complete(table);
  // One step can be repeated where it ends before the next begins.
  if (table.steps() == 1 && table.weights == schedule::WeightChoice::kFlush && !schedule::has_transfers(table)) {
    return schedule::complete(schedule::repeat(table, shape.steps));
  }
  // The last steps of a run may be fewer than a file holds, whatever rules say of the others.
  throw ConfigError(
      fmt::format("schedule {} holds {} steps, but {} are to run together", name, table.steps(), shape.steps),
      fmt::format("set train.steps to a multiple of {}", table.steps()));
}

}  // namespace

bool is_asynchronous(const spec::Recipe& recipe) {
  return recipe.layout.pp > 1 && plan::schedule_traits(recipe).asynchronous;
}

std::int64_t pipeline_microbatch(const spec::Recipe& recipe) {
  return spec::pipeline_micro_rows(recipe, plan::schedule_traits(recipe));
}

schedule::Schedule replicated_table(const spec::Recipe& recipe, const schedule::StageRanks& stages, int micros,
                                    int steps) {
  if (is_asynchronous(recipe)) {
    return schedule::add_transfers(schedule::replicated_pipedream(stages, micros, steps, recomputes_stages(recipe)));
  }
  const auto passes = schedule::replicated_1f1b(stages, micros);
  const auto step = schedule::add_updates(recomputes_stages(recipe) ? schedule::add_recompute(passes) : passes);
  return schedule::add_transfers(schedule::repeat(step, steps));
}

schedule::Schedule pipeline_table(const spec::Recipe& recipe, int micros, int steps) {
  const std::string& name = recipe.pipeline.schedule;
  schedule::Shape shape{.ranks = recipe.layout.pp,
                        .micros = micros,
                        .chunks_per_rank = recipe.pipeline.virtual_stages,
                        .steps = steps,
                        .recompute = recomputes_stages(recipe),
                        .micro_rows = static_cast<int>(pipeline_microbatch(recipe)),
                        .update_every = micros};
  if (name.starts_with(kFile)) return table_of_file(name, shape);
  const schedule::Kind& kind = schedule::find_kind(name);
  shape.chunks_per_rank = std::max(shape.chunks_per_rank, kind.default_chunks);
  const schedule::Schedule table = schedule::complete(schedule::build(name, shape));
  TRIREME_CHECK(table.steps() == steps, "schedule {} makes {} steps of {} with {} micro-batches each", name,
                table.steps(), steps, micros);
  return table;
}

std::int64_t steps_until_drain(const spec::Recipe& recipe, std::int64_t every, spec::Position position,
                               const Share& share) {
  const std::int64_t most = std::min(every - position.step % every, last_step(recipe) - position.step);
  StepPlan plan = plan_step(recipe, position, share);
  const std::size_t micros = plan.microbatches.size();
  std::int64_t steps = 1;
  for (; steps < most; ++steps) {
    plan = plan_step(recipe, plan.after, share);
    if (plan.microbatches.size() != micros) break;
  }
  return steps;
}

}  // namespace trireme::train
