// Experts: over whom they can be sharded, and what the layers that have them do not go together with yet.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/text.h"
#include "trireme/spec/batch_split.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

bool uses_experts(const RuleContext& context) { return context.run.shape.experts.used(); }

std::int64_t largest_common(std::int64_t a, std::int64_t b, std::int64_t most) {
  const std::int64_t common = std::gcd(a, b);
  std::int64_t best = std::max<std::int64_t>(1, std::min(common, most));
  while (common % best != 0) --best;
  return best;
}

void ep_shards_experts(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  if (layout.ep == 1 || uses_experts(context)) return;
  context.refuse("layout.ep", fmt::format("is {}, but the model has no experts", layout.ep), "set layout.ep = 1");
  layout.ep = 1;
}

void ep_divides(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  if (!uses_experts(context)) return;
  const std::int64_t experts = context.run.shape.experts.num_experts,
                     ranks = std::int64_t{context.replicas} * layout.cp;
  if (experts % layout.ep == 0 && ranks % layout.ep == 0) return;
  const std::int64_t fixed = largest_common(experts, ranks, layout.ep);
  context.refuse("layout.ep",
                 fmt::format("{} must divide the {} experts and the {} ranks of dp x cp that they are sharded over",
                             layout.ep, experts, ranks),
                 fmt::format("set layout.ep = {}", fixed));
  layout.ep = static_cast<int>(fixed);
}

void ep_nests_in_zero_group(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  if (layout.ep == 1 || layout.zero == 0 || !layout.zero_group || context.replicas % *layout.zero_group != 0) return;
  const std::int64_t group = *layout.zero_group, part = expert_share_of_dp(layout, context.replicas);
  if (group % part == 0 || part % group == 0) return;
  context.refuse("layout.zero_group",
                 fmt::format("groups of {} data-parallel ranks and the {} of them that experts are sharded over "
                             "(layout.ep = {}) do not nest",
                             group, part, layout.ep),
                 fmt::format("set layout.zero_group = {}", part));
  layout.zero_group = static_cast<int>(part);
}

void balance_groups_are_whole(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  const std::int64_t group = context.run.shape.experts.balance_group;
  if (!uses_experts(context) || group == 1) return;
  const LayoutConfig& layout = recipe.layout;
  const bool stages = context.has_stages();
  const std::int64_t size =
      stages ? pipeline_micro_rows(recipe, context.run.schedule) : recipe.train.micro_batch_size.value_or(0);
  std::vector<double> weights = layout.dp_batch_weights;
  if (static_cast<int>(weights.size()) != context.replicas) weights.clear();
  for (const std::int64_t rows : context.rows_of_steps()) {
    for (int rank = 0; rank < context.replicas; ++rank) {
      const RowRange mine = share_of_rows(0, rows, rank, context.replicas, weights);
      const bool together = stages || layout.zero >= 2 || layout.ep > 1;
      const std::vector<std::int64_t> micros = micro_sizes(mine.count, size, together ? context.micros_of(rows) : 0);
      const bool whole = rows % group == 0 && mine.first % group == 0 &&
                         std::ranges::all_of(micros, [&](std::int64_t micro) { return micro % group == 0; });
      if (whole) continue;
      return context.refuse(
          "experts.balance_group",
          fmt::format("is {} samples, but data-parallel rank {} takes {} of {} in micro-batches that are no whole "
                      "groups",
                      group, rank, mine.count, rows),
          fmt::format("set experts.balance_group = 1, or make train.micro_batch_size and each rank's samples multiples "
                      "of {}",
                      group));
    }
  }
}

