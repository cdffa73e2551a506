#include "trireme/plan/layer_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/cost/group_time.h"
#include "trireme/cost/roofline.h"
#include "trireme/plan/activations.h"

namespace trireme::plan {
namespace {

using cost::GemmShape;
using cost::Hardware;

constexpr const char *kDispatch = "ep all-to-all, dispatch", *kCombine = "ep all-to-all, combine";

/// Sizes of one layer as a rank sees it.
struct Sizes {
  double tokens, hidden_size, queries, keys, kv_heads, ffn_size, tp;
  double bytes;           // of a number between operators
  double sequence_share;  // of the tokens outside of split matrices that this rank works on
  double scores;          // width of all heads, of queries with keys and of values in the mean
  double mixed;           // share of the layers that have experts
  double expert_tp;       // ranks that shard an expert: Megatron's tp; ours have whole ones
  double routed;          // tokens that come to this rank's experts, each counted as often as it is sent
  bool dropout;

  Sizes(const Job& job, const ParallelConfig& config) : Sizes(job, config, config.layout) {}
  Sizes(const Job& job, const ParallelConfig& config, const spec::LayoutConfig& layout)
      : tokens(static_cast<double>(config.micro_batch_size) * static_cast<double>(job.seq_len) / layout.cp),
        hidden_size(static_cast<double>(job.shape.hidden_size)),
        queries(static_cast<double>(spec::attention_widths(job.shape).queries) / layout.tp),
        // Fewer key heads than ranks: each rank keeps a whole one.
        keys(static_cast<double>(spec::attention_widths(job.shape).keys) / static_cast<double>(job.shape.num_kv_heads) *
             std::max(1.0, static_cast<double>(job.shape.num_kv_heads) / layout.tp)),
        kv_heads(std::max(1.0, static_cast<double>(job.shape.num_kv_heads) / layout.tp)),
        ffn_size(static_cast<double>(job.shape.ffn_size) / layout.tp),
        tp(layout.tp),
        bytes(job.compute_bytes()),
        sequence_share(layout.sequence_parallel ? 1.0 / layout.tp : 1.0),
        scores((queries + static_cast<double>(spec::attention_widths(job.shape).attended) / layout.tp) / 2),
        mixed(static_cast<double>(spec::expert_layers(job.shape)) / layers_of(job.shape)),
        expert_tp(job.software == Software::kMegatron ? layout.tp : 1),
        // Experts are visited evenly, so as many tokens come as go. Of ranks that shard an expert each sees all of
        // them.
        routed(tokens * (expert_tp > 1 ? 1 : sequence_share) * static_cast<double>(job.shape.experts.top_k) *
               std::max(1.0, job.shape.experts.capacity_factor)),
        dropout(job.shape.dropout > 0) {}
};

/// A GEMM, and how many of its kind a layer has in the mean.
struct Repeated {
  const char* name;
  GemmShape gemm;
  double times = 1;
};

/// The MLP's GEMMs; of the layers that have experts, those of the ones this rank holds, all equally visited.
void add_mlp(const Job& job, const ParallelConfig& config, const Sizes& sizes, std::vector<Repeated>& out) {
  const double into = job.shape.gated ? 2 : 1;
  const auto both = [&](const char* in_name, const char* out_name, double rows, double inner, double times) {
    out.push_back({in_name, {rows, into * inner, sizes.hidden_size}, times});
    out.push_back({out_name, {rows, sizes.hidden_size, inner}, times});
  };
  if (sizes.mixed < 1) both("mlp in", "mlp out", sizes.tokens, sizes.ffn_size, 1 - sizes.mixed);
  if (sizes.mixed == 0) return;
  const spec::Experts& experts = job.shape.experts;
  const double here = static_cast<double>(experts.num_experts) / config.layout.ep;
  const auto width = static_cast<double>(spec::expert_ffn_size(job.shape));
  const double inner = width / sizes.expert_tp, shared = width / config.layout.tp;
  both("expert in", "expert out", sizes.routed / here, inner, sizes.mixed * here);
  if (experts.num_shared_experts > 0)
    both("shared expert in", "shared expert out", sizes.tokens,
         static_cast<double>(experts.num_shared_experts) * shared, sizes.mixed);
  out.push_back({"router", {sizes.tokens, static_cast<double>(experts.num_experts), sizes.hidden_size}, sizes.mixed});
}

std::vector<Repeated> gemms(const Job& job, const ParallelConfig& config, const Sizes& sizes) {
  std::vector<Repeated> out;
  if (const spec::Mla& mla = job.shape.mla; mla.used()) {
    const double heads = static_cast<double>(job.shape.num_heads) / config.layout.tp;
    const auto query = static_cast<double>(mla.q_lora_rank), key = static_cast<double>(mla.kv_lora_rank);
    const auto each = static_cast<double>(job.shape.head_dim), rope = static_cast<double>(mla.qk_rope_head_dim);
    const auto value = static_cast<double>(mla.v_head_dim);
    // Down-projections are replicated over tp; sequence parallelism shares out their tokens.
    const double tokens = sizes.tokens * sizes.sequence_share;
    if (query > 0) out.push_back({"queries' latent", {tokens, query, sizes.hidden_size}});
    out.push_back({"queries", {sizes.tokens, sizes.queries, query > 0 ? query : sizes.hidden_size}});
    out.push_back({"keys' and values' latent", {tokens, key + rope, sizes.hidden_size}});
    out.push_back({"keys and values", {sizes.tokens, heads * (each + value), key}});
    out.push_back({"attention out", {sizes.tokens, sizes.hidden_size, heads * value}});
  } else {
    out = {{"queries, keys, values", {sizes.tokens, sizes.queries + 2 * sizes.keys, sizes.hidden_size}},
           {"attention out", {sizes.tokens, sizes.hidden_size, sizes.queries}}};
  }
  add_mlp(job, config, sizes, out);
  return out;
}

/// Weight gradients are added to sums in fp32: read and written once for each micro-batch.
constexpr double kAccumulateBytes = 8;

double forward_seconds(const Hardware& hardware, const Job& job, const GemmShape& gemm) {
  return cost::matmul_seconds(hardware, job.arithmetic(), gemm);
}
double grad_input_seconds(const Hardware& hardware, const Job& job, const GemmShape& gemm) {
  return cost::matmul_seconds(hardware, job.arithmetic(), {gemm.rows, gemm.inner, gemm.columns});
}
double grad_weight_seconds(const Hardware& hardware, const Job& job, const GemmShape& gemm) {
  return cost::matmul_seconds(hardware, job.arithmetic(), {gemm.inner, gemm.columns, gemm.rows}) +
         cost::stream_seconds(hardware, kAccumulateBytes * gemm.inner * gemm.columns, 0);
}

void add_gemms(const Hardware& hardware, const Job& job, const ParallelConfig& config, const Sizes& sizes,
               PassTimes& times) {
  for (const auto& [name, gemm, repeats] : gemms(job, config, sizes)) {
    const double forward = forward_seconds(hardware, job, gemm), weights = grad_weight_seconds(hardware, job, gemm);
    times.forward.matmul += repeats * forward;
    if (std::string_view(name).starts_with("expert ")) times.experts += repeats * forward;
    times.backward.matmul += repeats * (grad_input_seconds(hardware, job, gemm) + weights);
    times.backward_weight += repeats * weights;
  }
}

/// The share of all pairs of tokens that fused attention computes.
double computed_share(const Job& job) {
  const spec::ModelShape& shape = job.shape;
  const auto length = static_cast<double>(job.seq_len);
  double pairs = 0;
  for (std::int64_t layer = 0; layer < std::min<std::int64_t>(shape.num_layers, 2);
       ++layer) {  // windows alternate in pairs
    const std::int64_t window = spec::window_of(shape, layer);
    const double visible = window > 0 ? std::min(static_cast<double>(window), length) : length;
    pairs += shape.causal ? visible * (length - visible / 2) : visible * length;
  }
  return pairs / static_cast<double>(std::min<std::int64_t>(shape.num_layers, 2)) / (length * length);
}

void add_attention(const Hardware& hardware, const Job& job, const Sizes& sizes, PassTimes& times) {
  const auto length = static_cast<double>(job.seq_len);
  const double flops = 4 * sizes.tokens * length * sizes.scores;
  if (job.attention == AttentionKind::kFlash) {
    const double computed = flops * computed_share(job);
    times.forward.attention = cost::attention_seconds(hardware, job.arithmetic(), computed);
    // Backward: five GEMMs where forward has two (Dao 2023).
    times.backward.attention = cost::attention_seconds(hardware, job.arithmetic(), 2.5 * computed);
    return;
  }
  // Two GEMMs of all pairs for each head, and softmax with its dropout in between. Bytes for each score: written by
  // the first GEMM, read and written by softmax and by dropout with its mask, read by the second GEMM.
  const double scores = sizes.tokens * length * sizes.queries / static_cast<double>(job.shape.head_dim);
  const double product_bytes = 2 * 2 * (scores + 2 * sizes.tokens * sizes.queries);
  const double forward_bytes = product_bytes + scores * (sizes.dropout ? 9 : 4);
  const double backward_bytes = 2 * product_bytes + scores * (sizes.dropout ? 11 : 6);
  const double computing = flops / (hardware.peak(job.arithmetic()) * hardware.device.efficiency.matmul);
  times.forward.attention = computing + cost::stream_seconds(hardware, forward_bytes, 5);
  times.backward.attention = 2 * computing + cost::stream_seconds(hardware, backward_bytes, 7);
}

/// Norms, residual sums, dropout, activations, splitting and joining of heads; two bytes a number, one for a mask.
void add_streaming(const Hardware& hardware, const Job& job, const Sizes& sizes, PassTimes& times) {
  const bool gated = job.shape.gated;
  const double outside = sizes.tokens * sizes.hidden_size * sizes.sequence_share;
  const double heads = sizes.tokens * (sizes.queries + 2 * sizes.keys);
  double middle = sizes.tokens * sizes.ffn_size * (1 - sizes.mixed);
  double sorted = 0;
  if (sizes.mixed > 0) {
    const spec::Experts& experts = job.shape.experts;
    const auto inner = static_cast<double>(spec::expert_ffn_size(job.shape));
    middle +=
        sizes.mixed * inner *
        (sizes.routed / sizes.expert_tp + static_cast<double>(experts.num_shared_experts) * sizes.tokens / sizes.tp);
    // Tokens are sorted by expert before they go and put back, weighted, when they come: read and written.
    sorted = 2 * 4 * sizes.mixed * sizes.routed * sizes.hidden_size;
  }
  // Two norms (in, out) and two residual sums (branch, residual, out, mask).
  const double forward_outside = outside * (2 * 4 + 2 * (sizes.dropout ? 7 : 6));
  // The norms' (gradient, input, out), the sums of both branches' gradients, dropout's (gradient, mask, out).
  const double backward_outside = outside * (2 * 6 + 2 * 6 + 2 * 5);
  const double forward_middle = middle * (gated ? 6 : 4);
  const double backward_middle = middle * (gated ? 10 : 8);
  const double reshape = 4 * heads;
  const double scale = sizes.bytes / 2;
  times.forward.streaming +=
      cost::stream_seconds(hardware, scale * (forward_outside + forward_middle + reshape + sorted), 8);
  times.backward.streaming +=
      cost::stream_seconds(hardware, scale * (backward_outside + backward_middle + reshape + sorted), 12);
}

/// Of the rows that go out, how many do where a token crosses once to each node: over evenly spread experts, distinct
/// nodes for each of top_k choices.
double crossings_share(const spec::Experts& experts, int ep) {
  if (experts.node_ranks == 0 || ep <= experts.node_ranks) return 1;
  const auto nodes = static_cast<double>(ep) / static_cast<double>(experts.node_ranks),
             choices = static_cast<double>(experts.top_k);
  double distinct = nodes * (1 - std::pow(1 - 1 / nodes, choices));
  if (static_cast<double>(experts.num_groups) == nodes)  // groups are nodes: routing is limited to some of them
    distinct = std::min(distinct, static_cast<double>(experts.top_k_groups));
  return distinct / choices;
}

/// A collective that runs by itself; `hidden`: the share of it that runs behind computing.
CollectiveTime collective(const Hardware& hardware, std::string name, double times, cost::Collective op,
                          const cost::GroupShape& group, double bytes, double hidden) {
  const double seconds = cost::group_seconds(hardware, op, group, bytes);
  return {.name = std::move(name),
          .times = times,
          .bytes = cost::wire_bytes(op, group.ranks, bytes),
          .least = cost::least_group_seconds(hardware, op, group, bytes),
          .seconds = seconds,
          .exposed = (1 - hidden) * seconds};
}

/// Tokens to their experts and back, forward and backward alike. Where GEMMs are in eight bits, or dispatch is, tokens
/// go out in eight and come back in sixteen (DeepSeek-V3, section 3.3.3).
void add_dispatch(const Hardware& hardware, const Job& job, const ParallelConfig& config, const Sizes& sizes,
                  std::vector<CollectiveTime>& out) {
  const spec::LayoutConfig& layout = config.layout;
  if (layout.ep == 1 || sizes.mixed == 0) return;
  const int per_node = hardware.cluster.gpus_per_node;
  const cost::GroupShape group{.ranks = layout.ep,
                               .per_node = std::clamp(per_node / layout.tp, 1, layout.ep),
                               .groups = config.ranks() / layout.ep,
                               .extent = static_cast<double>(layout.tp) * layout.ep};
  const spec::Experts& experts = job.shape.experts;
  const bool eight =
      job.arithmetic() == cost::Arithmetic::kFp8 || experts.dispatch_precision == spec::DispatchPrecision::kFp8;
  const double going = (eight ? 1 : 2) * crossings_share(experts, layout.ep),
               values = sizes.routed * sizes.hidden_size / sizes.expert_tp;
  const double hidden = hardware.device.efficiency.overlap;
  for (const auto& [name, bytes] : {std::pair{kDispatch, going * values}, {kCombine, 2 * values}})
    out.push_back(collective(hardware, name, sizes.mixed, cost::Collective::kAllToAll, group, bytes, hidden));
}

/// Two all-reduces each way (Megatron); with sequence parallelism each is a reduce-scatter and an all-gather of the
/// same bytes, which can run beside the GEMMs they feed.
void add_tensor_parallel(const Hardware& hardware, const spec::LayoutConfig& layout, const Sizes& sizes,
                         std::vector<CollectiveTime>& out) {
  if (layout.tp == 1) return;
  out.push_back(collective(hardware, layout.sequence_parallel ? "tp reduce-scatter, all-gather" : "tp all-reduce", 2,
                           cost::Collective::kAllReduce,
                           {.ranks = layout.tp, .per_node = std::min(layout.tp, hardware.cluster.gpus_per_node)},
                           sizes.bytes * sizes.tokens * sizes.hidden_size,
                           layout.sequence_parallel ? hardware.device.efficiency.overlap : 0));
}

/// A ring of blocks behind attention, which takes `attention` seconds.
CollectiveTime ring(const Hardware& hardware, const ParallelConfig& config, int ranks, std::vector<double> blocks,
                    double attention) {
  const bool across = std::int64_t{config.layout.tp} * config.layout.cp > hardware.cluster.gpus_per_node;
  CollectiveTime out{.name = "cp ring"};
  for (const double bytes : blocks) {
    out.bytes += (ranks - 1) * bytes;
    out.seconds += (ranks - 1) * cost::message_seconds(hardware, bytes, across);
  }
  out.least = out.bytes / (across ? hardware.network_bandwidth() : hardware.link_bandwidth());
  // A block is on its way while attention computes with the one before.
  out.exposed = std::max((1 - hardware.device.efficiency.overlap) * out.seconds, out.seconds - attention) +
                (ranks - 1) * hardware.device.efficiency.kernel_seconds;
  return out;
}

/// How a sequence that is sharded sees all of its keys and values: all-gather (Llama 3), a ring of blocks behind
/// attention (Liu et al. 2023), all-to-alls between heads and tokens (ulysses), or ulysses inside one of the others.
void add_context_parallel(const Hardware& hardware, const ParallelConfig& config, const Sizes& sizes, Pass pass,
                          double attention, std::vector<CollectiveTime>& out) {
  const spec::LayoutConfig& layout = config.layout;
  if (layout.cp == 1) return;
  const double overlap = hardware.device.efficiency.overlap;
  const int per_node = std::max(1, hardware.cluster.gpus_per_node / layout.tp);
  const int inner = layout.cp_kind == spec::ContextKind::kUlysses ? layout.cp : layout.cp_ulysses;
  const int outer = layout.cp / inner;
  if (inner > 1) {
    // Of queries, keys, values and the output, forward; of their gradients, backward. Attention waits for them.
    const cost::GroupShape group{.ranks = inner,
                                 .per_node = std::min(per_node, inner),
                                 .groups = config.ranks() / inner,
                                 .extent = static_cast<double>(layout.tp) * inner};
    for (const double width : {sizes.queries, std::max(sizes.keys, sizes.keys / sizes.kv_heads * inner)})
      out.push_back(collective(hardware, "cp all-to-all", 2, cost::Collective::kAllToAll, group,
                               sizes.bytes * sizes.tokens * width, 0));
  }
  if (outer == 1) return;
  const cost::GroupShape group{.ranks = outer,
                               .per_node = std::clamp(per_node / inner, 1, outer),
                               .groups = config.ranks() / outer,
                               .extent = static_cast<double>(layout.tp) * layout.cp};
  const double block = 2 * sizes.bytes * sizes.tokens * sizes.keys;  // keys and values of one rank
  if (layout.cp_kind == spec::ContextKind::kRing) {
    std::vector<double> blocks{block};
    // Blocks once more, and the gradients of keys and values beside them in fp32.
    if (pass == Pass::kBackward) blocks.push_back(block / sizes.bytes * 4);
    out.push_back(ring(hardware, config, outer, std::move(blocks), attention));
    return;
  }
  const double bytes = block * outer;
  out.push_back(collective(hardware, "cp all-gather", 1, cost::Collective::kAllGather, group, bytes, overlap));
  if (pass == Pass::kBackward)
    out.push_back(
        collective(hardware, "cp reduce-scatter", 1, cost::Collective::kReduceScatter, group, bytes, overlap));
}

/// Of one layer, whose attention takes as long as it is given.
std::vector<CollectiveTime> collectives(const Hardware& hardware, const Job& job, const ParallelConfig& config,
                                        const Sizes& sizes, Pass pass, double attention) {
  std::vector<CollectiveTime> out;
  add_tensor_parallel(hardware, config.layout, sizes, out);
  add_context_parallel(hardware, config, sizes, pass, attention, out);
  add_dispatch(hardware, job, config, sizes, out);
  return out;
}

/// The gradient of the head's input, summed over ranks.
std::vector<CollectiveTime> head_collectives(const Hardware& hardware, const Job& job, const ParallelConfig& config,
                                             const Sizes& sizes, Pass pass) {
  const spec::LayoutConfig& layout = config.layout;
  if (layout.tp == 1 || pass == Pass::kForward) return {};
  return {collective(hardware, "head, tp all-reduce", 1.0 / layers_of(job.shape), cost::Collective::kAllReduce,
                     {.ranks = layout.tp, .per_node = std::min(layout.tp, hardware.cluster.gpus_per_node)},
                     sizes.bytes * sizes.tokens * sizes.hidden_size,
                     layout.sequence_parallel ? hardware.device.efficiency.overlap : 0)};
}

/// One pass through the head and its loss.
PassTimes logits_times(const Hardware& hardware, const Job& job, const ParallelConfig& config) {
  const Sizes sizes(job, config);
  const double vocabulary = static_cast<double>(job.shape.vocab_size) / config.layout.tp;
  // Heads stay in sixteen bits where the rest is in eight (DeepSeek-V3, section 3.3).
  const cost::Arithmetic arithmetic =
      job.arithmetic() == cost::Arithmetic::kFp8 ? cost::Arithmetic::kBf16 : job.arithmetic();
  const GemmShape gemm{sizes.tokens, vocabulary, sizes.hidden_size};
  PassTimes times;
  times.forward.matmul = cost::matmul_seconds(hardware, arithmetic, gemm);
  times.backward.matmul =
      2 * times.forward.matmul + cost::stream_seconds(hardware, kAccumulateBytes * vocabulary * sizes.hidden_size, 0);
  // The loss in fp32: logits written, read for the maximum, for the sum, for the gradient; which is written twice.
  const double logits = sizes.tokens * vocabulary;
  times.forward.streaming = cost::stream_seconds(hardware, 16 * logits, 4);
  times.backward.streaming = cost::stream_seconds(hardware, 8 * logits, 2);
  for (const CollectiveTime& one : head_collectives(hardware, job, config, sizes, Pass::kBackward))
    times.backward.communication += one.exposed;
  return times;
}

}  // namespace

Parts& Parts::operator+=(const Parts& other) {
  matmul += other.matmul, attention += other.attention;
  streaming += other.streaming, communication += other.communication;
  return *this;
}

Parts operator*(double factor, const Parts& parts) {
  return {factor * parts.matmul, factor * parts.attention, factor * parts.streaming, factor * parts.communication};
}

PassTimes layer_times(const Hardware& hardware, const Job& job, const ParallelConfig& config) {
  const Sizes sizes(job, config);
  PassTimes times;
  add_gemms(hardware, job, config, sizes, times);
  add_attention(hardware, job, sizes, times);
  add_streaming(hardware, job, sizes, times);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Parts& parts = pass == Pass::kForward ? times.forward : times.backward;
    for (const CollectiveTime& one : collectives(hardware, job, config, sizes, pass, parts.attention)) {
      parts.communication += one.times * one.exposed;
      if (pass == Pass::kForward && (one.name == kDispatch || one.name == kCombine))
        times.dispatch += one.times * one.exposed;
    }
  }
  times.recompute = recomputed_forwards(job, config) * times.forward;
  if (config.recompute == spec::RecomputeKind::kSelective && job.attention == AttentionKind::kUnfused)
    times.recompute.attention = times.forward.attention;
  return times;
}

