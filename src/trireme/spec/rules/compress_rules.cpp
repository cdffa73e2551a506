// What gradient compression and local updates do not go together with, and what the alternative costs.
#include <fmt/format.h>

#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

const CompressConfig& compress_of(const RuleContext& context) { return context.run.recipe.compress; }
bool compresses(const RuleContext& context) { return compress_of(context).kind != CompressKind::kNone; }
std::string quoted_kind(const RuleContext& context) {
  return fmt::format("\"{}\"", compress_name(compress_of(context).kind));
}
bool is_adam_kind(CompressKind kind) { return kind == CompressKind::kOnebitAdam || kind == CompressKind::kZeroOneAdam; }
/// What needs the whole optimizer state on every rank, or ranks with weights of their own.
bool needs_whole_state(CompressKind kind) { return lets_copies_drift(kind) || is_adam_kind(kind); }

void compress_zero(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  if (!compresses(context) || layout.zero == 0) return;
  if (layout.zero >= 2)
    context.refuse("layout.zero",
                   fmt::format("is {}: gradients are reduced in every micro-batch, but {} compresses once a step; "
                               "without it gradients take 4 bytes a parameter on every rank in place of 4 / dp",
                               layout.zero, quoted_kind(context)),
                   needs_whole_state(compress_of(context).kind) ? "set layout.zero = 0" : "set layout.zero = 1");
  else if (needs_whole_state(compress_of(context).kind))
    context.refuse(
        "layout.zero",
        fmt::format("is 1, but {} keeps moments on every rank; without ZeRO they take 8 bytes a parameter on "
                    "each in place of 8 / dp",
                    quoted_kind(context)),
        "set layout.zero = 0");
  else if (layout.zero_group)
    context.refuse("layout.zero_group",
                   fmt::format("shards within {} ranks and sums across them, but {} compresses one sum over all copies",
                               *layout.zero_group, quoted_kind(context)),
                   "leave layout.zero_group out, or set compress.kind = \"none\"");
}

/// What is compressed there is in the optimizer's state or in masters, which lie on the host.
void compress_offload(RuleContext& context) {
  if (!compresses(context) || context.layout().offload == OffloadKind::kNone) return;
  if (!needs_whole_state(compress_of(context).kind)) return;
  context.refuse("layout.offload",
                 fmt::format("keeps weights and moments on the host, but {} exchanges them between devices in every "
                             "round",
                             quoted_kind(context)),
                 "set compress.kind = \"onebit-sgd\", or layout.offload = \"none\" and layout.delayed_update = false");
}

void compress_elias_on_cpu(RuleContext& context) {
  const CompressConfig& compress = compress_of(context);
  if (compress.kind == CompressKind::kQsgd && compress.coding == QsgdCoding::kElias &&
      context.run.recipe.run.device != DeviceKind::kCpu)
    context.refuse(
        "compress.coding",
        "is \"elias\": every code begins where the last one ends, which one thread writes; fixed coding takes "
        "at most a few times as many bits",
        "set compress.coding = \"fixed\", or run.device = \"cpu\"");
}

void compress_types(RuleContext& context) {
  const PrecisionConfig& precision = context.run.recipe.precision;
  if (!compresses(context)) return;
  if (context.layout().reduce != ReduceKind::kFp32)
    context.refuse("layout.reduce", fmt::format("is \"bf16\", but {} says how gradients travel", quoted_kind(context)),
                   "set layout.reduce = \"fp32\"");
  if (has_narrow_gradients(precision))
    context.refuse("precision.gradients", "has 16 bits, but compression adds what it left out to fp32 gradients",
                   "set precision.gradients = \"fp32\"");
  if (precision.master_weights != MasterWeights::kFp32)
    context.refuse("precision.master_weights", "leaves gradients of 16 bits, but compression adds to fp32 gradients",
                   "set precision.master_weights = \"fp32\"");
}

void compress_find_unused(RuleContext& context) {
  if (compresses(context) && context.layout().find_unused)
    context.refuse("layout.find_unused",
                   "leaves parameters without a gradient as they are, but what compression left out of them would move "
                   "them",
                   "set layout.find_unused = false");
}

