// Pipeline schedules beside everything else: where they are defined, and what steps that run together leave no room
// for.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/text.h"
#include "trireme/spec/batch_split.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

const std::string& schedule_name(const RuleContext& context) { return context.run.recipe.pipeline.schedule; }

/// What keeps steps apart: each of the rules below offers it.
std::string steps_apart(const RuleContext& context) {
  std::string hint = context.run.schedule.asynchronous ? "set pipeline.schedule = \"1f1b\"" : "";
  if (context.run.recipe.pipeline.drain_every.value_or(1) > 1)
    hint += fmt::format("{}pipeline.drain_every = 1", hint.empty() ? "set " : " and ");
  return hint;
}

std::string several_steps(const RuleContext& context) {
  const std::int64_t steps = steps_between_drains(context.run.recipe, context.run.schedule.asynchronous);
  if (steps == 1) return fmt::format("schedule {} updates while micro-batches are in flight", schedule_name(context));
  return fmt::format("schedule {} runs {} steps together", schedule_name(context), steps);
}

void schedule_is_known(RuleContext& context) {
  if (!context.has_stages() || context.run.schedule.unknown.empty()) return;
  context.refuse("pipeline.schedule", context.run.schedule.unknown,
                 fmt::format("set pipeline.schedule = \"{}\"", context.run.schedule.nearest));
  context.run.recipe.pipeline.schedule = "1f1b";
  context.run.schedule = {};
}

/// What this kind takes, or else the plainest.
std::string schedule_takes(const RuleContext& context, std::int64_t rows, int chunks) {
  const auto& refuses = context.run.schedule.refuses;
  const auto micros = static_cast<int>(context.micros_of(rows));
  constexpr int kMostChunks = 4;
  for (int other = 1; other <= kMostChunks; ++other) {
    if (refuses(micros, other).empty()) return fmt::format("set pipeline.virtual_stages = {}", other);
  }
  const std::int64_t most = 4 * (rows + std::int64_t{context.layout().pp} * context.replicas);
  const bool constant = context.run.recipe.batch.kind == BatchKind::kConstant && !context.run.rows;
  for (std::int64_t more = rows + 1; constant && more <= most; ++more) {
    if (!refuses(static_cast<int>(context.micros_of(more)), chunks).empty()) continue;
    return fmt::format("set batch.global_batch_tokens = {} ({} sequences, {} micro-batches)",
                       more * context.run.seq_len, more, context.micros_of(more));
  }
  if (!context.run.recipe.pipeline.stage_ranks.empty()) return "leave pipeline.stage_ranks out";
  if (context.run.recipe.pipeline.replicates_stages()) return "set pipeline.split = \"time\"";
  return "set pipeline.schedule = \"1f1b\" and pipeline.virtual_stages = 1";
}

void schedule_is_defined(RuleContext& context) {
  if (!context.has_stages()) return;
  const int chunks = std::max(context.run.recipe.pipeline.virtual_stages, context.run.schedule.default_chunks);
  for (const std::int64_t rows : context.rows_of_steps()) {
    const std::string why = context.run.schedule.refuses(static_cast<int>(context.micros_of(rows)), chunks);
    if (why.empty()) continue;
    context.refuse("pipeline.schedule", fmt::format("{}: {}", schedule_name(context), why),
                   schedule_takes(context, rows, chunks));
    return;
  }
}

/// What makes one micro-batch of a step; recomputation within a budget asks for a size.
std::string one_micro_hint(const RuleContext& context, std::int64_t rows) {
  if (context.run.recipe.train.recompute != RecomputeKind::kBudget)
    return "leave train.micro_batch_size out, or take xpipe";
  std::vector<double> weights = context.layout().dp_batch_weights;
  if (static_cast<int>(weights.size()) != context.replicas) weights.clear();
  return fmt::format("set train.micro_batch_size = {}, or take xpipe", most_rows(rows, context.replicas, weights));
}

