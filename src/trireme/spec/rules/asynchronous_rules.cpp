// What Downpour SGD and work stealing do not go together with: both ask that a rank can compute any part of a step by
// itself.
#include <fmt/format.h>

#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

bool runs_downpour(const RuleContext& context) { return context.run.recipe.train.mode == TrainMode::kDownpour; }
bool steals(const RuleContext& context) { return context.run.recipe.train.work_stealing; }
void be_synchronous(RuleContext& context) { context.run.recipe.train.mode = TrainMode::kSynchronous; }
void steal_nothing(RuleContext& context) { context.run.recipe.train.work_stealing = false; }

constexpr const char* kSynchronousHint = "set train.mode = \"synchronous\"";

void downpour_layout(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!runs_downpour(context)) return;
  const bool whole = layout.tp == 1 && layout.pp == 1 && layout.cp == 1 && layout.ep == 1 && layout.zero == 0 &&
                     layout.offload == OffloadKind::kNone;
  if (whole) return;
  context.refuse(
      "train.mode",
      fmt::format("\"downpour\" pushes the gradients of a whole model, which ranks hold parts of: layout.tp = "
                  "{}, pp = {}, cp = {}, ep = {}, zero = {}{}",
                  layout.tp, layout.pp, layout.cp, layout.ep, layout.zero,
                  layout.offload == OffloadKind::kNone ? "" : ", and offload"),
      fmt::format("{}, or leave everything but layout.dp out of [layout]", kSynchronousHint));
  be_synchronous(context);
}

void downpour_reduction(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  if (!runs_downpour(context)) return;
  const LayoutConfig& layout = recipe.layout;
  const char* key = recipe.compress.kind != CompressKind::kNone ? "compress.kind"
                    : layout.reduce != ReduceKind::kFp32        ? "layout.reduce"
                    : layout.find_unused                        ? "layout.find_unused"
                    : !layout.dp_batch_weights.empty()          ? "layout.dp_batch_weights"
                    : recipe.train.noise_scale                  ? "train.noise_scale"
                    : recipe.batch.kind == BatchKind::kNoise    ? "batch.kind"
                                                                : nullptr;
  if (key == nullptr) return;
  context.refuse(key,
                 "is about sums of gradients over ranks, but with train.mode = \"downpour\" servers take them one "
                 "by one",
                 fmt::format("{}, or leave {} out", kSynchronousHint, key));
  be_synchronous(context);
}

void downpour_optimizer(RuleContext& context) {
  const OptimConfig& optim = context.run.recipe.optim;
  if (!runs_downpour(context)) return;
  const bool known =
      optim.kind == OptimizerKind::kAdagrad || (optim.kind == OptimizerKind::kSgd && optim.momentum == 0);
  const bool plain = optim.weight_decay == 0 && optim.grad_clip_norm == 0 && optim.groups.empty() && !optim.ema_decay &&
                     context.run.recipe.model.mup_base_hidden_size.value_or(0) == 0;
  if (known && plain) return;
  context.refuse(
      known ? "train.mode" : "optim.kind",
      "with train.mode = \"downpour\" servers apply Adagrad, or SGD without momentum, to each push: no decay, "
      "clipping, parameter groups, muP or average of weights",
      fmt::format("{}, or optim.kind = \"adagrad\" with optim.weight_decay = 0 and optim.grad_clip_norm = 0",
                  kSynchronousHint));
  be_synchronous(context);
}

void downpour_numbers(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (!runs_downpour(context)) return;
  const Precision compute = recipe.precision.compute;
  if (recipe.run.device == DeviceKind::kCpu && (compute == Precision::kFp32 || compute == Precision::kFp64)) return;
  context.refuse(recipe.run.device == DeviceKind::kCpu ? "precision.compute" : "run.device",
                 "with train.mode = \"downpour\" weights travel through host memory in fp32 or fp64",
                 fmt::format("{}, or run.device = \"cpu\" and precision.compute = \"fp32\"", kSynchronousHint));
  be_synchronous(context);
}

void downpour_steps(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (!runs_downpour(context)) return;
  const bool policies =
      recipe.health.spike != AnomalyPolicy::kIgnore || recipe.health.non_finite != AnomalyPolicy::kStop;
  const bool experts = recipe.model.experts.used();
  if (!policies && !experts) return;
  context.refuse(
      policies ? (recipe.health.spike != AnomalyPolicy::kIgnore ? "health.spike" : "health.non_finite") : "train.mode",
      policies ? "train.mode = \"downpour\" has no moment between a step's loss and its update, so that none "
                 "can be left out"
               : "\"downpour\" has no moment between two steps, in which the loads of experts are summed",
      policies ? "set health.spike = \"ignore\" and health.non_finite = \"stop\", or train.mode = "
                 "\"synchronous\""
               : std::string(kSynchronousHint));
  be_synchronous(context);
}

