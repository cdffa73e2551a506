#include "trireme/train/engine/pipeline_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replicated.h"

namespace trireme::train {
namespace {

constexpr std::string_view kFile = "file:";

schedule::Schedule table_of_file(const std::string& name, const schedule::Shape& shape) {
  const schedule::Schedule table = schedule::build(name, shape);
  if (table.steps() == shape.steps) return schedule::complete(table);
  // One step can be repeated where it ends before the next begins.
  if (table.steps() == 1 && table.weights == schedule::WeightChoice::kFlush && !schedule::has_transfers(table)) {
    return schedule::complete(schedule::repeat(table, shape.steps));
  }
  throw ConfigError(
      fmt::format("schedule {} holds {} steps, but {} are to run together", name, table.steps(), shape.steps),
      fmt::format("set pipeline.drain_every = {}, and train.steps to a multiple of it", table.steps()));
}

// Longer tables gain nothing: filling a pipeline takes a few micros.
constexpr std::int64_t kMostByItself = 128;

std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
  for (std::int64_t divisor = std::min(number, most); divisor > 1; --divisor) {
    if (number % divisor == 0) return divisor;
  }
  return 1;
}

}  // namespace

bool is_asynchronous(const spec::Recipe& recipe) {
  const std::string& name = recipe.pipeline.schedule;
  if (name.starts_with(kFile)) {
    return schedule::read_file(name.substr(kFile.size())).weights != schedule::WeightChoice::kFlush;
  }
  return schedule::find_kind(name).asynchronous;
}

std::int64_t pipeline_microbatch(const spec::Recipe& recipe) {
  if (recipe.train.micro_batch_size) return *recipe.train.micro_batch_size;
  if (recipe.pipeline.schedule.starts_with(kFile) || !is_asynchronous(recipe)) return 1;
  const schedule::Schedule small =
      schedule::build(recipe.pipeline.schedule, {.ranks = recipe.layout.pp, .micros = recipe.layout.pp, .steps = 1});
  return small.update_every == 1 ? 0 : 1;
}

schedule::Schedule replicated_table(const std::vector<int>& ranks_of_stage, int micros, int steps) {
  const auto step = schedule::add_updates(schedule::replicated_1f1b(ranks_of_stage, micros));
  return schedule::add_transfers(schedule::repeat(step, steps));
}

schedule::Schedule pipeline_table(const spec::Recipe& recipe, int micros, int steps) {
  const std::string& name = recipe.pipeline.schedule;
  schedule::Shape shape{
      .ranks = recipe.layout.pp, .micros = micros, .chunks_per_rank = recipe.pipeline.virtual_stages, .steps = steps};
  if (name.starts_with(kFile)) return table_of_file(name, shape);
  const schedule::Kind& kind = schedule::find_kind(name);
  shape.chunks_per_rank = std::max(shape.chunks_per_rank, kind.default_chunks);
  const schedule::Schedule table = schedule::complete(schedule::build(name, shape));
  if (table.steps() != steps) {
    throw ConfigError(
        fmt::format("schedule {} updates after every micro, but a step of the recipe is {} micros", name, micros),
        "leave train.micro_batch_size out, so that a step is one micro, or take pipedream-2bw or xpipe");
  }
  return table;
}

std::int64_t drain_every(const spec::Recipe& recipe, bool asynchronous) {
  const std::pair<const char*, std::int64_t> looks[] = {{"eval.every", recipe.eval.every},
                                                        {"checkpoint.every", recipe.checkpoint.every},
                                                        {"train.hash_every", recipe.train.hash_every}};
  std::int64_t common = 0;
  for (const auto& [key, every] : looks) common = std::gcd(common, every);
  if (!recipe.pipeline.drain_every) {
    if (!asynchronous) return 1;
    return common == 0 ? kMostByItself : largest_divisor(common, kMostByItself);
  }
  const std::int64_t drain = *recipe.pipeline.drain_every;
  for (const auto& [key, every] : looks) {
    if (every % drain == 0) continue;
    throw ConfigError(
        fmt::format("{} is {}, but the pipeline is emptied after every {} steps only (pipeline.drain_every), and "
                    "between drains its weights belong to no single step",
                    key, every, drain),
        fmt::format("set {} = {}, or pipeline.drain_every = {}", key, (every / drain + 1) * drain,
                    largest_divisor(common, drain)));
  }
  return drain;
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
