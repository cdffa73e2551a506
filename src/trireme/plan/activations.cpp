#include "trireme/plan/activations.h"

#include <algorithm>
#include <cmath>

#include "trireme/plan/stages.h"

namespace trireme::plan {
namespace {

using spec::ContextKind;
using spec::RecomputeKind;

/// Numbers of one token in attention, on one rank.
struct RankWidths {
  double queries, keys, values, attended;
  double heads, kv_heads;

  RankWidths(const Job& job, const ParallelConfig& config) {
    const spec::ModelShape& shape = job.shape;
    const spec::AttentionWidths all = spec::attention_widths(shape);
    const double tp = config.layout.tp;
    heads = static_cast<double>(shape.num_heads) / tp;
    kv_heads = std::max(1.0, static_cast<double>(shape.num_kv_heads) / tp);  // fewer than ranks: each keeps a whole one
    queries = static_cast<double>(all.queries) / tp;
    attended = static_cast<double>(all.attended) / tp;
    keys = kv_heads * static_cast<double>(all.keys) / static_cast<double>(shape.num_kv_heads);
    values = kv_heads * static_cast<double>(all.values) / static_cast<double>(shape.num_kv_heads);
  }
};

/// What attention saves of a token before its core: what entered its matrices, and of latents also what entered their
/// norms. `between` and `entered`: shares of the tokens outside of sharded matrices and in front of them.
double attention_inputs(const Job& job, const ParallelConfig& config, double between, double entered) {
  const spec::Mla& mla = job.shape.mla;
  const auto width = static_cast<double>(job.shape.hidden_size);
  const bool remade = config.recompute_norms && job.shape.norm_first;
  if (!mla.used()) return remade && entered == between ? 0 : width * entered;
  const double latents = static_cast<double>(mla.q_lora_rank + mla.kv_lora_rank) * (between + entered);
  const bool gathered = mla.q_lora_rank == 0 && entered != between;  // queries come from x, which is saved twice then
  return latents + (remade ? 0 : width * between) + (gathered ? width * entered : 0);
}

/// Numbers of one token in a layer with experts, on one rank. Megatron's are padded to the capacity and sharded over
/// tp, with the copies of tokens that were sent to them and what came back. Ours have no more rows than an arena
/// holds, since what exceeds it is computed again; of expert-parallel ranks the rows that came; and the logits of
/// whole sequences, in full precision.
double expert_numbers(const Job& job, const ParallelConfig& config, double each, double between) {
  const spec::ModelShape& shape = job.shape;
  const spec::Experts& experts = shape.experts;
  const spec::LayoutConfig& layout = config.layout;
  const auto top_k = static_cast<double>(experts.top_k), inner = static_cast<double>(spec::expert_ffn_size(shape)),
             width = static_cast<double>(shape.hidden_size), shared = static_cast<double>(spec::shared_ffn_size(shape));
  if (job.software == Software::kMegatron) {
    const double padded = std::max(1.0, experts.capacity_factor) * top_k;
    return (each * (inner * padded + shared) + 2 * padded * width) / layout.tp;
  }
  const double rows = top_k * between * (layout.ep > 1 ? experts.arena : 1);
  const double logits =
      layout.cp * static_cast<double>(spec::router_outputs(experts)) * job.sum_bytes() / job.compute_bytes();
  const bool gate = experts.shared_expert_gate && shared > 0;
  return rows * ((shape.gated ? 2 : 1) * inner + (layout.ep > 1 ? width : 0)) + each * shared / layout.tp + logits +
         (gate ? width * between : 0);
}

/// Numbers of one token in the MLP's middle, on one rank: `each` for every column; in the mean of all layers.
double mlp_numbers(const Job& job, const ParallelConfig& config, double each) {
  const spec::ModelShape& shape = job.shape;
  const double mixed = static_cast<double>(spec::expert_layers(shape)) / layers_of(shape);
  const double dense = (1 - mixed) * each * static_cast<double>(shape.ffn_size) / config.layout.tp;
  if (mixed == 0) return dense;
  const double between = config.layout.sequence_parallel ? 1.0 / config.layout.tp : 1;
  return dense + mixed * expert_numbers(job, config, each, between);
}

/// What ulysses holds beside: the output of all tokens and some heads beside that of some tokens and all heads, and
/// copied heads of keys.
double ulysses_numbers(const ParallelConfig& config, const RankWidths& widths) {
  const spec::LayoutConfig& layout = config.layout;
  const int inner = layout.cp_kind == ContextKind::kUlysses ? layout.cp : layout.cp_ulysses;
  if (layout.cp == 1 || inner == 1) return 0;
  const double keys = std::fmod(widths.kv_heads, inner) == 0 ? widths.kv_heads : inner;
  return widths.attended + (keys / widths.kv_heads - 1) * (widths.keys + widths.values);
}

/// Of a norm, of one token.
double statistics_bytes(const Job& job, double between) {
  return (job.shape.norm == spec::NormKind::kLayer ? 2 : 1) * job.sum_bytes() * between;
}

/// Blocks of a segment where about the square root of all inputs is saved (Chen et al. 2016).
int segment_of(int layers) {
  return std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(layers)))));
}

