// What can be said from the recipe alone: layouts beside optimizers, precisions and devices.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/text.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

void stages_without_pipeline(RuleContext& context) {
  const PipelineConfig& pipeline = context.run.recipe.pipeline;
  if (context.has_stages()) return;
  if (pipeline.virtual_stages > 1)
    context.refuse("pipeline.virtual_stages",
                   fmt::format("is {}, but there is a single stage", pipeline.virtual_stages),
                   "set pipeline.virtual_stages = 1");
  if (pipeline.drain_every.value_or(1) > 1)
    context.refuse("pipeline.drain_every", fmt::format("is {}, but there is a single stage", *pipeline.drain_every),
                   "leave pipeline.drain_every out");
}

void scatter_gather_copies(RuleContext& context) {
  PipelineConfig& pipeline = context.run.recipe.pipeline;
  const LayoutConfig& layout = context.layout();
  if (!pipeline.scatter_gather || (layout.pp > 1 && layout.tp > 1 && !layout.sequence_parallel)) return;
  context.refuse("pipeline.scatter_gather",
                 layout.pp == 1   ? "is set, but there is a single stage"
                 : layout.tp == 1 ? "is set, but layout.tp = 1: no other rank has the same boundary tensors"
                                  : "is set, but with layout.sequence_parallel each rank has its own tokens at a "
                                    "boundary already",
                 "set pipeline.scatter_gather = false");
  pipeline.scatter_gather = false;
}

void stage_ranks_of_pipeline(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  std::vector<int>& ranks = context.run.recipe.pipeline.stage_ranks;
  if (ranks.empty()) return;
  const int all = std::accumulate(ranks.begin(), ranks.end(), 0);
  if (std::ranges::any_of(ranks, [](int count) { return count < 1; })) {
    context.refuse("pipeline.stage_ranks", "has a stage without a rank",
                   "leave pipeline.stage_ranks out, or give each stage at least one rank");
    ranks.clear();
  } else if (all != layout.pp) {
    context.refuse("pipeline.stage_ranks",
                   fmt::format("has {}, but layout.pp = {}", counted(static_cast<std::size_t>(all), "rank"), layout.pp),
                   fmt::format("set layout.pp = {}", all));
    layout.pp = all;
  }
}

void stage_ranks_beside_planner(RuleContext& context) {
  PipelineConfig& pipeline = context.run.recipe.pipeline;
  if (pipeline.stage_ranks.empty() || pipeline.split != "pipedream") return;
  context.refuse("pipeline.stage_ranks",
                 "is given, but pipeline.split = \"pipedream\" finds the ranks of stages itself",
                 "leave pipeline.stage_ranks out, or set pipeline.split = \"count\"");
  pipeline.stage_ranks.clear();
}

void replicated_stages(RuleContext& context) {
  PipelineConfig& pipeline = context.run.recipe.pipeline;
  if (!context.has_stages() || !pipeline.replicates_stages()) return;
  const bool known = pipeline.schedule == "1f1b" || pipeline.schedule == "pipedream";
  if (known && pipeline.virtual_stages == 1) return;
  const bool found = pipeline.stage_ranks.empty();  // by the planner
  context.refuse(found ? "pipeline.split" : "pipeline.stage_ranks",
                 fmt::format("{} several ranks; schedule {} with {} chunks a rank has no place for that",
                             found ? "is \"pipedream\", which may put a stage on" : "puts stages on", pipeline.schedule,
                             pipeline.virtual_stages),
                 found ? "set pipeline.split = \"time\", or pipeline.schedule = \"1f1b\" or \"pipedream\" and "
                         "pipeline.virtual_stages = 1"
                       : "leave pipeline.stage_ranks out, or set pipeline.schedule = \"1f1b\" or \"pipedream\" and "
                         "pipeline.virtual_stages = 1");
  pipeline.stage_ranks.clear();
  if (found) pipeline.split = "time";
}

void recompute_stage(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  const bool file = recipe.pipeline.schedule.starts_with("file:");
  if (recipe.train.recompute != RecomputeKind::kStage || (context.has_stages() && !file)) return;
  context.refuse("train.recompute",
                 context.has_stages()
                     ? "is \"stage\", but a schedule from a file says itself what is recomputed (R)"
                     : "is \"stage\", but there is a single stage: everything would be recomputed at once",
                 "set train.recompute = \"full\"");
  recipe.train.recompute = RecomputeKind::kFull;
}

void sequence_parallel_without_tp(RuleContext& context) {
  if (context.layout().sequence_parallel && context.layout().tp == 1)
    context.refuse("layout.sequence_parallel", "shards over layout.tp, which is 1",
                   "set layout.sequence_parallel = false");
}

