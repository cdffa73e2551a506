// What optimizers, averages of weights, the gradient noise scale, layer dropping and muP do not go together with.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

std::string quoted_optimizer(const RuleContext& context) {
  return fmt::format("optim.kind = \"{}\"",
                     name_in(enum_names(std::type_identity<OptimizerKind>()), context.run.recipe.optim.kind));
}

bool updates_matrices(const RuleContext& context) { return has_matrix_updates(context.run.recipe.optim.kind); }
bool keeps_averages(const RuleContext& context) {
  const OptimConfig& optim = context.run.recipe.optim;
  return optim.kind == OptimizerKind::kScheduleFree || optim.ema_decay;
}
std::string average_key(const RuleContext& context) {
  return context.run.recipe.optim.ema_decay ? "optim.ema_decay" : "optim.kind";
}
bool measures_noise(const RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  return recipe.train.noise_scale || recipe.batch.kind == BatchKind::kNoise;
}
std::string noise_key(const RuleContext& context) {
  return context.run.recipe.train.noise_scale ? "train.noise_scale" : "batch.kind";
}

void matrices_find_unused(RuleContext& context) {
  if (updates_matrices(context) && context.layout().find_unused)
    context.refuse(
        "layout.find_unused",
        fmt::format("leaves parameters out of a step, but {} updates all matrices together", quoted_optimizer(context)),
        "set layout.find_unused = false, or optim.kind = \"adamw\"");
}

void matrices_late_updates(RuleContext& context) {
  if (updates_matrices(context) && context.layout().delayed_update)
    context.refuse("layout.delayed_update",
                   fmt::format("an update that overlaps with the next step cannot exchange matrices, as {} does",
                               quoted_optimizer(context)),
                   "set layout.delayed_update = false, or optim.kind = \"adamw\"");
}

void matrices_one_copy(RuleContext& context) {
  const CompressKind kind = context.run.recipe.compress.kind;
  if (updates_matrices(context) && (lets_copies_drift(kind) || has_local_updates(kind)))
    context.refuse(
        "compress.kind",
        fmt::format("lets copies of a matrix differ between ranks, but with {} one rank makes the update of all",
                    quoted_optimizer(context)),
        "set compress.kind = \"none\", or optim.kind = \"adamw\"");
}

void adafactor_tied_stages(RuleContext& context) {
  if (context.run.recipe.optim.kind == OptimizerKind::kAdafactor && context.has_stages() && context.run.shape.tied)
    context.refuse(
        "optim.kind",
        "\"adafactor\" factors the embedding too, but with layout.pp two stages hold a tied one, and no rank has "
        "all of its gradients' squares",
        "set model.tied = false, layout.pp = 1, or optim.kind = \"adamw\"");
}

void averages_late_updates(RuleContext& context) {
  if (keeps_averages(context) && context.layout().delayed_update)
    context.refuse(average_key(context),
                   "averages the weights after a step, but layout.delayed_update makes them later",
                   "set layout.delayed_update = false");
}

void ema_is_kept(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.eval.weights == EvalWeights::kEma && !recipe.optim.ema_decay)
    context.refuse("eval.weights", "is \"ema\", but no moving average of weights is kept",
                   "set optim.ema_decay = 0.999, or eval.weights = \"trained\"");
}

void noise_whole_model(RuleContext& context) {
  if (!measures_noise(context)) return;
  const Recipe& recipe = context.run.recipe;
  const ModelShape& shape = context.run.shape;
  if (context.has_stages() && (shape.mtp_depth > 0 || shape.num_encoder_layers > 0))
    context.refuse(
        noise_key(context),
        "measures each gradient when the first micro-batch has added to it, but this model's embedding is in "
        "more stages than the first and the last",
        "set layout.pp = 1, or leave it out");
  else if (context.run.shape.experts.used())
    context.refuse(noise_key(context), "counts every gradient over all data-parallel ranks, but experts have fewer",
                   "leave it out");
  else if (recipe.train.cuda_graphs)
    context.refuse(noise_key(context), "looks at gradients between kernels that train.cuda_graphs captures",
                   "set train.cuda_graphs = false");
  else if (recipe.layout.offload != OffloadKind::kNone)
    context.refuse(noise_key(context), "looks at gradients before layout.offload takes them to the host",
                   "set layout.offload = \"none\"");
}

/// A pipeline has several micro-batches under way.
void noise_of_first_micro(RuleContext& context) {
  if (!measures_noise(context) || !context.has_stages()) return;
  constexpr const char* kHint = "set pipeline.schedule = \"1f1b\" and leave pipeline.drain_every out, or leave it out";
  const ScheduleTraits& schedule = context.run.schedule;
  if (context.runs_several_steps())
    return context.refuse(noise_key(context),
                          "compares two batches of one step, but this pipeline runs several steps together", kHint);
  if (schedule.doubled_forward || schedule.least_rows > 1)
    return context.refuse(noise_key(context),
                          fmt::format("measures the first micro-batch alone, but pipeline.schedule = \"{}\" runs "
                                      "two at once or halves them",
                                      context.run.recipe.pipeline.schedule),
                          kHint);
  const int chunks = std::max(context.run.recipe.pipeline.virtual_stages, schedule.default_chunks);
  for (const std::int64_t rows : context.rows_of_steps()) {
    const auto micros = static_cast<int>(context.micros_of(rows));
    if (!schedule.refuses(micros, chunks).empty() || schedule.first_micro_leads(micros, chunks, context.run.shape.tied))
      continue;
    return context.refuse(
        noise_key(context),
        fmt::format("measures the first micro-batch alone, but with pipeline.schedule = \"{}\"{} "
                    "others add to a gradient before it has",
                    context.run.recipe.pipeline.schedule, context.run.shape.tied ? " and a tied embedding" : ""),
        kHint);
  }
}