void predicts_each_micro(RuleContext& context) {
  const ScheduleTraits& schedule = context.run.schedule;
  const bool predicts = schedule.prediction == ScheduleTraits::Prediction::kMomentum;
  if (!context.has_stages() || !schedule.updates_every_micro || !predicts) return;
  for (const std::int64_t rows : context.rows_of_steps()) {
    const std::int64_t micros = context.micros_of(rows);
    if (micros == 1) continue;
    context.refuse("train.micro_batch_size",
                   fmt::format("makes {} micro-batches of a step, but schedule {} predicts the weights after each "
                               "one's own update",
                               micros, schedule_name(context)),
                   one_micro_hint(context, rows));
    return;
  }
}

/// Rows of the smallest micro-batch of a step, of `size` rows each as far as they go.
std::int64_t fewest_rows(const RuleContext& context, std::int64_t rows, std::int64_t size) {
  std::vector<double> weights = context.layout().dp_batch_weights;
  if (static_cast<int>(weights.size()) != context.replicas) weights.clear();
  const std::int64_t micros = most_micros(rows, context.replicas, weights, size);
  std::int64_t fewest = rows;
  for (int rank = 0; rank < context.replicas; ++rank) {
    const std::int64_t own = share_of_rows(0, rows, rank, context.replicas, weights).count;
    for (const std::int64_t each : micro_sizes(own, size, micros)) fewest = std::min(fewest, each);
  }
  return fewest;
}

void doubled_forward_rows(RuleContext& context) {
  if (!context.has_stages() || !context.run.schedule.doubled_forward) return;
  const std::int64_t least = context.run.schedule.least_rows;
  const std::vector<std::int64_t> steps = context.rows_of_steps();
  const auto suits = [&](std::int64_t size) {
    return std::ranges::all_of(steps, [&](std::int64_t rows) { return fewest_rows(context, rows, size) >= least; });
  };
  if (suits(pipeline_micro_rows(context.run.recipe, context.run.schedule))) return;
  const int chunks = std::max(context.run.recipe.pipeline.virtual_stages, context.run.schedule.default_chunks);
  std::optional<std::int64_t>& size = context.run.recipe.train.micro_batch_size;
  const std::optional<std::int64_t> before = size;
  constexpr std::int64_t kMostRows = 64;
  const std::int64_t most = std::min(kMostRows, *std::ranges::min_element(steps));
  for (size = least; *size <= most; ++*size) {
    const bool defined = std::ranges::all_of(steps, [&](std::int64_t rows) {
      return context.run.schedule.refuses(static_cast<int>(context.micros_of(rows)), chunks).empty();
    });
    if (defined && suits(*size)) break;
  }
  const bool found = *size <= most;
  context.refuse("pipeline.schedule",
                 fmt::format("{}: {}", schedule_name(context),
                             least > 1 ? "a backward takes half of a micro-batch, but one has a single sequence"
                                       : "a forward takes two micro-batches at once, but one has no sequence"),
                 found ? fmt::format("set train.micro_batch_size = {}", *size)
                       : "set pipeline.schedule = \"1f1b\" and pipeline.virtual_stages = 1");
  if (!found) size = before;
}

void schedule_holds_steps(RuleContext& context) {
  const int steps = context.run.schedule.steps;
  const PipelineConfig& pipeline = context.run.recipe.pipeline;
  const std::int64_t drains = steps_between_drains(context.run.recipe, context.run.schedule.asynchronous);
  if (!context.has_stages() || steps == 0 || drains == steps) return;
  context.refuse("pipeline.drain_every",
                 fmt::format("schedule {} holds {}, but {} to run together", pipeline.schedule,
                             counted(static_cast<std::size_t>(steps), "step"),
                             drains == 1 ? "1 is" : fmt::format("{} are", drains)),
                 fmt::format("set pipeline.drain_every = {}, and train.steps to a multiple of it", steps));
}