void partition_activations_copies(RuleContext& context) {
  TrainConfig& train = context.run.recipe.train;
  const LayoutConfig& layout = context.layout();
  if (!train.partition_activations || (layout.tp > 1 && !layout.sequence_parallel)) return;
  context.refuse("train.partition_activations",
                 layout.tp == 1 ? "shards activations over tensor-parallel ranks, but layout.tp = 1"
                                : "shards what tensor-parallel ranks all have, but with layout.sequence_parallel each "
                                  "has other tokens already",
                 "set train.partition_activations = false");
  train.partition_activations = false;
}

void graphs_find_unused(RuleContext& context) {
  if (context.run.recipe.train.cuda_graphs && context.layout().find_unused)
    context.refuse("train.cuda_graphs",
                   "captures the same reductions for every step, but layout.find_unused asks in each",
                   "set train.cuda_graphs = false, or layout.find_unused = false");
}

void ulysses_divides_cp(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (layout.cp % layout.cp_ulysses != 0)
    context.refuse("layout.cp_ulysses", fmt::format("{} does not divide layout.cp = {}", layout.cp_ulysses, layout.cp),
                   "set layout.cp_ulysses = 1");
}

void delayed_update_offloads(RuleContext& context) {
  if (context.layout().delayed_update && context.layout().offload == OffloadKind::kNone)
    context.refuse("layout.delayed_update", "delays updates on the host, but layout.offload is \"none\"",
                   "set layout.offload = \"optimizer\"");
}

template <typename Enum>
std::string_view recipe_name(Enum value) {
  return name_in(enum_names(std::type_identity<Enum>()), value);
}

void master_weights_beside_bf16(RuleContext& context) {
  const PrecisionConfig& precision = context.run.recipe.precision;
  if (precision.master_weights == MasterWeights::kFp32 || precision.compute == Precision::kBf16) return;
  context.refuse("precision.master_weights",
                 fmt::format("is {}, which goes with bf16 weights, but precision.compute is {}",
                             recipe_name(precision.master_weights), recipe_name(precision.compute)),
                 "set precision.compute = \"bf16\", or precision.master_weights = \"fp32\"");
}

void gradients_have_type_of_weights(RuleContext& context) {
  const PrecisionConfig& precision = context.run.recipe.precision;
  const Precision wanted = precision.gradients == Gradients::kBf16   ? Precision::kBf16
                           : precision.gradients == Gradients::kFp16 ? Precision::kFp16
                                                                     : precision.compute;
  if (wanted == precision.compute) return;
  const bool narrow = precision.compute == Precision::kBf16 || precision.compute == Precision::kFp16;
  const std::string_view compute = recipe_name(precision.compute), gradients = recipe_name(precision.gradients);
  context.refuse("precision.gradients",
                 fmt::format("is {}, but 16-bit gradients have the type of the weights, and precision.compute is {}",
                             gradients, compute),
                 narrow ? fmt::format("set precision.gradients = \"{}\"", compute)
                        : fmt::format("set precision.compute = \"{}\", or precision.gradients = \"fp32\"", gradients));
}

void fp8_beside_bf16(RuleContext& context) {
  const PrecisionConfig& precision = context.run.recipe.precision;
  if (precision.gemm != GemmPrecision::kSame && precision.compute != Precision::kBf16)
    context.refuse("precision.gemm",
                   fmt::format("is {}, whose GEMMs go with bf16 activations, but precision.compute is {}",
                               recipe_name(precision.gemm), recipe_name(precision.compute)),
                   "set precision.compute = \"bf16\"");
}

void master_weights_optimizer(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.precision.master_weights == MasterWeights::kFp32) return;
  if (recipe.optim.kind == OptimizerKind::kAdam || recipe.optim.kind == OptimizerKind::kAdamw) return;
  if (recipe.run.device == DeviceKind::kCpu) return;
  context.refuse("precision.master_weights",
                 fmt::format("is {}, but on GPUs only adam and adamw have stochastic rounding",
                             recipe_name(recipe.precision.master_weights)),
                 "set precision.master_weights = \"fp32\", or optim.kind = \"adamw\"");
}

void graphs_need_gpu(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.train.cuda_graphs && recipe.run.device == DeviceKind::kCpu)
    context.refuse("train.cuda_graphs", "captures kernels of a GPU, but run.device is \"cpu\"",
                   "set train.cuda_graphs = false, or run.device = \"cuda\"");
}

void graphs_whole_layers(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!context.run.recipe.train.cuda_graphs || (layout.zero <= 1 && layout.pp == 1 && layout.cp == 1)) return;
  context.refuse("train.cuda_graphs",
                 fmt::format("captures ranks that run all layers on whole rows, with gradients that stay where they "
                             "are, but layout.zero = {}, pp = {} and cp = {}",
                             layout.zero, layout.pp, layout.cp),
                 "set train.cuda_graphs = false, or layout.zero = 1, layout.cp = 1 and layout.pp = 1");
}