/// Why the host reads what a router gave in the middle of a step; empty: it does not.
std::string why_host_routes(const RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  const Experts& experts = context.run.shape.experts;
  constexpr std::int64_t kMostExperts = 1023, kMostChoices = 32;  // kernels/cuda_moe_table.h
  const bool kind = experts.router == RouterKind::kSoftmaxTopK || experts.router == RouterKind::kSigmoidTopK;
  if (!kind) return "this experts.router runs on the host";
  if (experts.capacity_factor > 0) return "experts.capacity_factor drops tokens on the host";
  if (experts.jitter > 0) return "experts.jitter is drawn on the host";
  if (experts.expert_dropout > 0) return "experts.expert_dropout is drawn on the host";
  if (experts.num_experts > kMostExperts || experts.top_k > kMostChoices)
    return fmt::format("more than {} experts or {} for a token are routed on the host", kMostExperts, kMostChoices);
  if (recipe.precision.compute != Precision::kBf16) return "grouped GEMMs that read counts on the GPU are for bf16";
  if (context.run.shape.hidden_size % 8 != 0 || expert_ffn_size(context.run.shape) % 8 != 0)
    return "grouped GEMMs that read counts on the GPU take sizes that are multiples of 8";
  if (recipe.layout.ep > 1) return "with layout.ep counts travel by way of the host";
  if (experts.dispatch_precision != DispatchPrecision::kSame)
    return "with experts.dispatch_precision rows are dispatched by the host";
  if (recipe.layout.tp > 1 && experts.slice_over_tp)
    return "with experts.slice_over_tp ranks dispatch slices that the host chooses";
  if (recipe.layout.tp > 1 && recipe.layout.sequence_parallel)
    return "with layout.sequence_parallel samples are routed by ranks together, on the host";
  return {};
}

void experts_in_graphs(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  if (!uses_experts(context) || recipe.run.device != DeviceKind::kCuda || !recipe.train.cuda_graphs) return;
  const std::string why = why_host_routes(context);
  if (why.empty()) return;
  context.refuse("train.cuda_graphs", fmt::format("captures steps that wait for nobody, but {}", why),
                 "set train.cuda_graphs = false");
  recipe.train.cuda_graphs = false;
}

void experts_in_full_precision(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  if (!uses_experts(context) || recipe.precision.gemm == GemmPrecision::kSame || recipe.run.device != DeviceKind::kCuda)
    return;
  context.refuse("precision.gemm",
                 "is FP8, but on a GPU grouped GEMMs of experts have the activations' precision (on the CPU FP8 is "
                 "emulated)",
                 "set precision.gemm = \"same\"");
  recipe.precision.gemm = GemmPrecision::kSame;
}

void experts_steps_apart(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  if (!uses_experts(context) || !context.runs_several_steps()) return;
  Experts& experts = recipe.model.experts;
  const Experts& used = context.run.shape.experts;
  const bool biases = used.bias_update_rate > 0;
  if (!biases && used.rebalance_every == 0) return;
  std::string hint = context.run.schedule.asynchronous ? "set pipeline.schedule = \"1f1b\"" : "";
  if (recipe.pipeline.drain_every.value_or(1) > 1)
    hint += fmt::format("{}pipeline.drain_every = 1", hint.empty() ? "set " : " and ");
  context.refuse(
      "pipeline.schedule",
      fmt::format("{} runs steps together: the next one's passes begin before the loads of experts, which "
                  "{} after each step, are complete",
                  recipe.pipeline.schedule, biases ? "move the routers' biases" : "decide where experts are"),
      fmt::format("{}, or {}", hint,
                  biases ? "experts.bias_update_rate = 0"
                         : "experts.rebalance_every = 0, experts.redundant_experts = 0 and "
                           "experts.move_experts = false"));
  for (Experts* those : {&experts, &context.run.shape.experts}) {
    those->bias_update_rate = 0;
    those->rebalance_every = those->redundant_experts = 0;
    those->move_experts = false;
  }
}

void ep_nodes_divide(RuleContext& context) {
  Experts& experts = context.run.recipe.model.experts;
  const std::int64_t nodes = context.run.shape.experts.node_ranks, ep = context.layout().ep;
  if (!uses_experts(context) || nodes == 0 || ep % std::min(nodes, ep) == 0) return;
  context.refuse(
      "experts.node_ranks",
      fmt::format("nodes of {} ranks do not divide the {} that experts are sharded over (layout.ep)", nodes, ep),
      fmt::format("set experts.node_ranks = {}", std::gcd(nodes, ep)));
  experts.node_ranks = context.run.shape.experts.node_ranks = std::gcd(nodes, ep);
}