void compress_steps_apart(RuleContext& context) {
  if (!compresses(context) || !context.runs_several_steps()) return;
  const bool alone = context.run.schedule.asynchronous && !context.run.schedule.waves;
  const bool fp16 = context.run.recipe.precision.compute == Precision::kFp16;
  if (alone && !fp16 && !needs_whole_state(compress_of(context).kind)) return;
  const std::string kind = quoted_kind(context);
  context.refuse(
      "compress.kind",
      !alone
          ? fmt::format("{} keeps what a step leaves when the step is taken, but steps of this pipeline may be taken "
                        "back, or are pushed in waves",
                        kind)
      : fp16 ? fmt::format("{} keeps residuals without the loss scale, but of this pipeline's steps several with "
                           "different scales run together",
                           kind)
             : fmt::format("{} exchanges moments or weights of whole steps, but stages of this pipeline update at "
                           "different times",
                           kind),
      "set pipeline.schedule = \"1f1b\" and leave pipeline.drain_every out, or compress.kind = \"none\"");
}

void compress_adam(RuleContext& context) {
  OptimConfig& optim = context.run.recipe.optim;
  if (!is_adam_kind(compress_of(context).kind)) return;
  if (optim.kind != OptimizerKind::kAdam && optim.kind != OptimizerKind::kAdamw)
    context.refuse("compress.kind",
                   fmt::format("{} freezes Adam's variance, but optim.kind is another", quoted_kind(context)),
                   "set optim.kind = \"adamw\", or compress.kind = \"powersgd\"");
  else if (optim.kind == OptimizerKind::kAdam && optim.weight_decay > 0)
    context.refuse("optim.kind",
                   "is \"adam\", whose decay is a part of the gradient and so of the momentum that is compressed",
                   "set optim.kind = \"adamw\", or optim.weight_decay = 0");
  if (optim.state_dtype != StateDtype::kFp32)
    context.refuse("optim.state_dtype", "is \"bf16\", but a momentum that is compressed is fp32",
                   "set optim.state_dtype = \"fp32\"");
}

void compress_momentum(RuleContext& context) {
  const CompressKind kind = compress_of(context).kind;
  const OptimConfig& optim = context.run.recipe.optim;
  if (kind != CompressKind::kDgc && kind != CompressKind::kCsc) return;
  if (optim.kind == OptimizerKind::kLars)
    context.refuse(
        "compress.kind",
        fmt::format("{} keeps the momentum before gradients are made sparse, but LARS has its rate inside of "
                    "its own",
                    quoted_kind(context)),
        "set optim.kind = \"adamw\" and leave optim.momentum out, or compress.kind = \"powersgd\"");
  else if (optim.kind == OptimizerKind::kSgd && optim.momentum > 0)
    context.refuse(
        "optim.momentum",
        fmt::format("is {}, but {} keeps the momentum itself, before gradients are made sparse", optim.momentum,
                    quoted_kind(context)),
        fmt::format("set optim.momentum = 0, optim.nesterov = false and compress.momentum = {}", optim.momentum));
}

void compress_local_clip(RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  if (!compress_of(context).local_clip) return;
  if (context.run.recipe.optim.grad_clip_norm == 0)
    context.refuse("compress.local_clip", "clips to a part of optim.grad_clip_norm, which is 0",
                   "set optim.grad_clip_norm = 1.0");
  if (layout.ep > 1)
    context.refuse("compress.local_clip",
                   fmt::format("is by the norm of one copy's gradient, but with layout.ep = {} an expert's gradient is "
                               "of the tokens of several copies: none of them has one of its own",
                               layout.ep),
                   "set compress.local_clip = false");
}

void compress_replicas(RuleContext& context) {
  if (lets_copies_drift(compress_of(context).kind) && context.run.recipe.health.compare_replicas > 0)
    context.refuse("health.compare_replicas",
                   fmt::format("compares copies of weights, which {} lets differ", quoted_kind(context)),
                   "set health.compare_replicas = 0");
}

void compress_workers(RuleContext& context) {
  CompressConfig& compress = context.run.recipe.compress;
  if (!compress.workers || context.replicas % *compress.workers == 0) return;
  int divisor = std::min(*compress.workers, context.replicas);
  while (context.replicas % divisor != 0) --divisor;
  context.refuse("compress.workers",
                 fmt::format("{} does not divide the {} data-parallel ranks", *compress.workers, context.replicas),
                 fmt::format("set compress.workers = {}", divisor));
}