void predicted_by_momentum(RuleContext& context) {
  const OptimConfig& optim = context.run.recipe.optim;
  if (!context.has_stages() || context.run.schedule.prediction != ScheduleTraits::Prediction::kMomentum) return;
  if (optim.kind == OptimizerKind::kSgd && optim.momentum > 0) return;
  const bool adam = optim.kind == OptimizerKind::kAdam || optim.kind == OptimizerKind::kAdamw;
  context.refuse("optim.kind",
                 fmt::format("schedule {} predicts weights from the velocity of SGD, which this optimizer has not",
                             schedule_name(context)),
                 adam ? "set pipeline.schedule = \"xpipe\", or optim.kind = \"sgd\" and optim.momentum = 0.9"
                      : "set optim.kind = \"sgd\" and optim.momentum = 0.9, or take pipedream");
}

void predicted_by_adam(RuleContext& context) {
  const OptimizerKind kind = context.run.recipe.optim.kind;
  if (!context.has_stages() || context.run.schedule.prediction != ScheduleTraits::Prediction::kAdam) return;
  if (kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamw) return;
  context.refuse("optim.kind",
                 fmt::format("schedule {} predicts weights from the moments of Adam, which this optimizer has not",
                             schedule_name(context)),
                 "set optim.kind = \"adamw\", or pipeline.schedule = \"spectrain\" with SGD");
}

/// Synchronised in waves.
bool has_waves(const RuleContext& context) { return context.has_stages() && context.run.schedule.waves; }

void waves_take_sgd(RuleContext& context) {
  const OptimConfig& optim = context.run.recipe.optim;
  if (!has_waves(context)) return;
  if (optim.kind == OptimizerKind::kSgd && optim.momentum == 0 && optim.weight_decay == 0 && optim.grad_clip_norm == 0)
    return;
  context.refuse(
      "optim.kind",
      fmt::format("schedule {} computes with a virtual worker's own gradients before its wave is in the "
                  "weights, each by itself: that is plain SGD",
                  schedule_name(context)),
      "set pipeline.schedule = \"1f1b\", or optim.kind = \"sgd\" with optim.momentum = 0, optim.weight_decay = 0 "
      "and optim.grad_clip_norm = 0");
}

void waves_share_out_nothing(RuleContext& context) {
  if (!has_waves(context)) return;
  const LayoutConfig& layout = context.layout();
  const std::string why = fmt::format(
      "in schedule {} a virtual worker computes with weights and gradients of its own, and plain SGD keeps nothing",
      schedule_name(context));
  if (layout.zero > 0) context.refuse("layout.zero", why, "set layout.zero = 0");
  if (layout.offload != OffloadKind::kNone) context.refuse("layout.offload", why, "set layout.offload = \"none\"");
}

void waves_without_experts(RuleContext& context) {
  if (has_waves(context) && context.run.shape.experts.used())
    context.refuse("pipeline.schedule",
                   fmt::format("in schedule {} virtual workers are at different minibatches, but loads of experts are "
                               "summed over all of a step",
                               schedule_name(context)),
                   "set pipeline.schedule = \"1f1b\"");
}

void waves_are_even(RuleContext& context) {
  if (!has_waves(context)) return;
  const std::int64_t rows = std::max<std::int64_t>(1, context.run.recipe.train.micro_batch_size.value_or(1));
  const std::int64_t wave = rows * context.replicas;
  for (const std::int64_t step : context.rows_of_steps()) {
    if (step % wave == 0 && context.layout().dp_batch_weights.empty()) continue;
    const std::int64_t even = std::max<std::int64_t>(1, step / wave) * wave;
    context.refuse(
        "batch.global_batch_tokens",
        fmt::format("a step of {} sequences is no wave of as many minibatches for each of {} virtual workers, "
                    "{} sequences each",
                    step, context.replicas, rows),
        context.layout().dp_batch_weights.empty()
            ? fmt::format("set batch.global_batch_tokens = {}", even * context.run.seq_len)
            : std::string("leave layout.dp_batch_weights out"));
    return;
  }
}

