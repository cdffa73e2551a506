// What replicas around parameter servers (Downpour SGD, Sandblaster L-BFGS) and work stealing do not go together with:
// all ask that a rank can compute any part of a step by itself.
#include <fmt/format.h>

#include "trireme/spec/rules.h"
#include "trireme/spec/server_updates.h"

namespace trireme::spec {
namespace {

bool runs_downpour(const RuleContext& context) { return context.run.recipe.train.mode == TrainMode::kDownpour; }
bool runs_servers(const RuleContext& context) { return context.run.recipe.train.mode != TrainMode::kSynchronous; }
std::string mode_of(const RuleContext& context) {
  return fmt::format("train.mode = \"{}\"", runs_downpour(context) ? "downpour" : "sandblaster");
}
bool steals(const RuleContext& context) { return context.run.recipe.train.work_stealing; }
void be_synchronous(RuleContext& context) { context.run.recipe.train.mode = TrainMode::kSynchronous; }
void steal_nothing(RuleContext& context) { context.run.recipe.train.work_stealing = false; }

constexpr const char* kSynchronousHint = "set train.mode = \"synchronous\"";

void servers_shards(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!runs_servers(context) || (layout.zero == 0 && layout.offload == OffloadKind::kNone)) return;
  const bool zero = layout.zero > 0;
  context.refuse(zero ? "layout.zero" : "layout.offload",
                 fmt::format("{}, but with {} servers have the optimizer's state, and each replica its own copy of the "
                             "weights",
                             zero ? "shards what data-parallel ranks have alike" : "moves the optimizer to the host",
                             mode_of(context)),
                 fmt::format("{}, or leave {} out", kSynchronousHint, zero ? "layout.zero" : "layout.offload"));
  be_synchronous(context);
}

void servers_layout(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!runs_servers(context) || (layout.tp == 1 && layout.pp == 1 && layout.cp == 1 && layout.ep == 1)) return;
  context.refuse(
      "train.mode",
      fmt::format("of replicas that send the gradients of a whole model, which ranks hold parts of: layout.tp = "
                  "{}, pp = {}, cp = {}, ep = {}",
                  layout.tp, layout.pp, layout.cp, layout.ep),
      fmt::format("{}, or leave everything but layout.dp out of [layout]", kSynchronousHint));
  be_synchronous(context);
}

void servers_reduction(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  if (!runs_servers(context)) return;
  const LayoutConfig& layout = recipe.layout;
  const char* key = recipe.compress.kind != CompressKind::kNone ? "compress.kind"
                    : layout.reduce != ReduceKind::kFp32        ? "layout.reduce"
                    : layout.find_unused                        ? "layout.find_unused"
                    : !layout.dp_batch_weights.empty()          ? "layout.dp_batch_weights"
                    : recipe.train.noise_scale                  ? "train.noise_scale"
                    : recipe.batch.kind == BatchKind::kNoise    ? "batch.kind"
                                                                : nullptr;
  if (key == nullptr) return;
  context.refuse(
      key,
      fmt::format("is about sums of gradients over ranks, but with {} servers take them one by one", mode_of(context)),
      fmt::format("{}, or leave {} out", kSynchronousHint, key));
  be_synchronous(context);
}

void servers_optimizer(RuleContext& context) {
  const OptimConfig& optim = context.run.recipe.optim;
  if (!runs_servers(context)) return;
  const bool known = !runs_downpour(context) || servers_update_by(optim.kind);
  if (known && !optim.ema_decay) return;
  context.refuse(known ? "optim.ema_decay" : "optim.kind",
                 fmt::format("{}, but with {} servers have ranges of keys, and update them as messages come",
                             known ? "averages the weights after each step"
                                   : "takes norms, matrices or averages of whole parameters",
                             mode_of(context)),
                 fmt::format("{}, or {}", kSynchronousHint,
                             known ? "leave optim.ema_decay out" : "optim.kind = \"adamw\", \"adagrad\" or \"sgd\""));
  be_synchronous(context);
}

void servers_numbers(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (!runs_servers(context)) return;
  const char* key = recipe.run.device != DeviceKind::kCpu                     ? "run.device"
                    : recipe.precision.master_weights != MasterWeights::kFp32 ? "precision.master_weights"
                    : runs_downpour(context) && recipe.optim.state_dtype != StateDtype::kFp32 ? "optim.state_dtype"
                                                                                              : nullptr;
  if (key == nullptr) return;
  context.refuse(
      key,
      fmt::format("with {} weights travel through host memory, and servers keep them and their state in fp32 or "
                  "fp64",
                  mode_of(context)),
      fmt::format("{}, or leave {} out", kSynchronousHint, key));
  be_synchronous(context);
}