void compress_nodes(RuleContext& context) {
  if (compress_of(context).across != CompressAcross::kNode) return;
  const LayoutConfig& layout = context.layout();
  const auto per_node = context.run.recipe.comm.ranks_per_node;
  const std::int64_t inner = std::int64_t{layout.tp} * layout.cp;
  if (!per_node)
    context.refuse("compress.across", "is \"node\", but the recipe does not say how many ranks a node has",
                   "set comm.ranks_per_node = 1, or as many as a node has");
  else if (layout.pp > 1 || *per_node % inner != 0 || context.replicas % (*per_node / inner) != 0)
    context.refuse(
        "compress.across",
        fmt::format("is \"node\", but nodes of {} ranks do not hold whole data-parallel copies of tp {} x cp "
                    "{} x pp {} ranks that divide the {} copies",
                    *per_node, layout.tp, layout.cp, layout.pp, context.replicas),
        "set compress.across = \"rank\"");
}

/// Copies that take steps by themselves must each hold all experts.
void compress_experts(RuleContext& context) {
  CompressConfig& compress = context.run.recipe.compress;
  const LayoutConfig& layout = context.layout();
  const std::int64_t share = expert_share_of_dp(layout, context.replicas);
  if (!compresses(context) || layout.ep == 1 || context.replicas % share != 0) return;
  if (has_local_updates(compress.kind)) {
    const int workers = compress.workers.value_or(context.replicas);
    if (context.replicas % workers != 0 || context.replicas / workers % share == 0) return;
    const int fixed = static_cast<int>(context.replicas / share);
    context.refuse("compress.workers",
                   fmt::format("makes {} workers of {} data-parallel ranks, but experts are sharded over {} of them: "
                               "what takes steps by itself must hold all experts",
                               workers, context.replicas / workers, share),
                   fmt::format("set compress.workers = {}", fixed));
    compress.workers = fixed;
  } else if (compress.kind == CompressKind::kZeroOneAdam && share > 1) {
    context.refuse("compress.kind",
                   fmt::format("{} lets every data-parallel rank take steps by itself, but experts are sharded over {} "
                               "of them",
                               quoted_kind(context), share),
                   "set compress.kind = \"onebit-adam\", or layout.ep = 1");
    compress.kind = CompressKind::kOnebitAdam;
  } else if (compress.across == CompressAcross::kNode && context.run.recipe.comm.ranks_per_node) {
    const std::int64_t inner = std::int64_t{layout.tp} * layout.cp,
                       dense = *context.run.recipe.comm.ranks_per_node / inner;
    if (dense == 0 || context.replicas % dense != 0 || dense % share == 0 || share % dense == 0) return;
    context.refuse("compress.across",
                   fmt::format("is \"node\", but nodes of {} data-parallel ranks and the {} that experts are sharded "
                               "over do not nest",
                               dense, share),
                   "set compress.across = \"rank\"");
    compress.across = CompressAcross::kRank;
  }
}

/// What several stages hold is summed over them before it is compressed, where they have a step at the same time; what
/// tensor-parallel ranks hold copies of is summed over them after the copies' sum.
void compress_shared(RuleContext& context) {
  CompressConfig& compress = context.run.recipe.compress;
  const LayoutConfig& layout = context.layout();
  const ModelShape& shape = context.run.shape;
  if (!compresses(context) || lets_copies_drift(compress.kind)) return;
  const bool momentum = compress.kind == CompressKind::kOnebitAdam;
  const bool shared = shape.tied || shape.mtp_depth > 0 || shape.num_encoder_layers > 0;
  const std::int64_t elements = shape.vocab_size * shape.hidden_size;
  const bool chooses = compress.kind == CompressKind::kCsc, apart = context.runs_several_steps();
  if (context.has_stages() && shared && (chooses || apart)) {
    if (elements >= compress.min_elements)
      context.refuse(
          "compress.min_elements",
          fmt::format("is {}, so that the embedding's {} elements are compressed, but several stages hold it and {}; "
                      "dense it takes {} bytes a step",
                      compress.min_elements, elements,
                      chooses ? "would each choose other chunks of it, beside those that they hold alone"
                              : "sum its gradient beside later steps, after each has compressed its part",
                      8 * elements),
          fmt::format("set compress.min_elements = {}", elements + 1));
    if (apart && compress.local_clip)
      context.refuse("compress.local_clip",
                     "is by the norm of a copy's gradient, but several stages hold the embedding, and the parts of its "
                     "gradient are summed beside later steps",
                     "set compress.local_clip = false");
  }
  if (momentum && layout.tp > shape.num_kv_heads)
    context.refuse("compress.kind",
                   fmt::format("is \"onebit-adam\", but of {} key and value heads several of {} tensor-parallel ranks "
                               "hold copies: their sum would count the momentum that each of them has",
                               shape.num_kv_heads, layout.tp),
                   fmt::format("set layout.tp = {}, or compress.kind = \"onebit-sgd\"", shape.num_kv_heads));
}