void waves_share_no_weights(RuleContext& context) {
  const ModelShape& shape = context.run.shape;
  if (!has_waves(context)) return;
  const bool encoder = shape.num_encoder_layers > 0;  // whose embedding is the decoder's
  if (!shape.tied && !encoder && shape.mtp_depth == 0) return;
  const bool predicts = !encoder && !shape.tied;  // whose modules embed tokens on the last stage
  context.refuse(encoder    ? "pipeline.schedule"
                 : predicts ? "model.mtp_depth"
                            : "model.tied",
                 fmt::format("the token embedding is on several stages, and with schedule {} each would compute with "
                             "other minibatches' updates of it",
                             schedule_name(context)),
                 encoder    ? "set pipeline.schedule = \"1f1b\""
                 : predicts ? "set model.mtp_depth = 0, or pipeline.schedule = \"1f1b\""
                            : "set model.tied = false, or pipeline.schedule = \"1f1b\"");
}

void waves_loss_scale(RuleContext& context) {
  if (has_waves(context) && context.run.recipe.precision.compute == Precision::kFp16)
    context.refuse("precision.compute",
                   fmt::format("schedule {} computes with a minibatch's update before other stages know whether its "
                               "gradients overflowed",
                               schedule_name(context)),
                   fmt::format("{}, or precision.compute = \"bf16\"", steps_apart(context)));
}

void together_delayed_update(RuleContext& context) {
  if (context.runs_several_steps() && context.layout().delayed_update)
    context.refuse("layout.delayed_update",
                   fmt::format("{}, each pass with the weights of a certain update, but a delayed one comes a step "
                               "later than its gradients say",
                               several_steps(context)),
                   fmt::format("{}, or layout.delayed_update = false", steps_apart(context)));
}

void together_delayed_scales(RuleContext& context) {
  if (!context.runs_several_steps() || context.run.recipe.precision.gemm != GemmPrecision::kFp8Delayed) return;
  if (!context.run.schedule.waves) return;
  context.refuse(
      "precision.gemm",
      fmt::format("{}, but the scales of \"fp8-delayed\" are of what all replicas met in a step, and virtual "
                  "workers are at different ones",
                  several_steps(context)),
      fmt::format("{}, or precision.gemm = \"fp8\"", steps_apart(context)));
}

void together_health(RuleContext& context) {
  const HealthConfig& health = context.run.recipe.health;
  if (!context.runs_several_steps()) return;
  const bool spike = health.spike != AnomalyPolicy::kIgnore;
  if (!spike && health.non_finite == AnomalyPolicy::kStop) return;
  context.refuse(
      spike ? "health.spike" : "health.non_finite",
      fmt::format("{}, and updates weights before the loss of a step is known, so none can be left out",
                  several_steps(context)),
      fmt::format("{}, or health.spike = \"ignore\" and health.non_finite = \"stop\"", steps_apart(context)));
}

void looks_fall_on_drains(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  const std::int64_t drain = recipe.pipeline.drain_every.value_or(1);
  if (!context.has_stages() || drain == 1) return;
  const std::pair<const char*, std::int64_t> looks[] = {{"eval.every", recipe.eval.every},
                                                        {"checkpoint.every", recipe.checkpoint.every},
                                                        {"train.hash_every", recipe.train.hash_every}};
  std::int64_t common = 0;
  for (const auto& [key, every] : looks) common = std::gcd(common, every);
  std::int64_t divisor = std::min(common, drain);
  while (divisor > 1 && common % divisor != 0) --divisor;
  for (const auto& [key, every] : looks) {
    if (every % drain == 0) continue;
    context.refuse(key,
                   fmt::format("is {}, but the pipeline is emptied after every {} steps only (pipeline.drain_every), "
                               "and between drains its weights belong to no single step",
                               every, drain),
                   fmt::format("set {} = {}, or pipeline.drain_every = {}", key, (every / drain + 1) * drain,
                               std::max<std::int64_t>(1, divisor)));
  }
}

