#include "trireme/spec/model_shape.h"

#include <algorithm>
#include <cmath>

namespace trireme::spec {
namespace {

constexpr Named<Family> kFamilies[] = {
    {"gpt2", Family::kGpt2},       {"llama", Family::kLlama},
    {"mistral", Family::kMistral}, {"qwen2", Family::kQwen2},
    {"qwen3", Family::kQwen3},     {"transformer", Family::kTransformer},
    {"bert", Family::kBert},       {"deepseek_v3", Family::kDeepseekV3},
    {"t5", Family::kT5},
};
constexpr Named<NormKind> kNorms[] = {{"layer", NormKind::kLayer}, {"rms", NormKind::kRms}};
constexpr Named<Activation> kActivations[] = {{"relu", Activation::kRelu},
                                              {"gelu", Activation::kGelu},
                                              {"gelu-tanh", Activation::kGeluTanh},
                                              {"silu", Activation::kSilu}};
constexpr Named<PositionKind> kPositions[] = {{"learned", PositionKind::kLearned},
                                              {"sinusoidal", PositionKind::kSinusoidal},
                                              {"rotary", PositionKind::kRotary},
                                              {"relative", PositionKind::kRelative}};
constexpr Named<RotaryScaling> kRotaryScalings[] = {{"none", RotaryScaling::kNone},
                                                    {"linear", RotaryScaling::kLinear},
                                                    {"dynamic", RotaryScaling::kDynamic},
                                                    {"llama3", RotaryScaling::kLlama3},
                                                    {"yarn", RotaryScaling::kYarn}};
constexpr Named<WindowLayers> kWindowLayers[] = {
    {"all", WindowLayers::kAll}, {"odd", WindowLayers::kOdd}, {"from", WindowLayers::kFrom}};

/// Llama 2 and 3, and what Mistral and Qwen changed of it.
ModelShape llama_shape() {
  ModelShape shape{.family = Family::kLlama,
                   .vocab_size = 128256,
                   .max_seq_len = 8192,
                   .hidden_size = 4096,
                   .num_layers = 32,
                   .num_heads = 32,
                   .num_kv_heads = 8,
                   .head_dim = 128,
                   .ffn_size = 14336};
  shape.norm = NormKind::kRms;
  shape.epsilon = 1e-5;
  shape.activation = Activation::kSilu;
  shape.gated = true;
  shape.attention_bias = shape.output_bias = shape.mlp_bias = false;
  shape.position_kind = PositionKind::kRotary;
  shape.rotary.base = 500000;
  shape.tied = false;
  shape.scaled_residual_init = false;
  return shape;
}

ModelShape qwen_shape(Family family) {
  ModelShape shape = llama_shape();
  shape.family = family;
  shape.vocab_size = 151936;
  shape.max_seq_len = family == Family::kQwen2 ? 32768 : 40960;
  shape.epsilon = 1e-6;
  shape.rotary.base = 1000000;
  shape.tied = true;
  shape.attention_bias = family == Family::kQwen2;
  shape.query_key_norm = family == Family::kQwen3;
  if (family == Family::kQwen2) {  // 0.5B
    shape.hidden_size = 896, shape.num_layers = 24, shape.num_heads = 14, shape.num_kv_heads = 2, shape.head_dim = 64;
    shape.ffn_size = 4864;
  } else {  // 0.6B
    shape.hidden_size = 1024, shape.num_layers = 28, shape.num_heads = 16, shape.num_kv_heads = 8, shape.head_dim = 128;
    shape.ffn_size = 3072;
  }
  return shape;
}

ModelShape transformer_shape() {
  ModelShape shape{.family = Family::kTransformer,
                   .vocab_size = 37000,
                   .max_seq_len = 512,
                   .hidden_size = 512,
                   .num_layers = 6,
                   .num_encoder_layers = 6,
                   .num_heads = 8,
                   .num_kv_heads = 8,
                   .head_dim = 64,
                   .ffn_size = 2048};
  shape.norm_first = false;
  shape.activation = Activation::kRelu;
  shape.attention_bias = shape.output_bias = false;
  shape.position_kind = PositionKind::kSinusoidal;
  shape.embedding_scale = true;
  shape.dropout = 0.1;
  shape.label_smoothing = 0.1;
  shape.scaled_residual_init = false;
  return shape;
}

/// T5 1.0 small; Switch-Base differs in sizes and has experts.
ModelShape t5_shape() {
  ModelShape shape{.family = Family::kT5,
                   .vocab_size = 32128,
                   .max_seq_len = 512,
                   .hidden_size = 512,
                   .num_layers = 6,
                   .num_encoder_layers = 6,
                   .num_heads = 8,
                   .num_kv_heads = 8,
                   .head_dim = 64,
                   .ffn_size = 2048};
  shape.norm = NormKind::kRms;
  shape.epsilon = 1e-6;
  shape.activation = Activation::kRelu;
  shape.attention_bias = shape.output_bias = shape.mlp_bias = false;
  shape.position_kind = PositionKind::kRelative;
  shape.dropout = 0.1;
  shape.scaled_residual_init = false;
  return shape;
}

ModelShape bert_shape() {
  ModelShape shape{.family = Family::kBert, .vocab_size = 30522, .max_seq_len = 512, .segments = 2};
  shape.epsilon = 1e-12;
  shape.norm_first = false;
  shape.activation = Activation::kGelu;
  shape.causal = false;
  shape.dropout = 0.1;
  shape.scaled_residual_init = false;
  return shape;
}

ModelShape deepseek_shape() {
  ModelShape shape = llama_shape();
  shape.family = Family::kDeepseekV3;
  shape.vocab_size = 129280;
  shape.max_seq_len = 163840;
  shape.hidden_size = 7168, shape.num_layers = 61, shape.ffn_size = 18432;
  shape.num_heads = shape.num_kv_heads = 128, shape.head_dim = 128;
  shape.mla = {.q_lora_rank = 1536, .kv_lora_rank = 512, .qk_rope_head_dim = 64, .v_head_dim = 128};
  shape.epsilon = 1e-6;
  shape.rotary = {.base = 10000, .scaling = RotaryScaling::kYarn, .factor = 40, .original_positions = 4096};
  shape.rotary.mscale = shape.rotary.mscale_all_dim = 1;
  return shape;
}

std::int64_t norm_parameters(const ModelShape& shape) {
  return shape.norm == NormKind::kLayer ? 2 * shape.hidden_size : shape.hidden_size;
}

std::int64_t attention_parameters(const ModelShape& shape) {
  const AttentionWidths widths = attention_widths(shape);
  std::int64_t count = attention_weights(shape);
  if (shape.attention_bias) count += widths.queries + widths.keys + widths.values;
  if (shape.output_bias) count += shape.hidden_size;
  if (shape.query_key_norm) count += 2 * shape.head_dim;
  if (shape.mla.used()) count += shape.mla.q_lora_rank + shape.mla.kv_lora_rank;  // norms of the latents
  return count;
}

std::int64_t mlp_parameters(const ModelShape& shape) {
  const std::int64_t into = shape.gated ? 2 * shape.ffn_size : shape.ffn_size;
  return shape.hidden_size * into + shape.ffn_size * shape.hidden_size +
         (shape.mlp_bias ? into + shape.hidden_size : 0);
}

/// One expert's.
std::int64_t expert_parameters(const ModelShape& shape) {
  return shape.hidden_size * expert_ffn_size(shape) * (shape.gated ? 3 : 2);
}

/// Beside the routed experts: shared ones, the router, its thresholds.
std::int64_t beside_experts(const ModelShape& shape) {
  const Experts& experts = shape.experts;
  std::int64_t count =
      shape.hidden_size * shared_ffn_size(shape) * (shape.gated ? 3 : 2) + shape.hidden_size * router_outputs(experts);
  if (experts.shared_expert_gate && experts.num_shared_experts > 0) count += shape.hidden_size;
  if (experts.router == RouterKind::kStrictBalance) count += experts.num_experts;
  return count;
}

/// What takes a module's input and leads to the head: two norms, the projection of both, a norm.
std::int64_t mtp_joints(const ModelShape& shape) {
  return 2 * shape.hidden_size * shape.hidden_size + 3 * norm_parameters(shape);
}

/// Of a stack of so many layers.
std::int64_t expert_layers_below(const Experts& experts, std::int64_t layers) {
  if (!experts.used()) return 0;
  return std::max<std::int64_t>(0, layers - experts.first_dense_layers) / experts.every;
}

/// How many (query, key) pairs a mask lets through.
double visible_pairs(std::int64_t length, bool causal, std::int64_t window) {
  const auto n = static_cast<double>(length);
  if (window <= 0 || window >= length) return causal ? n * (n + 1) / 2 : n * n;
  const auto w = static_cast<double>(window);
  const double back = w * (w + 1) / 2 + (n - w) * w;  // itself and up to w - 1 before
  return causal ? back : 2 * back - n;
}

/// 0.1 m ln(factor) + 1, as YaRN's authors fitted it (Peng et al. 2023, equation 22).
double yarn_mscale(double factor, double m) { return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1; }

}  // namespace

std::span<const Named<Family>> enum_names(std::type_identity<Family>) { return kFamilies; }
std::span<const Named<NormKind>> enum_names(std::type_identity<NormKind>) { return kNorms; }
std::span<const Named<Activation>> enum_names(std::type_identity<Activation>) { return kActivations; }
std::span<const Named<PositionKind>> enum_names(std::type_identity<PositionKind>) { return kPositions; }
std::span<const Named<RotaryScaling>> enum_names(std::type_identity<RotaryScaling>) { return kRotaryScalings; }
std::span<const Named<WindowLayers>> enum_names(std::type_identity<WindowLayers>) { return kWindowLayers; }

ModelShape family_shape(Family family) {
  switch (family) {
    case Family::kGpt2:
      return {};
    case Family::kLlama:
      return llama_shape();
    case Family::kMistral: {
      ModelShape shape = llama_shape();
      shape.family = Family::kMistral;
      shape.vocab_size = 32000;
      shape.max_seq_len = 32768;
      shape.rotary.base = 10000;
      shape.window = 4096;
      return shape;
    }
    case Family::kQwen2:
    case Family::kQwen3:
      return qwen_shape(family);
    case Family::kTransformer:
      return transformer_shape();
    case Family::kBert:
      return bert_shape();
    case Family::kDeepseekV3:
      return deepseek_shape();
    case Family::kT5:
      return t5_shape();
  }
  return {};
}

bool has_encoder(Family family) { return family == Family::kTransformer || family == Family::kT5; }

double attention_scale(const ModelShape& shape) {
  if (shape.family == Family::kT5) return 1;  // its initialisation has the factor instead
  const std::int64_t head_dim = shape.head_dim + (shape.mla.used() ? shape.mla.qk_rope_head_dim : 0);
  return rotary_score_factor(shape.rotary) * mup_of(shape).attention_score / std::sqrt(static_cast<double>(head_dim));
}

double head_scale(const ModelShape& shape) {
  const bool scaled = shape.family == Family::kT5 && shape.tied;
  return mup_of(shape).output * (scaled ? 1 / std::sqrt(static_cast<double>(shape.hidden_size)) : 1);
}

Mup mup_of(const ModelShape& shape) {
  Mup mup;
  if (shape.mup_base_hidden_size == 0) return mup;
  mup.width = static_cast<double>(shape.hidden_size) / static_cast<double>(shape.mup_base_hidden_size);
  mup.matrix_init = 1 / std::sqrt(mup.width);
  mup.matrix_rate = mup.output = 1 / mup.width;
  if (shape.mup_base_head_dim > 0)
    mup.attention_score = std::sqrt(static_cast<double>(shape.mup_base_head_dim) / static_cast<double>(shape.head_dim));
  return mup;
}

std::int64_t window_of(const ModelShape& shape, std::int64_t layer) {
  switch (shape.window_layers) {
    case WindowLayers::kAll:
      return shape.window;
    case WindowLayers::kOdd:
      return layer % 2 == 1 ? shape.window : 0;
    case WindowLayers::kFrom:
      return layer >= shape.window_from ? shape.window : 0;
  }
  return 0;
}

bool has_experts(const ModelShape& shape, std::int64_t layer) {
  const Experts& experts = shape.experts;
  if (!experts.used() || layer < experts.first_dense_layers) return false;
  return (layer - experts.first_dense_layers + 1) % experts.every == 0;
}

std::int64_t expert_layers(const ModelShape& shape) {
  return expert_layers_below(shape.experts, shape.num_layers) +
         expert_layers_below(shape.experts, shape.num_encoder_layers);
}

std::int64_t expert_ffn_size(const ModelShape& shape) {
  return shape.experts.ffn_size > 0 ? shape.experts.ffn_size : shape.ffn_size;
}
std::int64_t shared_ffn_size(const ModelShape& shape) {
  return shape.experts.num_shared_experts * expert_ffn_size(shape);
}

std::int64_t router_outputs(const Experts& experts) {
  if (experts.router != RouterKind::kNoisyTopK) return experts.num_experts;
  return 2 * (experts.num_experts + (experts.num_groups > 1 ? experts.num_groups : 0));
}

double yarn_magnitude(const Rotary& rotary) {
  if (rotary.attention_factor > 0) return rotary.attention_factor;
  if (rotary.mscale > 0 && rotary.mscale_all_dim > 0)
    return yarn_mscale(rotary.factor, rotary.mscale) / yarn_mscale(rotary.factor, rotary.mscale_all_dim);
  return yarn_mscale(rotary.factor, 1);
}

double rotary_score_factor(const Rotary& rotary) {
  if (rotary.scaling != RotaryScaling::kYarn || rotary.mscale_all_dim == 0) return 1;
  const double mscale = yarn_mscale(rotary.factor, rotary.mscale_all_dim);
  return mscale * mscale;
}

AttentionWidths attention_widths(const ModelShape& shape) {
  const std::int64_t heads = shape.num_heads;
  if (shape.mla.used()) {
    const std::int64_t keys = heads * (shape.head_dim + shape.mla.qk_rope_head_dim);
    return {.queries = keys,
            .keys = keys,
            .values = heads * shape.mla.v_head_dim,
            .attended = heads * shape.mla.v_head_dim};
  }
  const std::int64_t keys = shape.num_kv_heads * shape.head_dim;
  return {.queries = heads * shape.head_dim, .keys = keys, .values = keys, .attended = heads * shape.head_dim};
}

std::int64_t attention_weights(const ModelShape& shape) {
  const AttentionWidths widths = attention_widths(shape);
  const std::int64_t out = widths.attended * shape.hidden_size;
  if (!shape.mla.used()) return shape.hidden_size * (widths.queries + widths.keys + widths.values) + out;
  const Mla& mla = shape.mla;
  const std::int64_t queries =
      mla.q_lora_rank > 0 ? mla.q_lora_rank * (shape.hidden_size + widths.queries) : shape.hidden_size * widths.queries;
  return queries + shape.hidden_size * (mla.kv_lora_rank + mla.qk_rope_head_dim) +
         mla.kv_lora_rank * (shape.num_heads * shape.head_dim + widths.values) + out;
}

ParameterCount count_parameters(const ModelShape& shape) {
  ParameterCount count;
  count.embedding = shape.vocab_size * shape.hidden_size + shape.segments * shape.hidden_size;
  if (shape.position_kind == PositionKind::kLearned) count.embedding += shape.max_seq_len * shape.hidden_size;
  if (shape.position_kind == PositionKind::kRelative)  // one table a stack
    count.embedding += 2 * shape.relative_attention_num_buckets * shape.num_heads;
  const std::int64_t block = attention_parameters(shape) + mlp_parameters(shape) + 2 * norm_parameters(shape);
  // A decoder beside an encoder attends twice.
  const std::int64_t cross = shape.num_encoder_layers > 0 ? attention_parameters(shape) + norm_parameters(shape) : 0;
  count.layers = shape.num_layers * (block + cross) + shape.num_encoder_layers * block;
  count.mtp = shape.mtp_depth * (block + mtp_joints(shape));
  if (shape.experts.used()) {
    const std::int64_t each = expert_parameters(shape), all = shape.experts.num_experts * each,
                       others = beside_experts(shape) - mlp_parameters(shape), mixed = expert_layers(shape);
    count.experts = mixed * all;
    count.active_experts = mixed * shape.experts.top_k * each;
    count.layers += count.experts + mixed * others;
    for (std::int64_t depth = 0; depth < shape.mtp_depth; ++depth) {
      if (!has_experts(shape, shape.num_layers + depth)) continue;
      count.mtp_experts += all;
      count.mtp += all + others;
    }
  }
  if (shape.norm_first) count.head += norm_parameters(shape);
  if (shape.family == Family::kT5) count.layers += norm_parameters(shape);  // behind the encoder
  if (!shape.tied) count.head += shape.vocab_size * shape.hidden_size;
  if (shape.family == Family::kBert) {
    count.embedding += norm_parameters(shape);
    count.head += shape.hidden_size * shape.hidden_size + shape.hidden_size + norm_parameters(shape) + shape.vocab_size;
  }
  return count;
}

FlopCount count_flops(const ModelShape& shape, std::int64_t length, std::int64_t source_length) {
  const auto tokens = static_cast<double>(length), sources = static_cast<double>(source_length);
  const auto hidden = static_cast<double>(shape.hidden_size);
  const AttentionWidths widths = attention_widths(shape);
  const double pair = 2 * static_cast<double>(widths.queries + widths.attended);  // scores and weighted values
  const double mlp = hidden * static_cast<double>(shape.ffn_size) * (shape.gated ? 3 : 2);
  const auto attention = static_cast<double>(attention_weights(shape));
  const auto layers = static_cast<double>(shape.num_layers), encoders = static_cast<double>(shape.num_encoder_layers);

  FlopCount count;
  count.projections = 2 * (layers * tokens + encoders * sources) * (attention + mlp);
  // What a token meets in place of an MLP: its experts, the shared ones and the router.
  double mixed = 0;
  if (const Experts& experts = shape.experts; experts.used()) {
    const auto visited = static_cast<double>(experts.top_k + experts.num_shared_experts);
    mixed = hidden * (visited * static_cast<double>(expert_ffn_size(shape)) * (shape.gated ? 3 : 2) +
                      static_cast<double>(router_outputs(experts))) -
            mlp;
    count.projections += 2 * mixed *
                         (static_cast<double>(expert_layers_below(experts, shape.num_layers)) * tokens +
                          static_cast<double>(expert_layers_below(experts, shape.num_encoder_layers)) * sources);
  }
  if (shape.num_encoder_layers > 0) {
    const double square = 2 * hidden * static_cast<double>(widths.queries),
                 key_values = 2 * hidden * static_cast<double>(widths.keys);
    count.projections += 2 * layers * (tokens * square + sources * key_values);
  }
  const double sparse =
      shape.sparse_attention.used()
          ? sparse_pairs(sparse_lists(shape.sparse_attention, shape.num_heads, length, shape.causal), shape.causal)
          : 0;
  const auto of_layer = [&](std::int64_t layer) {
    if (shape.sparse_attention.used()) return pair * sparse;
    return pair * visible_pairs(length, shape.causal, window_of(shape, layer));
  };
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    count.attention += of_layer(layer);
    if (shape.num_encoder_layers > 0) count.attention += pair * tokens * sources;
  }
  count.attention += encoders * pair * sources * sources;
  count.head = 2 * tokens * hidden * static_cast<double>(shape.vocab_size);
  if (shape.family == Family::kBert) count.head += 2 * tokens * hidden * hidden;
  for (std::int64_t depth = 0; depth < shape.mtp_depth; ++depth) {
    const double middle = mlp + (has_experts(shape, shape.num_layers + depth) ? mixed : 0);
    count.mtp +=
        2 * tokens * (attention + middle + 2 * hidden * hidden) + of_layer(shape.num_layers + depth) + count.head;
  }
  return count;
}

}  // namespace trireme::spec
