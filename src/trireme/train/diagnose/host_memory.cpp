#include "trireme/train/diagnose/host_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/engine/teacher.h"

namespace trireme::train {
namespace {

/// Weights, gradients and optimizer state of the mean rank of a pipeline, as the planner counts them: less than any run
/// takes.
double state_bytes(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks) {
  const plan::Job job = plan::job_of(recipe, shape);
  const auto parameters = static_cast<double>(spec::count_parameters(shape).total()) /
                          (static_cast<double>(recipe.layout.tp) * recipe.layout.pp);
  return plan::model_states(job, plan::config_of(recipe, job, ranks), parameters).total();
}

}  // namespace

double planned_host_bytes(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, int local_ranks) {
  // Of a pipeline the last stage has the teacher.
  const double teachers = teacher_bytes(recipe) * local_ranks / recipe.layout.pp;
  const double state = state_bytes(recipe, shape, ranks) * local_ranks + teachers;
  // Each rank lists the samples of a step, and a pipeline its micro-batches: not for numbers of which no list can be
  // made.
  constexpr std::int64_t kMostRows = 1 << 24, kMostRowsOfStages = 1 << 14;
  const std::int64_t rows = recipe.batch.global_batch_tokens / std::max<std::int64_t>(1, recipe.data.seq_len);
  if (rows > kMostRows) {
    // Its list of samples; and without micro-batches each layer's input for every token.
    const auto tokens = static_cast<double>(recipe.batch.global_batch_tokens);
    const double inputs = 4.0 * static_cast<double>(shape.hidden_size * shape.num_layers) * tokens / std::max(1, ranks);
    return state + local_ranks * (16.0 * static_cast<double>(rows) + (recipe.train.micro_batch_size ? 0 : inputs));
  }
  if (recipe.layout.pp > 1 && rows > kMostRowsOfStages) return state;
  spec::Recipe on_device = recipe;
  on_device.run.device = spec::DeviceKind::kCuda;
  const MemoryPlan plan = plan_memory(on_device, shape, ranks, recipe.data.seq_len);
  return std::max(state, plan.together(local_ranks) + plan.host() * local_ranks + teachers);
}

void require_host_room(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, int local_ranks,
                       double bytes) {
  if (recipe.run.device != spec::DeviceKind::kCpu || bytes <= 0) return;
  local_ranks = std::max(1, local_ranks);
  const double needed = planned_host_bytes(recipe, shape, ranks, local_ranks);
  if (needed <= bytes) return;
  const std::int64_t rows = recipe.batch.global_batch_tokens / std::max<std::int64_t>(1, recipe.data.seq_len);
  const bool too_large = state_bytes(recipe, shape, ranks) * local_ranks > bytes;
  throw ConfigError(
      fmt::format("the run would take {} of memory{}, and this machine has {}: {}, {} of {} tokens a step{}",
                  short_bytes(needed), local_ranks > 1 ? fmt::format(" for its {} ranks", local_ranks) : std::string(),
                  short_bytes(bytes),
                  short_count(static_cast<double>(spec::count_parameters(shape).total())) + " parameters",
                  counted(static_cast<std::size_t>(std::max<std::int64_t>(rows, 0)), "sequence"), recipe.data.seq_len,
                  recipe.train.micro_batch_size ? fmt::format(" in micro-batches of {}", *recipe.train.micro_batch_size)
                                                : std::string(", all at once")),
      too_large ? "make the model smaller (hidden_size, num_layers, vocab_size), or shard it over more machines"
                : "set train.micro_batch_size = 1 to compute a sequence at a time, or lower "
                  "batch.global_batch_tokens or data.seq_len");
}

}  // namespace trireme::train