constexpr Rule kCompressRules[] = {
    {"compress-zero", "gradient compression with ZeRO 2 and 3; compressed momentum and local updates with any ZeRO",
     "what is compressed is a rank's whole gradient of a step, with what earlier ones left out of it, and ZeRO 2 and 3 "
     "never hold one; copies with momenta or weights of their own have nothing alike to shard",
     Because::kDefinition, RuleNeeds::kRecipe, compress_zero},
    {"compress-offload", "compressed moments and local updates with offload of the optimizer",
     "what they exchange lies on the host", Because::kNotBuilt, RuleNeeds::kRecipe, compress_offload},
    {"compress-elias-on-cpu", "QSGD's Elias codes on GPUs", "a code begins where the last one ends", Because::kNotBuilt,
     RuleNeeds::kRecipe, compress_elias_on_cpu},
    {"compress-types", "gradient compression with 16-bit gradients or bf16 reduction",
     "it says itself in which form gradients travel", Because::kDefinition, RuleNeeds::kRecipe, compress_types},
    {"compress-find-unused", "gradient compression with `find_unused`",
     "a residual would move a parameter that has no gradient", Because::kDefinition, RuleNeeds::kRecipe,
     compress_find_unused},
    {"compress-adam", "1-bit Adam and 0/1 Adam with other optimizers, coupled decay or bf16 moments",
     "they freeze Adam's variance and send its momentum", Because::kDefinition, RuleNeeds::kRecipe, compress_adam},
    {"compress-momentum", "DGC and CSC beside momentum in the optimizer", "they keep the momentum themselves",
     Because::kDefinition, RuleNeeds::kRecipe, compress_momentum},
    {"compress-local-clip", "local clipping without `grad_clip_norm`, or with expert parallelism",
     "it is by the norm of one copy's gradient, and an expert's is of the tokens of several copies",
     Because::kDefinition, RuleNeeds::kRecipe, compress_local_clip},
    {"compress-replicas", "comparison of replicas with 0/1 Adam or local updates", "copies differ on purpose",
     Because::kDefinition, RuleNeeds::kRecipe, compress_replicas},
    {"compress-workers", "`workers` that do not divide the data-parallel ranks", "workers are groups of equal size",
     Because::kDefinition, RuleNeeds::kLayout, compress_workers},
    {"compress-nodes", "compression across nodes that do not hold whole copies",
     "the sum inside a node is one over copies", Because::kDefinition, RuleNeeds::kLayout, compress_nodes},
    {"compress-shared",
     "compression of an embedding that several stages hold with CSC or asynchronous schedules; 1-bit Adam where "
     "tensor-parallel ranks hold copies of heads",
     "stages would choose different chunks of it, or sum their parts after these were compressed", Because::kNotBuilt,
     RuleNeeds::kLayout, compress_shared},
    {"compress-experts", "0/1 Adam, and local updates of workers that hold a part of the experts",
     "copies that take steps by themselves need all experts", Because::kDefinition, RuleNeeds::kLayout,
     compress_experts},
    {"compress-steps-apart",
     "gradient compression with steps that may be taken back or are pushed in waves; of asynchronous schedules "
     "compressed moments, local updates and fp16",
     "what a step leaves is kept when it is taken", Because::kNotBuilt, RuleNeeds::kLayout, compress_steps_apart},
};

}  // namespace

std::span<const Rule> compress_rules() { return kCompressRules; }

}  // namespace trireme::spec