/// Saved inputs where halves are segments in segments (nn/recompute_plan.h): of the first half, the first half of the
/// rest, and so on.
int recursive_inputs(int layers) {
  int inputs = 1;
  for (; layers > 1; layers -= layers / 2) ++inputs;
  return inputs;
}
/// Forwards that then run again, of all layers.
double recursive_forwards(int layers) {
  if (layers <= 1) return 0;
  const int half = layers / 2;
  return half + recursive_forwards(half) + recursive_forwards(layers - half);
}

/// Blocks of the model, or of one chunk of a pipeline: what a plan of a chain is made for.
int planned_blocks(const Job& job, const ParallelConfig& config) {
  const int layers = layers_of(job.shape);
  if (config.layout.pp == 1) return layers;
  const int chunks = stage_table(config, config.micros(job.batch), 1).chunks();
  return std::max(1, (layers + chunks - 1) / chunks);
}

}  // namespace

ActivationBytes activation_bytes(const Job& job, const ParallelConfig& config) {
  const spec::ModelShape& shape = job.shape;
  const spec::LayoutConfig& layout = config.layout;
  const bool megatron = job.software == Software::kMegatron, dropout = shape.dropout > 0;
  const double compute = job.compute_bytes(), sum = job.sum_bytes(), tp = layout.tp;
  const auto width = static_cast<double>(shape.hidden_size);
  const RankWidths widths(job, config);

  ActivationBytes out;
  out.tokens = static_cast<double>(config.micro_batch_size) * static_cast<double>(job.seq_len) / layout.cp;
  out.between = layout.sequence_parallel ? 1 / tp : 1;
  const double entered = layout.sp_save_gathered ? 1 : out.between;
  // Two norms with their inputs and outputs; gathered inputs of matrices are no norms' outputs any more.
  const bool remade = config.recompute_norms && shape.norm_first && entered == out.between;
  double numbers = 2 * width * out.between + (remade ? 0 : width * entered);
  // Of latent attention selective recomputation begins at the latents, as they are before ranks gather them: of heads
  // nothing is saved.
  const bool from_latents = !megatron && shape.mla.used() && config.recompute == RecomputeKind::kSelective;
  numbers += attention_inputs(job, config, out.between, from_latents ? out.between : entered);
  // What attention's core gives, and what ranks traded for it, selective recomputation computes again.
  const bool core_again = !megatron && config.recompute == RecomputeKind::kSelective;
  if (from_latents) {
    numbers += static_cast<double>(shape.mla.qk_rope_head_dim);
  } else {
    numbers += widths.queries + widths.keys + widths.values;
    if (!core_again) numbers += widths.attended + ulysses_numbers(config, widths);
  }
  numbers += mlp_numbers(job, config, (shape.gated ? 2 : 1) + (megatron || config.save_mlp_activations ? 1 : 0));
  const double statistics = megatron ? 0 : statistics_bytes(job, out.between);
  double layer = numbers * compute + 2 * statistics;
  if (!megatron && shape.mla.used()) layer += (shape.mla.q_lora_rank > 0 ? 2 : 1) * sum * out.between;
  double scores = 0;
  if (megatron) {
    if (dropout) layer += 2 * width * out.between * compute / 2;  // masks, a byte a number
    // Softmax, its mask and what dropout makes of it.
    if (job.attention == AttentionKind::kUnfused)
      scores = static_cast<double>(shape.num_heads) * static_cast<double>(job.seq_len) * (dropout ? 5 : 2) * compute /
               2 / tp;
  } else {
    if (!core_again) layer += widths.heads * sum;  // attention's log-sum-exps
  }
  const double input = width * out.between * compute / (config.partition_activations ? tp : 1);
  const int layers = layers_of(shape);
  if (!megatron && shape.num_encoder_layers > 0)  // in the mean of all layers
    layer +=
        cross_attention_bytes(job, config, job.seq_len) / out.tokens * static_cast<double>(shape.num_layers) / layers;
  out.whole_layer = out.tokens * (layer + scores);
  switch (config.recompute) {
    case RecomputeKind::kNone:
      out.layer = out.whole_layer;
      break;
    case RecomputeKind::kSelective:
      out.layer = out.tokens * layer;
      break;
    case RecomputeKind::kFull:
      out.layer = out.tokens * input;
      out.recomputed_layers = 1;
      break;
    case RecomputeKind::kEvery: {
      const double whole = 1.0 / static_cast<double>(std::max<std::int64_t>(1, config.recompute_every));
      out.layer = whole * out.whole_layer + (1 - whole) * out.tokens * input;
      out.recomputed_layers = 1;
      break;
    }
    case RecomputeKind::kSqrt:
      out.recomputed_layers = segment_of(layers);
      out.layer = out.tokens * input * std::ceil(static_cast<double>(layers) / out.recomputed_layers) / layers;
      break;
    case RecomputeKind::kStage:  // when its chunk runs again; until then its input is saved (plan/stages.h)
      out.layer = out.whole_layer;
      break;
    case RecomputeKind::kRecursive: {
      const int blocks = planned_blocks(job, config);
      const double inputs = out.tokens * input * recursive_inputs(blocks);
      out.recomputed_layers = 1;
      if (config.layout.pp == 1) {
        out.layer = inputs / blocks;
      } else {  // the last block of a chunk saves, of every micro-batch in flight
        out.layer = (inputs - out.tokens * input + out.whole_layer) / blocks;
      }
      break;
    }
    case RecomputeKind::kBudget: {
      const double allowed = config.recompute_gb.value_or(0) * 1e9 * config.layout.pp / layers;  // of a rank's layers
      out.layer = std::clamp(allowed, std::min(out.tokens * input, out.whole_layer), out.whole_layer);
      out.recomputed_layers = out.layer < out.whole_layer ? 1 : 0;
      break;
    }
  }
  out.embedding = megatron ? (dropout ? out.tokens * width : 0) : out.tokens * 8;
  out.head = megatron ? 0 : out.tokens * (2 * width * out.between * compute + statistics);
  // Of each further token that is predicted: a block, its token ids, the inputs of three norms, of the projection and
  // of the head.
  const double module = config.recompute == RecomputeKind::kFull ? out.tokens * input : out.tokens * (layer + scores);
  out.head += static_cast<double>(shape.mtp_depth) *
              (module + out.tokens * (6 * width * out.between * compute + 3 * statistics + 8));
  out.hidden = out.tokens * width * compute;
  out.mlp_middle = out.tokens * mlp_numbers(job, config, 1) * compute;
  return out;
}