std::vector<OperatorTime> layer_operators(const Hardware& hardware, const Job& job, const ParallelConfig& config,
                                          Pass pass) {
  const Sizes sizes(job, config);
  const bool forward = pass == Pass::kForward;
  std::vector<OperatorTime> out;
  const double width = cost::bytes_of(job.arithmetic());
  for (const auto& [name, gemm, repeats] : gemms(job, config, sizes)) {
    const double bytes = width * gemm.elements();
    if (forward) {
      out.push_back({name, repeats, gemm.flops(), bytes, forward_seconds(hardware, job, gemm)});
      continue;
    }
    out.push_back(
        {fmt::format("{}, grad_input", name), repeats, gemm.flops(), bytes, grad_input_seconds(hardware, job, gemm)});
    out.push_back({fmt::format("{}, grad_weight", name), repeats, gemm.flops(),
                   bytes + kAccumulateBytes * gemm.inner * gemm.columns, grad_weight_seconds(hardware, job, gemm)});
  }
  PassTimes attention, streaming;
  add_attention(hardware, job, sizes, attention);
  add_streaming(hardware, job, sizes, streaming);
  const bool fused = job.attention == AttentionKind::kFlash;
  const double pairs = 4 * sizes.tokens * static_cast<double>(job.seq_len) * sizes.scores;
  // Fused attention computes the pairs that the mask leaves, backward five GEMMs of them where forward has two.
  const double flops = fused ? (forward ? 1 : 2.5) * computed_share(job) * pairs : (forward ? 1 : 2) * pairs;
  // It reads queries, keys and values and writes its output; backward reads these and the output's gradient and writes
  // three. Unfused also moves the scores.
  double bytes = (forward ? 1 : 2) * 2 * sizes.tokens * (2 * sizes.queries + 2 * sizes.keys);
  if (!fused)
    bytes += (forward ? 8 : 16) * sizes.tokens * static_cast<double>(job.seq_len) * sizes.queries /
             static_cast<double>(job.shape.head_dim);
  out.push_back({"attention", 1, flops, bytes, forward ? attention.forward.attention : attention.backward.attention});
  const double seconds = forward ? streaming.forward.streaming : streaming.backward.streaming;
  // A few operations for each number that is read or written: far left of every ridge.
  const double moved = seconds * hardware.memory_bandwidth() * hardware.device.efficiency.memory;
  out.push_back({"norms, activations, residuals", 1, moved / 2, moved, seconds});
  const PassTimes head = logits_times(hardware, job, config);
  const double columns = static_cast<double>(job.shape.vocab_size) / config.layout.tp;
  const GemmShape logits{sizes.tokens, columns, sizes.hidden_size};
  const double head_bytes = 2 * logits.elements();
  if (forward) {
    out.push_back({"head", 1.0 / layers_of(job.shape), logits.flops(), head_bytes, head.forward.matmul});
  } else {
    out.push_back({"head", 1.0 / layers_of(job.shape), 2 * logits.flops(),
                   2 * head_bytes + kAccumulateBytes * columns * sizes.hidden_size, head.backward.matmul});
  }
  return out;
}

