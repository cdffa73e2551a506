// What must divide what: heads, sequences, layers and ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "trireme/base/text.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

using Works = std::function<bool(std::int64_t)>;

/// The value nearest to `wanted` by ratio that works, the smaller of two that are equally near; 0: none up to `most`.
std::int64_t nearest(std::int64_t wanted, std::int64_t most, const Works& works) {
  std::int64_t best = 0;
  double best_distance = 0;
  for (std::int64_t value = 1; value <= most; ++value) {
    if (!works(value)) continue;
    const double distance = std::abs(std::log(static_cast<double>(value) / static_cast<double>(wanted)));
    if (best == 0 || distance < best_distance - 1e-12) best = value, best_distance = distance;
  }
  return best;
}

/// " (1, 2, 4 and 8 do)": what works near `wanted`, at most six.
std::string that_work(std::int64_t wanted, std::int64_t most, const Works& works) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = 1; value <= most; ++value) {
    if (works(value)) values.push_back(value);
  }
  constexpr std::size_t kShown = 6;
  while (values.size() > kShown) {  // drop the farther end
    const bool drop_first = static_cast<double>(wanted) / static_cast<double>(values.front()) >
                            static_cast<double>(values.back()) / static_cast<double>(wanted);
    values.erase(drop_first ? values.begin() : values.end() - 1);
  }
  if (values.empty()) return {};
  return fmt::format(" ({} {})", fmt::join(values, ", "), values.size() == 1 ? "does" : "do");
}

/// Whether the ranks are a multiple of those of one replica.
bool suits_ranks(const RuleContext& context, std::int64_t copy) {
  return !context.run.ranks || *context.run.ranks % copy == 0;
}

void tp_divides_model(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  const ModelShape& shape = context.run.shape;
  const std::int64_t tp = layout.tp, others = std::int64_t{layout.pp} * layout.cp;
  const Works heads = [&](std::int64_t value) { return shape.num_heads % value == 0; };
  const std::int64_t shared = shared_ffn_size(shape);
  const Works ffn = [&](std::int64_t value) { return shape.ffn_size % value == 0 && shared % value == 0; };
  const Works keys = [&](std::int64_t value) {
    return shape.num_kv_heads % value == 0 || value % shape.num_kv_heads == 0;
  };
  const Works all = [&](std::int64_t value) { return heads(value) && ffn(value) && keys(value); };
  if (all(tp)) return;
  const Works best = [&](std::int64_t value) { return all(value) && suits_ranks(context, value * others); };
  std::int64_t fixed = nearest(tp, shape.num_heads, best);
  if (fixed == 0) fixed = nearest(tp, shape.num_heads, all);
  const bool unsplit = fixed == 1 && layout.sequence_parallel;
  const std::string hint =
      fmt::format("set layout.tp = {}{}", fixed, unsplit ? " and layout.sequence_parallel = false" : "");
  if (!heads(tp))
    context.refuse("layout.tp",
                   fmt::format("{} does not divide the model's {} heads{}", tp, shape.num_heads,
                               that_work(tp, shape.num_heads, all)),
                   hint);
  if (!ffn(tp))
    context.refuse("layout.tp",
                   fmt::format("{} does not divide {} = {}{}", tp,
                               shape.ffn_size % tp != 0 ? "model.ffn_size" : "the shared experts' ffn_size",
                               shape.ffn_size % tp != 0 ? shape.ffn_size : shared, that_work(tp, shape.num_heads, all)),
                   hint);
  if (heads(tp) && !keys(tp))  // without whole heads this one says nothing new
    context.refuse("layout.tp",
                   fmt::format("{} ranks can neither shard nor replicate the model's {} key and value heads evenly{}",
                               tp, shape.num_kv_heads, that_work(tp, shape.num_heads, all)),
                   hint);
  layout.tp = static_cast<int>(fixed);
  if (unsplit) layout.sequence_parallel = false;
}

/// Whether ranks of context parallelism have two blocks of a sequence each (parallel/parallel_groups.cpp).
bool has_two_blocks(const RuleContext& context) {
  const LayoutConfig& layout = context.layout();
  const bool trades_all = layout.cp_kind == ContextKind::kUlysses || layout.cp == layout.cp_ulysses;
  return context.run.shape.causal && !trades_all && context.run.seq_len % (2 * layout.cp) == 0;
}