double cross_attention_bytes(const Job& job, const ParallelConfig& config, std::int64_t source_tokens) {
  const spec::LayoutConfig& layout = config.layout;
  const RankWidths widths(job, config);
  const auto width = static_cast<double>(job.shape.hidden_size);
  const double between = layout.sequence_parallel ? 1.0 / layout.tp : 1;
  const double entered = layout.sp_save_gathered ? 1 : between;
  const bool remade = config.recompute_norms && job.shape.norm_first && entered == between;
  const double of_query = width * between + (remade ? 0 : width * entered) + widths.queries + widths.attended;
  const double rows = static_cast<double>(config.micro_batch_size) / layout.cp;
  const double queries = rows * static_cast<double>(job.seq_len), sources = rows * static_cast<double>(source_tokens);
  return queries * (of_query * job.compute_bytes() + statistics_bytes(job, between) + widths.heads * job.sum_bytes()) +
         sources * (widths.keys + widths.values) * job.compute_bytes();
}

double recomputed_forwards(const Job& job, const ParallelConfig& config) {
  switch (config.recompute) {
    case RecomputeKind::kNone:
    case RecomputeKind::kSelective:
      return 0;
    case RecomputeKind::kEvery:
      return 1 - 1.0 / static_cast<double>(config.recompute_every);
    case RecomputeKind::kFull:
    case RecomputeKind::kSqrt:
    case RecomputeKind::kStage:
      return 1;
    case RecomputeKind::kRecursive: {
      const int blocks = planned_blocks(job, config);
      return recursive_forwards(blocks) / blocks;
    }
    case RecomputeKind::kBudget: {
      ParallelConfig full = config;
      full.recompute = RecomputeKind::kFull;
      const ActivationBytes saved = activation_bytes(job, config);
      const double input = activation_bytes(job, full).layer;
      return saved.whole_layer > input ? (saved.whole_layer - saved.layer) / (saved.whole_layer - input) : 0;
    }
  }
  return 0;
}

}  // namespace trireme::plan