/// Virtual workers with splits of their own.
void split_of_virtual_workers(RuleContext& context) {
  PipelineConfig& pipeline = context.run.recipe.pipeline;
  const std::vector<std::string> splits = worker_splits(pipeline.split);
  if (!context.has_stages() || splits.size() == 1) return;
  const auto refuse = [&](std::string reason, std::string hint) {
    context.refuse("pipeline.split", std::move(reason), std::move(hint));
    pipeline.split = splits.front();
  };
  if (!has_waves(context))
    return refuse(fmt::format("gives {} virtual workers splits of their own, but pipelines of schedule {} sum the "
                              "gradients of equal stages",
                              splits.size(), schedule_name(context)),
                  fmt::format("set pipeline.split = \"{}\", or pipeline.schedule = \"hetpipe\"", splits.front()));
  if (static_cast<int>(splits.size()) != context.replicas)
    return refuse(fmt::format("has {} splits, one for each virtual worker, but there are {} of these", splits.size(),
                              context.replicas),
                  fmt::format("write {} splits with ; between them, or one for all", context.replicas));
  for (const std::string& split : splits) {
    const std::string how = split_speeds(split).how;
    if (how == "time" || how == "pipedream")
      return refuse(fmt::format("lets virtual workers cut by \"{}\", which measures one pipeline for all", how),
                    fmt::format("write \"size\" in place of \"{}\", or the entries at which chunks begin", how));
  }
}

void split_names_entries_of(RuleContext& context, const std::string& split) {
  const PipelineConfig& pipeline = context.run.recipe.pipeline;
  constexpr std::string_view kKinds[] = {"count", "size", "time", "pipedream"};
  const auto [how, speeds] = split_speeds(split);
  const int each =
      context.run.schedule.bidirectional ? 1 : std::max(pipeline.virtual_stages, context.run.schedule.default_chunks);
  const std::size_t stages =
      pipeline.stage_ranks.empty() ? static_cast<std::size_t>(context.layout().pp) : pipeline.stage_ranks.size();
  const std::size_t chunks = stages * static_cast<std::size_t>(each);
  if (context.has_stages() && !speeds.empty() && speeds.size() != chunks)
    return context.refuse(
        "pipeline.split",
        fmt::format("\"{}\" gives {} speeds, but the model is cut into {} chunks", split, speeds.size(), chunks),
        fmt::format("set pipeline.split = \"{}\"", how));
  if (!context.has_stages() || std::ranges::find(kKinds, how) != std::end(kKinds)) return;
  const std::vector<std::string> starts = split_entries(split),
                                 entries = chain_entries(context.run.shape, context.run.recipe.train.recompute);
  const char* hint = "set pipeline.split = \"count\"";
  std::size_t before = 0;
  for (const std::string& start : starts) {
    const auto found = std::ranges::find(entries, start);
    const auto at = static_cast<std::size_t>(found - entries.begin());
    if (found == entries.end()) {
      std::vector<std::string> known = entries;
      known.insert(known.end(), std::begin(kKinds), std::end(kKinds));
      return context.refuse("pipeline.split",
                            fmt::format("no chunk can begin at \"{}\": the model has no such entry{}; its entries are "
                                        "{} .. {}",
                                        start, did_you_mean(start, known), entries.front(), entries.back()),
                            hint);
    }
    if (at <= before)
      return context.refuse(
          "pipeline.split",
          fmt::format("a chunk cannot begin at \"{}\": the chunk before it begins at \"{}\"", start, entries[before]),
          hint);
    before = at;
  }
  if (starts.size() + 1 != chunks)
    context.refuse("pipeline.split",
                   fmt::format("names {} entries, but {} stages with {} each begin at {}: the first chunk begins by "
                               "itself",
                               starts.size(), stages, counted(static_cast<std::size_t>(each), "chunk"), chunks - 1),
                   hint);
}

void split_names_entries(RuleContext& context) {
  for (const std::string& split : worker_splits(context.run.recipe.pipeline.split))
    split_names_entries_of(context, split);
}