void noise_two_batches(RuleContext& context) {
  if (!measures_noise(context) || context.replicas > 1) return;
  for (const std::int64_t rows : context.rows_of_steps()) {
    if (context.micros_of(rows) > 1) continue;
    return context.refuse(noise_key(context),
                          "compares the gradients of two batch sizes, but one rank computes a step in one micro-batch",
                          fmt::format("set train.micro_batch_size = {}", std::max<std::int64_t>(1, rows / 2)));
  }
}

void noise_batch_has_steps(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.batch.kind == BatchKind::kNoise && !recipe.train.steps)
    context.refuse(
        "batch.kind", "\"noise\" changes the batch as it is measured, so nobody knows how many steps train.tokens are",
        fmt::format("set train.steps = {} and leave train.tokens out, or take another batch.kind",
                    std::max<std::int64_t>(1, recipe.train.tokens.value_or(0) /
                                                  std::max<std::int64_t>(1, recipe.batch.global_batch_tokens))));
}

void layer_drop_alike(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.train.layer_keep && recipe.train.cuda_graphs)
    context.refuse("train.layer_keep",
                   "computes other layers in every step, but train.cuda_graphs replays the same kernels",
                   "set train.cuda_graphs = false, or leave train.layer_keep out");
}

void layer_gamma_is_used(RuleContext& context) {
  const TrainConfig& train = context.run.recipe.train;
  if (train.layer_keep_gamma && !train.layer_keep)
    context.refuse("train.layer_keep_gamma", "is given, but train.layer_keep is not, so no layer is dropped",
                   "set train.layer_keep = 0.5, or leave it out");
}

void mup_is_for_adam(RuleContext& context) {
  if (context.run.shape.mup_base_hidden_size == 0) return;
  const OptimizerKind kind = context.run.recipe.optim.kind;
  if (kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamw || kind == OptimizerKind::kLion ||
      kind == OptimizerKind::kScheduleFree)
    return;
  context.refuse(
      "model.mup_base_hidden_size",
      fmt::format("scales learning rates for updates whose size does not depend on the gradient's, but {} has others",
                  quoted_optimizer(context)),
      "set optim.kind = \"adamw\", or leave model.mup_base_hidden_size out");
}

constexpr Rule kOptimRules[] = {
    {"matrices-find-unused", "Muon, Adafactor, Shampoo and SOAP with `layout.find_unused`",
     "matrices are exchanged together", Because::kNotBuilt, RuleNeeds::kRecipe, matrices_find_unused},
    {"matrices-late-updates", "Muon, Adafactor, Shampoo and SOAP with late updates (`layout.delayed_update`)",
     "the update would talk to other ranks while the next step does", Because::kNotBuilt, RuleNeeds::kRecipe,
     matrices_late_updates},
    {"matrices-one-copy", "Muon, Adafactor, Shampoo and SOAP with local updates",
     "the owner of a matrix makes the update of all copies", Because::kDefinition, RuleNeeds::kRecipe,
     matrices_one_copy},
    {"averages-late-updates", "an average of weights with late updates (`layout.delayed_update`)",
     "the average would miss a step", Because::kNotBuilt, RuleNeeds::kRecipe, averages_late_updates},
    {"ema-is-kept", "`eval.weights = \"ema\"` without `optim.ema_decay`", "there is no average", Because::kDefinition,
     RuleNeeds::kRecipe, ema_is_kept},
    {"layer-gamma-is-used", "`train.layer_keep_gamma` without `train.layer_keep`", "no layer is dropped",
     Because::kDefinition, RuleNeeds::kRecipe, layer_gamma_is_used},
    {"noise-batch-has-steps", "`batch.kind = \"noise\"` without `train.steps`",
     "the length of the run must not depend on what is measured", Because::kDefinition, RuleNeeds::kRecipe,
     noise_batch_has_steps},
    {"adafactor-tied-stages", "Adafactor with pipeline stages and a tied embedding", "two stages hold the embedding",
     Because::kNotBuilt, RuleNeeds::kLayout, adafactor_tied_stages},
    {"noise-whole-model",
     "the gradient noise scale with experts, CUDA graphs or offload; with pipeline stages of encoder-decoder models "
     "and "
     "of multi-token prediction",
     "gradients of a rank's first micro-batch are taken where data parallelism sums them", Because::kNotBuilt,
     RuleNeeds::kLayout, noise_whole_model},
    {"noise-of-first-micro",
     "the gradient noise scale with pipelines that run several steps together, two micro-batches in one forward, "
     "others "
     "through the head before the first comes back, or, with a tied embedding, both of its ends on one rank",
     "the first micro-batch's gradient is measured before others add to it", Because::kNotBuilt, RuleNeeds::kRun,
     noise_of_first_micro},
    {"noise-two-batches", "the gradient noise scale on one rank without gradient accumulation",
     "two batch sizes are compared", Because::kDefinition, RuleNeeds::kRun, noise_two_batches},
    {"layer-drop-alike", "layer dropping with CUDA graphs",
     "a step computes other layers than the one before, and a graph always the same ones", Because::kDefinition,
     RuleNeeds::kLayout, layer_drop_alike},
    {"mup-is-for-adam", "muP with optimizers other than Adam, AdamW, Lion and schedule-free AdamW",
     "learning rates of other updates scale otherwise", Because::kDefinition, RuleNeeds::kLayout, mup_is_for_adam},
};

}  // namespace

std::span<const Rule> optim_rules() { return kOptimRules; }

}  // namespace trireme::spec
