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
bool measures_noise(const RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  return recipe.train.noise_scale || recipe.batch.kind == BatchKind::kNoise;
}
std::string noise_key(const RuleContext& context) {
  return context.run.recipe.train.noise_scale ? "train.noise_scale" : "batch.kind";
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

void ema_is_kept(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.eval.weights == EvalWeights::kEma && !recipe.optim.ema_decay)
    context.refuse("eval.weights", "is \"ema\", but no moving average of weights is kept",
                   "set optim.ema_decay = 0.999, or eval.weights = \"trained\"");
}

void noise_between_kernels(RuleContext& context) {
  if (!measures_noise(context)) return;
  if (context.run.recipe.train.cuda_graphs)
    context.refuse(noise_key(context), "looks at gradients between kernels that train.cuda_graphs captures",
                   "set train.cuda_graphs = false");
}

void noise_of_one_step(RuleContext& context) {
  if (!measures_noise(context) || !context.has_stages() || !context.runs_several_steps()) return;
  context.refuse(noise_key(context), "compares two batches of one step, but this pipeline runs several steps together",
                 "set pipeline.schedule = \"1f1b\" and leave pipeline.drain_every out, or leave it out");
}

void noise_two_batches(RuleContext& context) {
  if (!measures_noise(context)) return;
  const LayoutConfig& layout = context.layout();
  // Ranks that share experts have one small batch of them together.
  const std::int64_t sharing =
      context.run.shape.experts.used() ? expert_share_of_dp(layout, context.replicas) : std::int64_t{1};
  if (context.replicas > sharing) return;
  for (const std::int64_t rows : context.rows_of_steps()) {
    if (context.micros_of(rows) > 1) continue;
    return context.refuse(noise_key(context),
                          sharing > 1 ? fmt::format("compares the gradients of two batch sizes, but with layout.ep = "
                                                    "{} experts have those of a whole step in one micro-batch",
                                                    layout.ep)
                                      : std::string("compares the gradients of two batch sizes, but one rank computes "
                                                    "a step in one micro-batch"),
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
    {"matrices-one-copy", "Muon, Adafactor, Shampoo and SOAP with local updates",
     "the owner of a matrix makes the update of all copies", Because::kDefinition, RuleNeeds::kRecipe,
     matrices_one_copy},
    {"ema-is-kept", "`eval.weights = \"ema\"` without `optim.ema_decay`", "there is no average", Because::kDefinition,
     RuleNeeds::kRecipe, ema_is_kept},
    {"layer-gamma-is-used", "`train.layer_keep_gamma` without `train.layer_keep`", "no layer is dropped",
     Because::kDefinition, RuleNeeds::kRecipe, layer_gamma_is_used},
    {"noise-batch-has-steps", "`batch.kind = \"noise\"` without `train.steps`",
     "the length of the run must not depend on what is measured", Because::kDefinition, RuleNeeds::kRecipe,
     noise_batch_has_steps},
    {"noise-between-kernels", "the gradient noise scale with CUDA graphs",
     "gradients of the first micro-batch are looked at between kernels that are captured", Because::kNotBuilt,
     RuleNeeds::kLayout, noise_between_kernels},
    {"noise-of-one-step", "the gradient noise scale with pipelines that run several steps together",
     "norms of a step are summed over all stages when it is complete, and these are at other ones then",
     Because::kNotBuilt, RuleNeeds::kRun, noise_of_one_step},
    {"noise-two-batches",
     "the gradient noise scale on one rank, or where all data-parallel ranks share experts, without gradient "
     "accumulation",
     "two batch sizes are compared", Because::kDefinition, RuleNeeds::kRun, noise_two_batches},
    {"layer-drop-alike", "layer dropping with CUDA graphs",
     "a step computes other layers than the one before, and the graph is of all layers together", Because::kNotBuilt,
     RuleNeeds::kLayout, layer_drop_alike},
    {"mup-is-for-adam", "muP with optimizers other than Adam, AdamW, Lion and schedule-free AdamW",
     "learning rates of other updates scale otherwise", Because::kDefinition, RuleNeeds::kLayout, mup_is_for_adam},
};

}  // namespace

std::span<const Rule> optim_rules() { return kOptimRules; }

}  // namespace trireme::spec