void graphs_overlap(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (context.run.recipe.train.cuda_graphs && layout.tp > 1 && layout.tp_overlap)
    context.refuse("train.cuda_graphs",
                   "captures no messages between two ranks, which layout.tp_overlap sends beside GEMMs",
                   "set layout.tp_overlap = false, or train.cuda_graphs = false");
}

constexpr Rule kRecipeRules[] = {
    {"stages-without-pipeline", "`virtual_stages` or `drain_every` without pipeline stages",
     "they are properties of a pipeline", Because::kDefinition, RuleNeeds::kRecipe, stages_without_pipeline},
    {"scatter-gather-copies",
     "scatter/gather between stages without tensor parallelism, or beside sequence parallelism",
     "it sends a tensor that several ranks hold once", Because::kDefinition, RuleNeeds::kRecipe, scatter_gather_copies},
    {"stage-ranks-of-pipeline", "`stage_ranks` that are not the ranks of the pipeline",
     "every rank belongs to a stage, every stage has one", Because::kDefinition, RuleNeeds::kRecipe,
     stage_ranks_of_pipeline},
    {"stage-ranks-beside-planner", "`stage_ranks` beside PipeDream's planner", "it finds them", Because::kDefinition,
     RuleNeeds::kRecipe, stage_ranks_beside_planner},
    {"replicated-stages",
     "stages on several ranks with other schedules than 1F1B and PipeDream's, or with several chunks",
     "a schedule says what each rank does when; 1F1B and PipeDream alone are defined for ranks of a stage that take "
     "turns",
     Because::kDefinition, RuleNeeds::kRecipe, replicated_stages},
    {"recompute-stage", "recomputation of stages without a pipeline, or with a schedule from a file",
     "the schedule says when a stage runs again", Because::kDefinition, RuleNeeds::kRecipe, recompute_stage},
    {"sequence-parallel-without-tp", "sequence parallelism without tensor parallelism",
     "it shards along the ranks of tensor parallelism", Because::kDefinition, RuleNeeds::kRecipe,
     sequence_parallel_without_tp},
    {"partition-activations-copies",
     "partitioned activations without tensor parallelism, or beside sequence parallelism",
     "ranks shard the inputs of blocks that they all have", Because::kDefinition, RuleNeeds::kRecipe,
     partition_activations_copies},
    {"ulysses-divides-cp", "a `cp_ulysses` that does not divide `cp`", "it is a part of the context-parallel ranks",
     Because::kDefinition, RuleNeeds::kRecipe, ulysses_divides_cp},
    {"delayed-update-without-offload", "delayed parameter updates without offload",
     "the update that is delayed is the one on the host", Because::kDefinition, RuleNeeds::kRecipe,
     delayed_update_offloads},
    {"master-weights-beside-bf16", "weights without fp32 master weights in another type than bf16",
     "weights of 32 and 64 bits are their own master weights, and in fp16 gradients are scaled, which small updates of "
     "weights are not: below 6e-8 nothing is left of them",
     Because::kDefinition, RuleNeeds::kRecipe, master_weights_beside_bf16},
    {"gradients-have-type-of-weights", "16-bit gradients of another type than the weights",
     "they are what backward computes, without a conversion", Because::kDefinition, RuleNeeds::kRecipe,
     gradients_have_type_of_weights},
    {"fp8-beside-bf16", "FP8 GEMMs beside other activations than bf16",
     "the CUDA kernels that quantise, and the epilogues of the GEMMs, read and write bf16 alone", Because::kNotBuilt,
     RuleNeeds::kRecipe, fp8_beside_bf16},
    {"master-weights-optimizer",
     "weights without fp32 master weights on GPUs, under other optimizers than Adam and AdamW",
     "of the CUDA kernels of updates, AdamW's alone rounds stochastically", Because::kNotBuilt, RuleNeeds::kRecipe,
     master_weights_optimizer},
    {"graphs-on-cpu", "CUDA graphs on the CPU", "they are captured on a GPU", Because::kDefinition, RuleNeeds::kRecipe,
     graphs_need_gpu},
    {"graphs-whole-layers", "CUDA graphs with ZeRO 2 and 3, context parallelism or pipeline stages",
     "the graph is of one micro-batch through all layers and of the sums after it; gathers of shards, rings and "
     "messages "
     "between stages are started by the host between layers",
     Because::kNotBuilt, RuleNeeds::kRecipe, graphs_whole_layers},
    {"graphs-find-unused", "CUDA graphs with `find_unused`", "what is unused may differ between steps",
     Because::kDefinition, RuleNeeds::kRecipe, graphs_find_unused},
    {"graphs-tp-overlap", "CUDA graphs with `tp_overlap`",
     "it sends chunks from rank to rank on a second stream, whose sends and receives are not captured",
     Because::kNotBuilt, RuleNeeds::kRecipe, graphs_overlap},
};

}  // namespace

std::span<const Rule> recipe_rules() { return kRecipeRules; }

}  // namespace trireme::spec