void sparse_parts_are_blocks(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  const bool trades_all = layout.cp_kind == ContextKind::kUlysses || layout.cp == layout.cp_ulysses;
  if (!context.run.shape.sparse_attention.used() || layout.cp == 1 || trades_all) return;
  constexpr std::int64_t kSmallestBlock = 16;  // of kernels/sparse/block_lists.h and of model.sparse_attention.block
  const std::int64_t parts =
      std::int64_t{layout.cp} / std::max(1, layout.cp_ulysses) * (has_two_blocks(context) ? 2 : 1);
  const std::int64_t length = context.run.seq_len;
  if (length % parts != 0 || length / parts % kSmallestBlock == 0) return;  // the first: a rule of its own
  context.refuse("layout.cp_kind",
                 fmt::format("cuts sequences of {} tokens into {} parts of {}, which would cut blocks of block-sparse "
                             "attention: parts must be multiples of {}",
                             length, parts, length / parts, kSmallestBlock),
                 "set layout.cp_kind = \"ulysses\"");
  layout.cp_kind = ContextKind::kUlysses;
}

void cp_divides_source(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  if (layout.cp == 1 || context.run.shape.num_encoder_layers == 0) return;
  const std::int64_t length = context.run.recipe.data.source_seq_len.value_or(context.run.seq_len);
  const std::int64_t parts = std::int64_t{layout.cp} * (has_two_blocks(context) ? 2 : 1);
  const std::int64_t tokens = length / layout.cp;
  const bool norms = !layout.sequence_parallel || tokens % layout.tp == 0;
  if (length % parts == 0 && norms) return;
  context.refuse(
      "layout.cp",
      fmt::format("gives each of {} ranks {} of a sequence, but the encoder's {} tokens do not make {} equal "
                  "ones{}",
                  layout.cp, parts > layout.cp ? "two blocks" : "a block", length, parts,
                  norms ? "" : fmt::format(", and layout.tp = {} does not divide those", layout.tp)),
      "set layout.cp = 1");
  layout.cp = layout.cp_ulysses = 1;
}

void sequence_parallel_divides(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  if (!layout.sequence_parallel || context.run.seq_len % layout.tp == 0) return;
  context.refuse("layout.sequence_parallel",
                 fmt::format("shards sequences of {} tokens over layout.tp = {}, which does not divide them",
                             context.run.seq_len, layout.tp),
                 "set layout.sequence_parallel = false");
  layout.sequence_parallel = false;
}

void cp_divides_model(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  const ModelShape& shape = context.run.shape;
  const std::int64_t cp = layout.cp, tp = layout.tp, length = context.run.seq_len;
  const bool ring = layout.cp_kind == ContextKind::kRing && shape.causal;
  const Works cut = [&](std::int64_t value) { return length % (value > 1 && ring ? 2 * value : value) == 0; };
  const std::int64_t own_heads = shape.num_heads / tp, own_keys = std::max<std::int64_t>(1, shape.num_kv_heads / tp);
  const std::int64_t inner = cp % layout.cp_ulysses == 0 ? layout.cp_ulysses : 1;  // else a rule of its own
  const Works heads = [&](std::int64_t value) {
    const std::int64_t traders = layout.cp_kind == ContextKind::kUlysses ? value : inner;
    return own_heads % traders == 0 && (own_keys % traders == 0 || traders % own_keys == 0);
  };
  const Works norms = [&](std::int64_t value) { return !layout.sequence_parallel || length % (tp * value) == 0; };
  const Works all = [&](std::int64_t value) { return cut(value) && heads(value) && norms(value); };
  if (all(cp)) return;
  const std::int64_t most = std::min<std::int64_t>(length, 4 * cp), others = tp * layout.pp;
  const Works best = [&](std::int64_t value) { return all(value) && suits_ranks(context, value * others); };
  std::int64_t fixed = nearest(cp, most, best);
  if (fixed == 0) fixed = nearest(cp, most, all);
  if (fixed == 0) {  // whatever cp is
    context.refuse("layout.cp_ulysses",
                   fmt::format("{} does not divide the {} heads of a rank ({} / layout.tp) and its {} key heads", inner,
                               own_heads, shape.num_heads, own_keys),
                   "set layout.cp_ulysses = 1");
    layout.cp_ulysses = 1;
    return;
  }
  const std::string hint = fmt::format("set layout.cp = {}", fixed), others_do = that_work(cp, most, all);
  if (!cut(cp) && ring) {
    context.refuse(
        "layout.cp",
        fmt::format(
            "causal ring attention gives each of {} ranks two blocks, but {} tokens do not make {} equal ones{}", cp,
            length, 2 * cp, others_do),
        hint);
  } else if (!cut(cp)) {
    context.refuse("layout.cp", fmt::format("{} does not divide sequences of {} tokens{}", cp, length, others_do),
                   hint);
  } else if (!norms(cp)) {
    context.refuse("layout.cp",
                   fmt::format("with layout.sequence_parallel, tp {} x cp {} = {} must divide sequences of {} tokens{}",
                               tp, cp, tp * cp, length, others_do),
                   hint);
  }
  if (!heads(cp))
    context.refuse("layout.cp",
                   fmt::format("ulysses splits the {} heads of a rank ({} / layout.tp) and its {} key heads, which {} "
                               "does not divide{}",
                               own_heads, shape.num_heads, own_keys, cp, others_do),
                   hint);
  layout.cp = static_cast<int>(fixed);
}

