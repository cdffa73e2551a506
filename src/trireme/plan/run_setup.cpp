#include "trireme/plan/run_setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/plan/activations.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"

namespace trireme::plan {
namespace {

using Prediction = spec::ScheduleTraits::Prediction;

constexpr std::string_view kFile = "file:";

Prediction prediction_of(schedule::WeightChoice law) {
  if (law == schedule::WeightChoice::kPredictMomentum) return Prediction::kMomentum;
  return law == schedule::WeightChoice::kPredictAdam ? Prediction::kAdam : Prediction::kNone;
}

spec::ScheduleTraits traits_of_file(const std::string& name, int stages) {
  spec::ScheduleTraits traits;
  try {
    const schedule::Schedule table = schedule::read_file(name.substr(kFile.size()));
    schedule::require_fine(table);
    traits.asynchronous = table.weights != schedule::WeightChoice::kFlush;
    traits.prediction = prediction_of(table.weights);
    traits.bidirectional = table.routes.size() > 1;
    traits.doubled_forward = schedule::micros_of_forward(table) == 2;
    traits.least_rows = table.micro_parts;
    traits.default_chunks = table.chunks() / std::max(1, stages);
    // One step can be repeated where it ends before the next begins.
    const bool repeats = table.steps() == 1 && !traits.asynchronous && !schedule::has_transfers(table);
    if (!repeats) traits.steps = table.steps();
    const int ranks = static_cast<int>(table.ranks.size()),
              micros = (table.update_every == 0 ? table.micros : table.update_every) / table.micro_parts;
    traits.refuses = [=](int wanted, int) {
      return ranks == stages && micros == wanted
                 ? std::string()
                 : fmt::format("it is written for {} ranks and {} micro-batches a step, not for {} and {}", ranks,
                               micros, stages, wanted);
    };
  } catch (const Error& error) {
    traits.unknown = error.what();
  }
  return traits;
}

/// The smallest table of a kind, whose laws are those of all. With a single micro-batch, every kind updates after each.
schedule::Schedule smallest(const schedule::Kind& kind) {
  schedule::Shape shape{.ranks = 2, .micros = 2, .chunks_per_rank = kind.default_chunks};
  constexpr int kMostMicros = 16;
  while (!kind.refuses(shape).empty() && shape.micros < kMostMicros) ++shape.micros;
  return schedule::build(kind.name, shape);
}

/// Where stages are on several ranks, which take a step's micro-batches in turn.
spec::ScheduleTraits traits_of_replicated(const spec::Recipe& recipe, const schedule::Kind& kind) {
  const std::vector<int>& ranks = recipe.pipeline.stage_ranks;
  const int most = ranks.empty() ? recipe.layout.pp : *std::ranges::max_element(ranks);
  spec::ScheduleTraits traits;
  traits.asynchronous = kind.asynchronous;
  traits.refuses = [most, found = ranks.empty()](int micros, int) {
    return micros >= most ? std::string()
                          : fmt::format("a stage {} on {} ranks, of which each takes a micro-batch, but a step has {}",
                                        found ? "may be" : "is", most, micros);
  };
  return traits;
}

}  // namespace

bool first_micro_leads(const schedule::Schedule& table) {
  for (const auto& list : table.ranks) {
    std::vector<bool> others(static_cast<std::size_t>(table.chunks()), false);  // have added to this chunk
    for (const schedule::Instruction& one : list) {
      if (one.op == schedule::Op::kOptimizerStep) break;
      if (!schedule::does_weight_gradient(one)) continue;
      const auto chunk = static_cast<std::size_t>(schedule::backward_chunk(one));
      if (schedule::backward_micro(one) / table.micro_parts != 0)
        others[chunk] = true;
      else if (others[chunk])
        return false;
    }
  }
  return true;
}

spec::ScheduleTraits schedule_traits(const spec::Recipe& recipe) {
  const std::string& name = recipe.pipeline.schedule;
  const int stages = recipe.layout.pp;
  if (name.starts_with(kFile)) return traits_of_file(name, stages);
  std::string_view base = name;
  try {
    base = schedule::split_kind_name(name).kind;
  } catch (const Error& error) {
    spec::ScheduleTraits traits;
    traits.unknown = error.what();
    traits.nearest = "hetpipe";
    return traits;
  }
  std::vector<std::string> names;
  for (const schedule::Kind& kind : schedule::kinds()) {
    names.emplace_back(kind.name);
    if (kind.name != base) continue;
    if (recipe.pipeline.replicates_stages()) return traits_of_replicated(recipe, kind);
    const schedule::Schedule small = smallest(kind);
    spec::ScheduleTraits traits;
    traits.asynchronous = kind.asynchronous;
    traits.updates_every_micro = kind.asynchronous && small.update_every == 1;
    traits.waves = small.weights == schedule::WeightChoice::kWaves;
    traits.prediction = prediction_of(small.weights);
    traits.default_chunks = kind.default_chunks;
    traits.bidirectional = small.routes.size() > 1;
    traits.doubled_forward = schedule::micros_of_forward(small) == 2;
    traits.least_rows = small.micro_parts;
    traits.refuses = [refuses = kind.refuses, stages](int micros, int chunks) {
      return refuses({.ranks = stages, .micros = micros, .chunks_per_rank = chunks});
    };
    return traits;
  }
  spec::ScheduleTraits traits;
  traits.unknown = fmt::format("\"{}\" is unknown{}", name, did_you_mean(name, names));
  traits.nearest = closest(name, names).value_or("1f1b");
  return traits;
}

spec::BlockBytes block_bytes(const spec::Recipe& recipe, const spec::ModelShape& shape, bool encoder) {
  Job job = job_of(recipe, shape);
  ParallelConfig config = spec::parallel_config(recipe, /*ranks=*/1, job.batch);
  const std::int64_t sources = recipe.data.source_seq_len.value_or(job.seq_len);
  const bool reads_encoder = shape.num_encoder_layers > 0 && !encoder;
  const double crossed = reads_encoder ? cross_attention_bytes(job, config, sources) : 0;
  if (encoder) {
    job.seq_len = sources;
    job.shape.num_layers = shape.num_encoder_layers;
  }
  job.shape.num_encoder_layers = 0;  // one stack by itself
  config.recompute = spec::RecomputeKind::kNone;
  const double saved = activation_bytes(job, config).layer + crossed;
  config.recompute = spec::RecomputeKind::kFull;  // saves its input
  return {.saved = saved, .input = activation_bytes(job, config).layer};
}

spec::RunSetup run_setup(const spec::Recipe& recipe, const spec::ModelShape& shape, const RunRanks& place) {
  spec::RunSetup run{.recipe = recipe,
                     .shape = shape,
                     .seq_len = place.seq_len.value_or(recipe.data.seq_len),
                     .rows = {},
                     .ranks = place.ranks,
                     .rank_kind = place.rank_kind};
  if (recipe.layout.pp > 1) run.schedule = schedule_traits(recipe);
  run.block_bytes = [shape](const spec::Recipe& mended, bool encoder) { return block_bytes(mended, shape, encoder); };
  return run;
}

}  // namespace trireme::plan