void servers_steps(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (!runs_servers(context)) return;
  const std::string mode = mode_of(context);
  const auto refuse = [&](const char* key, const std::string& reason, const std::string& other) {
    context.refuse(key, reason, fmt::format("{}{}", kSynchronousHint, other));
    be_synchronous(context);
  };
  if (recipe.precision.compute == Precision::kFp16)
    return refuse(
        "precision.compute",
        fmt::format("leaves out steps whose fp16 gradients overflow, but with {} none is one of all ranks", mode),
        ", or precision.compute = \"bf16\"");
  if (recipe.precision.gemm == GemmPrecision::kFp8Delayed)
    return refuse(
        "precision.gemm",
        fmt::format("takes its scales from the steps before, but with {} ranks agree on nothing between two", mode),
        ", or precision.gemm = \"fp8\"");
  if (recipe.health.spike != AnomalyPolicy::kIgnore || recipe.health.non_finite != AnomalyPolicy::kStop)
    return refuse(
        recipe.health.spike != AnomalyPolicy::kIgnore ? "health.spike" : "health.non_finite",
        fmt::format("{} has no moment between a step's loss and its update, so that none can be left out", mode),
        ", or health.spike = \"ignore\" and health.non_finite = \"stop\"");
  if (recipe.model.experts.used())
    return refuse("train.mode",
                  fmt::format("of {} has no moment between two steps, in which the loads of experts are summed",
                              runs_downpour(context) ? "replicas" : "portions"),
                  "");
}

void stealing_layout(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!steals(context) || (layout.pp == 1 && layout.ep == 1 && layout.zero <= 1)) return;
  context.refuse("train.work_stealing",
                 fmt::format("lets a rank run more micro-batches than another, but with layout.pp = {}, ep = {} and "
                             "zero = {} {}",
                             layout.pp, layout.ep, layout.zero,
                             layout.pp > 1 ? "its schedule is of a given number" : "all ranks meet in each of them"),
                 "set train.work_stealing = false, or layout.pp = 1, ep = 1 and zero = 1");
  steal_nothing(context);
}

void stealing_own_sums(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (!steals(context)) return;
  const std::string what = runs_servers(context)                         ? mode_of(context)
                           : recipe.compress.kind != CompressKind::kNone ? "compress.kind"
                                                                         : "";
  if (what.empty()) return;
  context.refuse(
      "train.work_stealing",
      fmt::format("changes from step to step which micro-batches a rank adds up, but {} depends on that", what),
      "set train.work_stealing = false");
  steal_nothing(context);
}

void stealing_graphs(RuleContext& context) {
  if (!steals(context) || !context.run.recipe.train.cuda_graphs) return;
  context.refuse("train.work_stealing",
                 "asks for each micro-batch when the one before is done, but train.cuda_graphs records a step's",
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
    {"servers-shards", "Downpour SGD and Sandblaster L-BFGS with ZeRO or offload",
     "the optimizer's state is on servers, and each replica has its own copy of the weights", Because::kDefinition,
     RuleNeeds::kRecipe, servers_shards},
    {"servers-layout", "Downpour SGD and Sandblaster L-BFGS with a model that ranks hold parts of",
     "a replica is one rank", Because::kNotBuilt, RuleNeeds::kRecipe, servers_layout},
    {"servers-reduction", "Downpour SGD and Sandblaster L-BFGS with what changes or measures sums over ranks",
     "servers take gradients one by one", Because::kDefinition, RuleNeeds::kRecipe, servers_reduction},
    {"servers-optimizer",
     "Downpour SGD with LAMB, LARS, Muon, Adafactor, Shampoo, SOAP or schedule-free AdamW; it and Sandblaster L-BFGS "
     "with "
     "an average of weights",
     "servers have ranges of keys, and update them as messages come", Because::kDefinition, RuleNeeds::kRecipe,
     servers_optimizer},
    {"servers-numbers",
     "Downpour SGD and Sandblaster L-BFGS on GPUs or without fp32 master weights, Downpour with 16-bit optimizer state",
     "weights travel through host memory in 32 or 64 bits", Because::kNotBuilt, RuleNeeds::kRecipe, servers_numbers},
    {"servers-steps",
     "Downpour SGD and Sandblaster L-BFGS with policies for single steps, fp16, delayed FP8 scaling or experts",
     "there is no moment between two steps at which all ranks stand", Because::kDefinition, RuleNeeds::kRecipe,
     servers_steps},
    {"stealing-layout", "work stealing with pipeline stages, expert parallelism, or ZeRO 2 and 3",
     "all ranks of these meet in each micro-batch, so none can run more of them than another", Because::kDefinition,
     RuleNeeds::kRecipe, stealing_layout},
    {"stealing-own-sums", "work stealing with compression, Downpour SGD or Sandblaster L-BFGS",
     "what is compressed depends on which micro-batches a rank has, and replicas take parts as they are free anyway",
     Because::kDefinition, RuleNeeds::kRecipe, stealing_own_sums},
    {"stealing-graphs", "work stealing with CUDA graphs", "a graph is replayed for micro-batches that are known before",
     Because::kNotBuilt, RuleNeeds::kRecipe, stealing_graphs},
    {"stealing-micro-batches", "work stealing without `train.micro_batch_size`", "micro-batches are what is stolen",
     Because::kDefinition, RuleNeeds::kRecipe, stealing_micro_batches},
};

}  // namespace

std::span<const Rule> asynchronous_rules() { return kAsynchronousRules; }

}  // namespace trireme::spec