constexpr Rule kPipelineRules[] = {
    {"schedule-is-known", "schedules that do not exist, and files that hold none", "`trireme schedule list` has them",
     Because::kDefinition, RuleNeeds::kRun, schedule_is_known},
    {"schedule-is-defined", "schedules outside of their domain",
     "some are defined for certain numbers of micro-batches, stages or chunks only", Because::kDefinition,
     RuleNeeds::kRun, schedule_is_defined},
    {"predicts-each-micro", "SpecTrain with several micro-batches",
     "it predicts the weights after each one's own update; of several, that is XPipe", Because::kDefinition,
     RuleNeeds::kRun, predicts_each_micro},
    {"doubled-forward-rows",
     "Chimera's backward halving with micro-batches of one sequence, doubled forwards with none", "each part has a row",
     Because::kDefinition, RuleNeeds::kRun, doubled_forward_rows},
    {"schedule-holds-steps", "a schedule from a file with several steps beside another `drain_every`",
     "its steps overlap and cannot be cut apart", Because::kDefinition, RuleNeeds::kRun, schedule_holds_steps},
    {"predicted-by-momentum", "SpecTrain without SGD and momentum", "it predicts weights from the velocity",
     Because::kDefinition, RuleNeeds::kRun, predicted_by_momentum},
    {"predicted-by-adam", "XPipe without Adam", "it predicts weights from the moments", Because::kDefinition,
     RuleNeeds::kRun, predicted_by_adam},
    {"waves-take-sgd", "HetPipe with another optimizer than plain SGD without clipping",
     "a virtual worker computes with its own updates one by one before their wave is in the weights",
     Because::kDefinition, RuleNeeds::kRun, waves_take_sgd},
    {"waves-share-out-nothing", "HetPipe with ZeRO or offload of the optimizer",
     "what ZeRO shards is each virtual worker's own: its gradients, and weights with its local updates; plain SGD has "
     "no "
     "state",
     Because::kDefinition, RuleNeeds::kRun, waves_share_out_nothing},
    {"waves-without-experts", "HetPipe with experts",
     "loads of experts are summed over all replicas after each step, by which biases follow them, and virtual workers "
     "are at different ones; without biases they need not be",
     Because::kNotBuilt, RuleNeeds::kRun, waves_without_experts},
    {"waves-are-even", "HetPipe with a batch that gives virtual workers different numbers of minibatches",
     "a wave has as many on each", Because::kDefinition, RuleNeeds::kRun, waves_are_even},
    {"waves-share-no-weights", "HetPipe with tied embeddings, multi-token prediction or an encoder beside the decoder",
     "a virtual worker computes with its own minibatches' updates at once, and of a weight on two stages each has "
     "other "
     "ones: neither waits for the other's gradient of a minibatch",
     Because::kNotBuilt, RuleNeeds::kRun, waves_share_no_weights},
    {"waves-loss-scale", "HetPipe with fp16",
     "a virtual worker computes with a minibatch's update before its other stages know whether it overflowed",
     Because::kDefinition, RuleNeeds::kRun, waves_loss_scale},
    {"together-delayed-update", "several steps between flushes with delayed parameter updates",
     "each pass takes the weights of a certain update, which would be another law with updates a step late",
     Because::kDefinition, RuleNeeds::kRun, together_delayed_update},
    {"together-delayed-scales", "delayed FP8 scaling with HetPipe",
     "a scale follows from what all replicas met in a step, and virtual workers are at different ones",
     Because::kDefinition, RuleNeeds::kRun, together_delayed_scales},
    {"together-health", "several steps between flushes with `health.spike` or `health.non_finite`",
     "asynchronous schedules update weights before the loss of a step is known; updates that are validated after the "
     "fact are taken back for fp16 that overflowed and for clipping alone",
     Because::kNotBuilt, RuleNeeds::kRun, together_health},
    {"looks-fall-on-drains", "a `drain_every` that does not divide `eval.every`, `checkpoint.every` and `hash_every`",
     "between flushes weights belong to no single step", Because::kDefinition, RuleNeeds::kRun, looks_fall_on_drains},
    {"split-of-virtual-workers", "several splits in `pipeline.split` but with HetPipe, one for each virtual worker",
     "other pipelines side by side sum the gradients of equal stages", Because::kDefinition, RuleNeeds::kRun,
     split_of_virtual_workers},
    {"split-names-entries", "a `pipeline.split` that does not name the entries at which all chunks begin",
     "each chunk is a range of the model's entries", Because::kDefinition, RuleNeeds::kRun, split_names_entries},
};

}  // namespace

std::span<const Rule> pipeline_rules() { return kPipelineRules; }

}  // namespace trireme::spec