std::vector<CollectiveTime> layer_collectives(const Hardware& hardware, const Job& job, const ParallelConfig& config,
                                              Pass pass) {
  const Sizes sizes(job, config);
  PassTimes attention;
  add_attention(hardware, job, sizes, attention);
  const Parts& parts = pass == Pass::kForward ? attention.forward : attention.backward;
  std::vector<CollectiveTime> out = collectives(hardware, job, config, sizes, pass, parts.attention);
  for (CollectiveTime& one : head_collectives(hardware, job, config, sizes, pass)) out.push_back(std::move(one));
  return out;
}

PassTimes embedding_times(const Hardware& hardware, const Job& job, const ParallelConfig& config) {
  const Sizes sizes(job, config);
  PassTimes times;
  const double bytes = sizes.tokens * sizes.hidden_size * sizes.sequence_share;
  times.forward.streaming = cost::stream_seconds(hardware, 3 * sizes.bytes * bytes, 2);
  times.backward.streaming = cost::stream_seconds(hardware, 5 * sizes.bytes * bytes, 2);
  return times;
}

PassTimes head_times(const Hardware& hardware, const Job& job, const ParallelConfig& config) {
  PassTimes times = logits_times(hardware, job, config);
  const auto depths = static_cast<double>(job.shape.mtp_depth);
  if (depths == 0) return times;
  // A module of multi-token prediction: a projection of two inputs, a block, and the head again.
  PassTimes module = layer_times(hardware, job, config);
  const Sizes sizes(job, config);
  const double projection = cost::matmul_seconds(
      hardware, job.arithmetic(), {sizes.tokens * sizes.sequence_share, sizes.hidden_size, 2 * sizes.hidden_size});
  module.forward.matmul += projection;
  module.backward.matmul += 2 * projection;
  module.backward_weight += projection;
  module.forward += times.forward;
  module.backward += times.backward;
  times.forward += depths * module.forward;
  times.backward += depths * module.backward;
  times.backward_weight += depths * module.backward_weight;
  return times;
}

}  // namespace trireme::plan