void stages_have_layers(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  PipelineConfig& pipeline = context.run.recipe.pipeline;
  if (layout.pp == 1) return;
  const ModelShape& shape = context.run.shape;
  const bool segments = context.run.recipe.train.recompute == RecomputeKind::kSqrt;
  const auto blocks = [&](std::int64_t layers) {
    return segments ? static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(layers)))) : layers;
  };
  const std::int64_t layers = blocks(shape.num_layers) + blocks(shape.num_encoder_layers);
  // The ends of the model can be chunks of their own, as in Llama 3 (126 layers, 128 chunks).
  const ScheduleTraits& schedule = context.run.schedule;
  const std::int64_t most = layers + 2, fewest = schedule.bidirectional ? 1 : schedule.default_chunks;
  const std::int64_t each = std::max<std::int64_t>(schedule.bidirectional ? 1 : pipeline.virtual_stages, fewest);
  const auto stages = static_cast<std::int64_t>(pipeline.stage_ranks.size());
  const std::int64_t chunks = (stages > 0 ? stages : layout.pp) * each;
  if (chunks <= most) return;
  if (stages > 0) {
    context.refuse("pipeline.stage_ranks",
                   fmt::format("has {}, but the model's {} with embedding and head make {}",
                               counted(static_cast<std::size_t>(stages), "stage"),
                               counted(static_cast<std::size_t>(layers), "layer"), most),
                   "leave pipeline.stage_ranks out");
    pipeline.stage_ranks.clear();
    return stages_have_layers(context);
  }
  const std::string reason = fmt::format(
      "pp {} x virtual_stages {} = {} chunks, but the model's {} {} with embedding and head make {}", layout.pp, each,
      chunks, layers, segments ? "segments of layers (train.recompute = \"sqrt\")" : "layers", most);
  if (layout.pp <= most && fewest * layout.pp <= most) {
    pipeline.virtual_stages = static_cast<int>(most / layout.pp);
    context.refuse("pipeline.virtual_stages", reason,
                   fmt::format("set pipeline.virtual_stages = {}", pipeline.virtual_stages));
    return;
  }
  // More stages than the model has parts: one part each, on as many ranks as suit.
  const std::int64_t others = std::int64_t{layout.tp} * layout.cp;
  const Works fits = [&](std::int64_t value) { return value * fewest <= most; };
  std::int64_t fixed =
      nearest(layout.pp, most, [&](std::int64_t value) { return fits(value) && suits_ranks(context, value * others); });
  if (fixed == 0) fixed = nearest(layout.pp, most, fits);
  const bool chunked = pipeline.virtual_stages > 1;
  context.refuse("layout.pp", reason,
                 fmt::format("set layout.pp = {}{}", fixed, chunked ? " and pipeline.virtual_stages = 1" : ""));
  pipeline.virtual_stages = 1;
  layout.pp = static_cast<int>(fixed);
}