void downpour_servers(RuleContext& context) {
  if (!runs_downpour(context) || context.run.recipe.downpour.servers <= context.replicas) return;
  context.refuse("downpour.servers",
                 fmt::format("is {}, but each runs beside a replica, and there are {} ranks",
                             context.run.recipe.downpour.servers, context.replicas),
                 fmt::format("set downpour.servers = {} and downpour.copies = 1", context.replicas));
  context.run.recipe.downpour.servers = context.replicas;
  context.run.recipe.downpour.copies = 1;
}

void stealing_layout(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!steals(context)) return;
  if (layout.tp == 1 && layout.pp == 1 && layout.cp == 1 && layout.ep == 1 && layout.zero <= 1) return;
  context.refuse(
      "train.work_stealing",
      fmt::format("lets ranks take each other's micro-batches, but with layout.tp = {}, pp = {}, cp = {}, ep "
                  "= {} and zero = {} a micro-batch is more than one rank's",
                  layout.tp, layout.pp, layout.cp, layout.ep, layout.zero),
      "set train.work_stealing = false, or layout.zero = 1 with layout.dp alone");
  steal_nothing(context);
}

void stealing_own_sums(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (!steals(context)) return;
  const char* what = recipe.train.mode != TrainMode::kSynchronous  ? "train.mode = \"downpour\""
                     : recipe.compress.kind != CompressKind::kNone ? "compress.kind"
                     : recipe.layout.offload != OffloadKind::kNone ? "layout.offload"
                     : recipe.train.noise_scale                    ? "train.noise_scale"
                     : recipe.batch.kind == BatchKind::kNoise      ? "batch.kind = \"noise\""
                     : recipe.train.cuda_graphs                    ? "train.cuda_graphs"
                                                                   : nullptr;
  if (what == nullptr) return;
  context.refuse(
      "train.work_stealing",
      fmt::format("changes from step to step which micro-batches a rank adds up, but {} depends on that", what),
      "set train.work_stealing = false");
  steal_nothing(context);
}

void stealing_micro_batches(RuleContext& context) {
  if (!steals(context) || context.run.recipe.train.micro_batch_size ||
      context.run.recipe.train.gradient_accumulation_steps)
    return;
  context.refuse("train.work_stealing", "shares out micro-batches, but a rank has all of its sequences in one",
                 "set train.micro_batch_size = 1, or train.work_stealing = false");
  context.run.recipe.train.micro_batch_size = 1;
}

constexpr Rule kAsynchronousRules[] = {
    {"downpour-layout", "Downpour SGD with a model that ranks hold parts of, or with offload",
     "a replica pushes the gradients of all parameters", Because::kNotBuilt, RuleNeeds::kRecipe, downpour_layout},
    {"downpour-reduction", "Downpour SGD with what changes or measures sums over ranks",
     "servers take gradients one by one", Because::kDefinition, RuleNeeds::kRecipe, downpour_reduction},
    {"downpour-optimizer", "Downpour SGD with other updates than Adagrad's and plain SGD's",
     "servers apply each push by itself, element by element", Because::kNotBuilt, RuleNeeds::kRecipe,
     downpour_optimizer},
    {"downpour-numbers", "Downpour SGD on GPUs or in 16 bits", "weights travel through host memory in 32 or 64 bits",
     Because::kNotBuilt, RuleNeeds::kRecipe, downpour_numbers},
    {"downpour-steps", "Downpour SGD with policies for single steps, or with experts",
     "steps overlap: there is no moment between two of them", Because::kDefinition, RuleNeeds::kRecipe, downpour_steps},
    {"downpour-servers", "more parameter servers than ranks", "each runs beside a replica", Because::kNotBuilt,
     RuleNeeds::kLayout, downpour_servers},
    {"stealing-layout", "work stealing beside other parallelism than data parallelism, or with ZeRO 2 and 3",
     "ranks that share a micro-batch would have to agree on each", Because::kNotBuilt, RuleNeeds::kRecipe,
     stealing_layout},
    {"stealing-own-sums", "work stealing with compression, offload, noise scale, CUDA graphs or Downpour SGD",
     "they depend on which micro-batches a rank has", Because::kNotBuilt, RuleNeeds::kRecipe, stealing_own_sums},
    {"stealing-micro-batches", "work stealing without `train.micro_batch_size`", "micro-batches are what is stolen",
     Because::kDefinition, RuleNeeds::kRecipe, stealing_micro_batches},
};

}  // namespace

std::span<const Rule> asynchronous_rules() { return kAsynchronousRules; }

}  // namespace trireme::spec
