// What a run needs beside its layout: its length, whole sequences, positions, validation data and the right ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/spec/batch_split.h"
#include "trireme/spec/rules.h"
#include "trireme/spec/stage_split.h"

namespace trireme::spec {
namespace {

void run_has_length(RuleContext& context) {
  const TrainConfig& train = context.run.recipe.train;
  if (!train.steps && !train.tokens)
    context.refuse("train.steps", "the recipe does not say how long to train",
                   "set train.steps = 1000, or train.tokens");
}

void batch_is_whole_rows(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  const BatchConfig& batch = recipe.batch;
  const std::int64_t length = context.run.seq_len;
  const bool told = batch.kind != BatchKind::kRamp || (batch.start && batch.over);
  if (context.run.rows || !told || (batch.kind == BatchKind::kIncrease && !batch.maximum)) return;
  constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t tokens : batch_sizes(recipe.lr_schedule, batch, recipe.train.steps.value_or(kEver),
                                               recipe.train.tokens.value_or(kEver))) {
    if (tokens % length == 0) continue;
    const std::int64_t rows = std::max<std::int64_t>(1, tokens / length);
    const std::int64_t whole = std::max<std::int64_t>(1, batch.global_batch_tokens / length) * length;
    std::string hint = fmt::format("set batch.global_batch_tokens = {} ({} sequences)", rows * length, rows);
    if (batch.kind == BatchKind::kRamp) {
      const std::int64_t start = std::clamp<std::int64_t>(*batch.start / length * length, length, whole);
      hint = fmt::format("set batch.multiple = {}, batch.start = {} and batch.global_batch_tokens = {}", length, start,
                         whole);
    } else if (batch.kind == BatchKind::kIncrease) {
      hint = fmt::format("set batch.multiple = {} and batch.global_batch_tokens = {}", length, whole);
    }
    std::string key = "batch.global_batch_tokens";
    for (std::size_t i = 0; i < recipe.lr_schedule.restarts.size(); ++i) {
      if (tokens == batch.global_batch_tokens || recipe.lr_schedule.restarts[i].global_batch_tokens != tokens) continue;
      key = fmt::format("lr_schedule.restarts.{}.global_batch_tokens", i);
      hint = fmt::format("set {} = {} ({} sequences)", key, rows * length, rows);
    }
    return context.refuse(key, fmt::format("a step of {} tokens is no whole number of sequences of {}", tokens, length),
                          hint);
  }
}

void sequence_fits_context(RuleContext& context) {
  const ModelShape& shape = context.run.shape;
  if (context.run.seq_len <= shape.max_seq_len) return;
  const bool rotary = shape.position_kind == PositionKind::kRotary;
  context.refuse(
      "data.seq_len",
      fmt::format("is {}, but the model's context is {} tokens", context.run.seq_len, shape.max_seq_len),
      fmt::format("set data.seq_len = {}, or model.max_seq_len = {}{}", shape.max_seq_len, context.run.seq_len,
                  rotary ? ", with model.rotary.scaling and factor for a model that was trained before" : ""));
}

void mtp_has_later_tokens(RuleContext& context) {
  const ModelShape& shape = context.run.shape;
  if (shape.mtp_depth < context.run.seq_len || shape.mtp_depth == 0) return;
  context.refuse("model.mtp_depth",
                 fmt::format("is {}, but sequences have {} tokens (data.seq_len): none of them has a target left",
                             shape.mtp_depth, context.run.seq_len),
                 fmt::format("set model.mtp_depth = {}", std::min<std::int64_t>(1, context.run.seq_len - 1)));
}

void validation_has_data(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  const bool kept = recipe.data.synthetic.kind || !recipe.data.validation.empty() ||
                    recipe.data.validation_fraction.value_or(kValidationFraction) > 0;
  if (recipe.eval.every > 0 && !kept)
    context.refuse("eval.every", "is given, but the recipe keeps nothing for validation",
                   "set data.validation_fraction = 0.01, or eval.every = 0");
}

bool on_gpus(const RuleContext& context) { return context.run.recipe.run.device == DeviceKind::kCuda; }
int ranks_of(const RuleContext& context) {
  return context.run.ranks.value_or(static_cast<int>(context.layout().ranks_per_copy()) * context.replicas);
}

/// Whether comm.transport makes threads of ranks, or leaves it to who starts them and those are threads.
bool ranks_are_threads(const RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  switch (recipe.comm.transport) {
    case Transport::kThreads:
      return true;
    case Transport::kMpi:
    case Transport::kUcx:
      return false;
    case Transport::kEmulated:
      return recipe.emulated.over == Carrier::kThreads;
    case Transport::kAuto:
      break;
  }
  return context.run.rank_kind == RankKind::kThreads;
}

void emulated_carries_no_gpu(RuleContext& context) {
  if (!on_gpus(context) || context.run.recipe.comm.transport != Transport::kEmulated) return;
  if (ranks_of(context) == 1 || !ranks_are_threads(context)) return;
  context.refuse(
      "run.device",
      fmt::format("is \"cuda\", but the {} ranks are behind an emulated network, which carries no GPU memory",
                  ranks_of(context)),
      "set comm.transport = \"auto\", or run.device = \"cpu\"");
}

void graphs_need_processes(RuleContext& context) {
  if (!on_gpus(context) || !context.run.recipe.train.cuda_graphs) return;
  if (ranks_of(context) == 1 || !ranks_are_threads(context)) return;
  context.refuse(
      "train.cuda_graphs",
      fmt::format("captures reductions over ranks that are processes, but the {} ranks are threads", ranks_of(context)),
      "set train.cuda_graphs = false, or start the ranks with mpirun");
}

void graphs_offload(RuleContext& context) {
  if (!on_gpus(context) || !context.run.recipe.train.cuda_graphs) return;
  if (context.layout().offload == OffloadKind::kNone || (ranks_of(context) == 1 && context.layout().zero == 0)) return;
  context.refuse("train.cuda_graphs",
                 "captures reductions that stay on the GPU, but layout.offload takes them to the host",
                 "set layout.offload = \"none\", or train.cuda_graphs = false");
}

/// What the chunks hold, and how many of a rank share what they may save.
std::pair<std::vector<ChunkShare>, int> planned_chunks(const RuleContext& context) {
  const ModelShape& shape = context.run.shape;
  const int encoders = static_cast<int>(shape.num_encoder_layers);
  if (!context.has_stages())
    return {{ChunkShare{.layers = static_cast<int>(shape.num_layers) + encoders, .encoders = encoders}}, 1};
  const PipelineConfig& pipeline = context.run.recipe.pipeline;
  const ScheduleTraits& schedule = context.run.schedule;
  const int each = schedule.bidirectional ? 1 : std::max(pipeline.virtual_stages, schedule.default_chunks);
  const int stages = pipeline.stage_ranks.empty() ? context.layout().pp : static_cast<int>(pipeline.stage_ranks.size());
  std::vector<ChunkShare> all;
  const int workers = static_cast<int>(worker_splits(pipeline.split).size());
  for (int worker = 0; worker < workers; ++worker) {
    const std::vector<ChunkShare> shares = chunk_shares(shape, pipeline, stages * each, worker);
    all.insert(all.end(), shares.begin(), shares.end());
  }
  return {std::move(all), std::max(1, stages * each / context.layout().pp)};
}

/// Bytes are counted in 256 parts of the budget, each block's rounded up, as the plan of the run counts them
/// (nn/recompute_plan.h).
bool budget_suffices(const BlockBytes& block, int blocks, double budget) {
  constexpr double kParts = 256;
  const auto parts = [&](double bytes) { return std::ceil(bytes * kParts / budget - 1e-9); };
  // The last block of a segment that runs again saves, while the inputs of segments before it wait.
  return parts(block.saved) + (blocks > 1 ? parts(block.input) : 0) <= kParts;
}

/// The blocks of one chunk that have a plan together, which are all alike, and their share of what it may save: by what
/// they would save without recomputation (models/model.cpp).
struct PlannedBlocks {
  BlockBytes block;
  int blocks = 0;
  double share = 1;
  bool suffices(double budget) const { return budget_suffices(block, blocks, share * budget); }
  double least() const { return (block.saved + (blocks > 1 ? block.input : 0)) / share; }
};

void budget_holds_a_block(RuleContext& context) {
  TrainConfig& train = context.run.recipe.train;
  if (train.recompute != RecomputeKind::kBudget || !train.recompute_gb || !context.run.block_bytes) return;
  std::pair<std::vector<ChunkShare>, int> chunks;
  try {
    chunks = planned_chunks(context);
  } catch (const ConfigError&) {
    return;  // a split that does not fit: a rule of its own
  }
  const int sharers = chunks.second;
  const BlockBytes block = context.run.block_bytes(context.run.recipe, false);
  const BlockBytes encoder =
      context.run.shape.num_encoder_layers > 0 ? context.run.block_bytes(context.run.recipe, true) : block;
  std::optional<PlannedBlocks> most;  // those that want most
  for (const ChunkShare& chunk : chunks.first) {
    const int blocks = chunk.layers - chunk.encoders;
    const double all = blocks * block.saved + chunk.encoders * encoder.saved;
    for (const auto& [one, count] : {std::pair{block, blocks}, std::pair{encoder, chunk.encoders}}) {
      if (count == 0) continue;
      const PlannedBlocks planned{.block = one, .blocks = count, .share = count * one.saved / all};
      if (!most || planned.least() > most->least()) most = planned;
    }
  }
  if (!most || most->suffices(*train.recompute_gb * 1e9 / sharers)) return;
  double least = most->least() * sharers / 1e9;
  while (!most->suffices(least * 1e9 / sharers)) least *= 1.005;
  // Upwards, to three digits.
  const double digit = std::pow(10.0, std::floor(std::log10(least)) - 2);
  least = std::ceil(least / digit) * digit;
  context.refuse(
      "train.recompute_gb",
      fmt::format("is {:g}, but a block saves {} of a micro-batch even where all others run again{}{}{}",
                  *train.recompute_gb, short_bytes(most->block.saved),
                  most->blocks > 1 ? fmt::format(", beside an input of {}", short_bytes(most->block.input)) : "",
                  sharers > 1 ? fmt::format("; {} chunks of a rank share it", sharers) : "",
                  most->share < 1
                      ? fmt::format("; {:.0f} % of it are for {} like this one, the rest for the other stack's",
                                    100 * most->share, counted(static_cast<std::size_t>(most->blocks), "block"))
                      : ""),
      fmt::format("set train.recompute_gb = {:.3g}, or a smaller train.micro_batch_size", least));
  train.recompute_gb = least;
}

constexpr Rule kRunRules[] = {
    {"run-has-length", "a recipe without `train.steps` and `train.tokens`", "a run must end", Because::kDefinition,
     RuleNeeds::kRun, run_has_length},
    {"batch-is-whole-rows", "a batch that is no whole number of sequences", "batches are counted in tokens",
     Because::kDefinition, RuleNeeds::kRun, batch_is_whole_rows},
    {"sequence-fits-context", "sequences longer than `model.max_seq_len`",
     "learned positions end there, and rotary ones were trained up to there", Because::kDefinition, RuleNeeds::kRun,
     sequence_fits_context},
    {"mtp-has-later-tokens", "`model.mtp_depth` of as many tokens as a sequence has",
     "a further token is one of the same sequence", Because::kDefinition, RuleNeeds::kRun, mtp_has_later_tokens},
    {"validation-has-data", "`eval.every` without validation data", "there is nothing to evaluate",
     Because::kDefinition, RuleNeeds::kRun, validation_has_data},
    {"budget-holds-a-block", "a `recompute_gb` that is less than what one block saves",
     "a block that goes back needs what its forward saves, however much else runs again", Because::kDefinition,
     RuleNeeds::kRun, budget_holds_a_block},
    {"emulated-carries-no-gpu", "several ranks with GPUs behind an emulated network between threads",
     "its links delay copies of host memory; what GPUs exchange goes past it, over NCCL or peer memory",
     Because::kNotBuilt, RuleNeeds::kRun, emulated_carries_no_gpu},
    {"graphs-need-processes", "CUDA graphs with several ranks that are threads",
     "threads meet on the host in the midst of a reduction, and a graph holds work of the GPU alone",
     Because::kNotBuilt, RuleNeeds::kRun, graphs_need_processes},
    {"graphs-offload", "CUDA graphs with offload on several ranks or with ZeRO-1",
     "a sum leaves for the host when the host sees that it has arrived, which differs from step to step",
     Because::kNotBuilt, RuleNeeds::kRun, graphs_offload},
};

}  // namespace

std::span<const Rule> run_rules() { return kRunRules; }

}  // namespace trireme::spec