void ranks_are_replicas(RuleContext& context) {
  LayoutConfig& layout = context.run.recipe.layout;
  const std::int64_t copy = layout.ranks_per_copy();
  if (!context.run.ranks) {
    context.replicas = layout.dp.value_or(1);
    return;
  }
  const std::int64_t ranks = *context.run.ranks;
  const std::string one = fmt::format("tp {} x pp {} x cp {}", layout.tp, layout.pp, layout.cp);
  std::int64_t replicas = ranks / copy;
  if (ranks % copy != 0) {
    replicas = std::max<std::int64_t>(1, replicas);
    context.refuse(
        "layout", fmt::format("a replica of the model takes {} = {} ranks, which does not divide {}", one, copy, ranks),
        fmt::format("start {} ranks{}", replicas * copy,
                    layout.dp && *layout.dp != replicas ? fmt::format(" and set layout.dp = {}", replicas) : ""));
  } else if (layout.dp && *layout.dp != replicas) {
    context.refuse("layout.dp",
                   fmt::format("{} x dp {} = {}, but there are {} ranks", one, *layout.dp, copy * *layout.dp, ranks),
                   fmt::format("set layout.dp = {}", replicas));
  }
  layout.dp = context.replicas = static_cast<int>(replicas);
}

void zero_group_divides(RuleContext& context) {
  const std::int64_t replicas = context.replicas;
  const std::optional<int>& group = context.layout().zero_group;
  if (!group || replicas % *group == 0) return;
  const Works divides = [&](std::int64_t value) { return replicas % value == 0; };
  context.refuse("layout.zero_group",
                 fmt::format("{} does not divide the {} data-parallel ranks{}", *group, replicas,
                             that_work(*group, replicas, divides)),
                 fmt::format("set layout.zero_group = {}", nearest(*group, replicas, divides)));
}

void batch_weights_of_replicas(RuleContext& context) {
  const std::size_t weights = context.layout().dp_batch_weights.size();
  if (weights == 0 || weights == static_cast<std::size_t>(context.replicas)) return;
  context.refuse("layout.dp_batch_weights",
                 fmt::format("has {} numbers for {} data-parallel ranks", weights, context.replicas),
                 "leave layout.dp_batch_weights out, or give one number for each");
}

constexpr Rule kLayoutRules[] = {
    {"tp-divides-model", "a `tp` that does not divide the heads or `ffn_size`",
     "each rank has whole heads; key and value heads are sharded or replicated evenly", Because::kDefinition,
     RuleNeeds::kLayout, tp_divides_model},
    {"sparse-parts-are-blocks",
     "block-sparse attention (`model.sparse_attention`) with ring attention or gathered keys whose parts of a sequence "
     "are no multiples of 16 tokens",
     "blocks of queries and keys are multiples of 16 tokens", Because::kDefinition, RuleNeeds::kLayout,
     sparse_parts_are_blocks},
    {"cp-divides-source", "context parallelism where `cp` does not divide the source of an encoder-decoder model",
     "each rank has equally many tokens of both sequences", Because::kDefinition, RuleNeeds::kLayout,
     cp_divides_source},
    {"sequence-parallel-divides", "sequence parallelism where `tp` does not divide the sequence",
     "each rank has equally many tokens", Because::kDefinition, RuleNeeds::kLayout, sequence_parallel_divides},
    {"cp-divides-model", "a `cp` that does not divide the sequence, or with ulysses the heads of a rank",
     "each rank has equally many tokens, in two blocks for a causal ring", Because::kDefinition, RuleNeeds::kLayout,
     cp_divides_model},
    {"stages-have-layers", "more stages than the model has layers, embedding and head",
     "a stage without a layer computes nothing", Because::kDefinition, RuleNeeds::kLayout, stages_have_layers},
    {"ranks-are-replicas", "ranks that are no multiple of tp x pp x cp", "every rank belongs to a replica",
     Because::kDefinition, RuleNeeds::kLayout, ranks_are_replicas},
    {"zero-group-divides", "a `zero_group` that does not divide the data-parallel ranks",
     "every rank belongs to one sharding group", Because::kDefinition, RuleNeeds::kLayout, zero_group_divides},
    {"batch-weights-of-replicas", "`dp_batch_weights` with another number of entries than data-parallel ranks",
     "each has one", Because::kDefinition, RuleNeeds::kLayout, batch_weights_of_replicas},
};

}  // namespace

std::span<const Rule> layout_rules() { return kLayoutRules; }

}  // namespace trireme::spec