void redundant_experts_divide(RuleContext& context) {
  Experts& experts = context.run.recipe.model.experts;
  const std::int64_t copies = context.run.shape.experts.redundant_experts, ep = context.layout().ep;
  if (!uses_experts(context) || copies % ep == 0) return;
  context.refuse(
      "experts.redundant_experts",
      fmt::format("{} copies of experts are spread over the {} ranks of layout.ep, each as many", copies, ep),
      fmt::format("set experts.redundant_experts = {}", (copies + ep - 1) / ep * ep));
  experts.redundant_experts = context.run.shape.experts.redundant_experts = (copies + ep - 1) / ep * ep;
}

/// Whether experts may leave their rank, which what is kept by rank does not follow.
bool moves_experts(const RuleContext& context) {
  return uses_experts(context) && context.layout().ep > 1 && context.run.shape.experts.move_experts;
}

void moving_experts_uncompressed(RuleContext& context) {
  Recipe& recipe = context.run.recipe;
  if (!moves_experts(context) || recipe.compress.kind == CompressKind::kNone) return;
  context.refuse("experts.move_experts", "what compression leaves out of a gradient is kept where the expert was",
                 "set experts.move_experts = false and experts.rebalance_every = 0, or compress.kind = \"none\"");
  recipe.compress.kind = CompressKind::kNone;
}

constexpr Rule kExpertRules[] = {
    {"ep-shards-experts", "expert parallelism of a model without experts", "there is nothing to shard",
     Because::kDefinition, RuleNeeds::kLayout, ep_shards_experts},
    {"ep-divides", "an `ep` that does not divide the experts and the ranks of dp x cp",
     "each rank has equally many experts", Because::kDefinition, RuleNeeds::kLayout, ep_divides},
    {"ep-nests-in-zero-group", "ZeRO groups and ranks with other experts of which neither divides the other",
     "the copies of an expert in a sharding group must be the same number on all ranks", Because::kDefinition,
     RuleNeeds::kLayout, ep_nests_in_zero_group},
    {"ep-nodes-divide", "nodes of hierarchical all-to-all that do not divide `ep`",
     "each node has equally many of the ranks that experts are sharded over", Because::kDefinition, RuleNeeds::kLayout,
     ep_nodes_divide},
    {"redundant-experts-divide", "copies of experts that the ranks of `ep` do not divide",
     "each rank has room for equally many", Because::kDefinition, RuleNeeds::kLayout, redundant_experts_divide},
    {"moving-experts-uncompressed", "experts that move between ranks, with gradient compression",
     "a rank's experts are compressed together: their residuals, scale and factors do not go with one of them",
     Because::kNotBuilt, RuleNeeds::kRun, moving_experts_uncompressed},
    {"balance-groups-are-whole", "micro-batches that are no whole balance groups of a router",
     "losses, capacity and choices are defined over whole groups", Because::kDefinition, RuleNeeds::kRun,
     balance_groups_are_whole},
    {"experts-in-graphs",
     "CUDA graphs with experts whose routing the host takes part in: routers other than dropless `softmax-top-k` and "
     "`sigmoid-top-k`, jitter, expert dropout, `ep` or sequence parallelism, types other than bf16",
     "the host reads choices in the middle of a step", Because::kNotBuilt, RuleNeeds::kRun, experts_in_graphs},
    {"experts-in-full-precision", "FP8 GEMMs of experts on a GPU",
     "grouped GEMMs have no FP8 kernel there; the CPU emulates them", Because::kNotBuilt, RuleNeeds::kRun,
     experts_in_full_precision},
    {"experts-steps-apart",
     "experts with biases, copies or moves that follow loads, with several steps between flushes",
     "a step's loads are complete when passes of the next one have been made: there is no step after which all ranks "
     "could change what they route by",
     Because::kDefinition, RuleNeeds::kRun, experts_steps_apart},
};

}  // namespace

std::int64_t expert_share_of_dp(const LayoutConfig& layout, std::int64_t replicas) {
  std::vector<std::string> order = split(layout.order, ' ');
  std::ranges::reverse(order);
  std::int64_t left = layout.ep;
  for (const std::string& axis : order) {
    if (axis != "dp" && axis != "cp") continue;
    const std::int64_t here = std::gcd(left, axis == "dp" ? replicas : std::int64_t{layout.cp});
    if (axis == "dp") return here;
    left /= here;
  }
  return 1;
}

std::span<const Rule> expert_rules() { return kExpertRules; }

}  // namespace trireme::spec
