#include "trireme/spec/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"

namespace trireme::spec {
namespace {

/// visit(member of the section, member of the shape) for each pair.
template <typename Section, typename Shape, typename Visit>
void visit_pairs(Section& section, Shape& shape, const Visit& visit) {
  visit(section.vocab_size, shape.vocab_size);
  visit(section.max_seq_len, shape.max_seq_len);
  visit(section.hidden_size, shape.hidden_size);
  visit(section.num_layers, shape.num_layers);
  visit(section.num_encoder_layers, shape.num_encoder_layers);
  visit(section.num_heads, shape.num_heads);
  visit(section.num_kv_heads, shape.num_kv_heads);
  visit(section.head_dim, shape.head_dim);
  visit(section.ffn_size, shape.ffn_size);
  visit(section.segments, shape.segments);
  visit(section.norm, shape.norm);
  visit(section.epsilon, shape.epsilon);
  visit(section.norm_first, shape.norm_first);
  visit(section.activation, shape.activation);
  visit(section.gated, shape.gated);
  visit(section.attention_bias, shape.attention_bias);
  visit(section.output_bias, shape.output_bias);
  visit(section.mlp_bias, shape.mlp_bias);
  visit(section.query_key_norm, shape.query_key_norm);
  visit(section.causal, shape.causal);
  visit(section.position_kind, shape.position_kind);
  visit(section.rotary.base, shape.rotary.base);
  visit(section.rotary.scaling, shape.rotary.scaling);
  visit(section.rotary.factor, shape.rotary.factor);
  visit(section.rotary.low_frequency, shape.rotary.low_frequency);
  visit(section.rotary.high_frequency, shape.rotary.high_frequency);
  visit(section.rotary.original_positions, shape.rotary.original_positions);
  visit(section.rotary.beta_fast, shape.rotary.beta_fast);
  visit(section.rotary.beta_slow, shape.rotary.beta_slow);
  visit(section.rotary.attention_factor, shape.rotary.attention_factor);
  visit(section.rotary.mscale, shape.rotary.mscale);
  visit(section.rotary.mscale_all_dim, shape.rotary.mscale_all_dim);
  visit(section.rotary.truncate, shape.rotary.truncate);
  visit(section.relative_attention_num_buckets, shape.relative_attention_num_buckets);
  visit(section.relative_attention_max_distance, shape.relative_attention_max_distance);
  visit(section.mla.q_lora_rank, shape.mla.q_lora_rank);
  visit(section.mla.kv_lora_rank, shape.mla.kv_lora_rank);
  visit(section.mla.qk_rope_head_dim, shape.mla.qk_rope_head_dim);
  visit(section.mla.v_head_dim, shape.mla.v_head_dim);
  visit(section.window, shape.window);
  visit(section.window_layers, shape.window_layers);
  visit(section.window_from, shape.window_from);
  visit(section.sparse_attention.mode, shape.sparse_attention.mode);
  visit(section.sparse_attention.block, shape.sparse_attention.block);
  visit(section.sparse_attention.different_layout_per_head, shape.sparse_attention.different_layout_per_head);
  visit(section.sparse_attention.num_local_blocks, shape.sparse_attention.num_local_blocks);
  visit(section.sparse_attention.num_global_blocks, shape.sparse_attention.num_global_blocks);
  visit(section.sparse_attention.horizontal_global_attention, shape.sparse_attention.horizontal_global_attention);
  visit(section.sparse_attention.num_different_global_patterns, shape.sparse_attention.num_different_global_patterns);
  visit(section.sparse_attention.num_random_blocks, shape.sparse_attention.num_random_blocks);
  visit(section.sparse_attention.num_sliding_window_blocks, shape.sparse_attention.num_sliding_window_blocks);
  visit(section.sparse_attention.local_window_blocks, shape.sparse_attention.local_window_blocks);
  visit(section.sparse_attention.global_block_indices, shape.sparse_attention.global_block_indices);
  visit(section.sparse_attention.global_block_end_indices, shape.sparse_attention.global_block_end_indices);
  visit(section.tied, shape.tied);
  visit(section.embedding_scale, shape.embedding_scale);
  visit(section.mtp_depth, shape.mtp_depth);
  visit(section.mtp_loss_weight, shape.mtp_loss_weight);
  visit(section.dropout, shape.dropout);
  visit(section.attention_dropout, shape.attention_dropout);
  visit(section.label_smoothing, shape.label_smoothing);
  visit(section.z_loss, shape.z_loss);
  visit(section.init_std, shape.init_std);
  visit(section.scaled_residual_init, shape.scaled_residual_init);
  visit(section.mup_base_hidden_size, shape.mup_base_hidden_size);
  visit(section.mup_base_head_dim, shape.mup_base_head_dim);
}

/// Every key set.
ModelConfig whole_config(const ModelShape& shape) {
  ModelConfig config;
  config.family = shape.family;
  visit_pairs(config, shape, [](auto& key, const auto& value) { key = value; });
  config.experts = shape.experts;
  return config;
}

/// The sizes that are derived from each other.
template <typename Sizes, typename Visit>
void visit_derived(Sizes& sizes, const Visit& visit) {
  visit(sizes.hidden_size);
  visit(sizes.num_heads);
  visit(sizes.num_kv_heads);
  visit(sizes.head_dim);
  visit(sizes.ffn_size);
}

/// `shape` has what was given, else what its family has. Where nothing can be derived it stays so, and find_problems()
/// says what is missing.
void derive_sizes(const ModelConfig& config, ModelShape& shape) {
  const ModelShape usual = family_shape(shape.family);
  if (shape.hidden_size < 1) return;
  if (config.hidden_size && !config.num_heads) {
    for (const std::int64_t size : {config.head_dim.value_or(usual.head_dim), std::int64_t{64}, std::int64_t{32},
                                    std::int64_t{16}, std::int64_t{8}}) {
      if (size < 1 || shape.hidden_size % size != 0) continue;
      shape.num_heads = shape.hidden_size / size;
      break;
    }
  }
  const bool other_heads = config.hidden_size || config.num_heads;
  if (!config.num_kv_heads && other_heads) shape.num_kv_heads = shape.num_heads;
  if (!config.head_dim && other_heads && shape.num_heads > 0 && shape.hidden_size % shape.num_heads == 0) {
    shape.head_dim = shape.hidden_size / shape.num_heads;
  }
  if (!config.ffn_size && config.hidden_size) {
    constexpr std::int64_t kMultiple = 16;  // what tensor cores and tensor parallelism like
    const double rows = static_cast<double>(shape.hidden_size) * static_cast<double>(usual.ffn_size) /
                        static_cast<double>(usual.hidden_size);
    shape.ffn_size = static_cast<std::int64_t>(std::ceil(rows / kMultiple)) * kMultiple;
  }
}

void add_differences(const config::Schema& schema, const void* of, const void* other, const std::string& prefix,
                     std::vector<std::string>& out) {
  for (const config::Field& field : schema.fields) {
    const config::Value value = field.get(of);
    if (value == field.get(other)) continue;
    out.push_back(fmt::format("{}{} = {}", prefix, field.name, config::value_text(field, value)));
  }
  for (const config::Part& part : schema.parts) {
    add_differences(*part.schema, part.at(of, 0), part.at(other, 0), prefix + part.name + ".", out);
  }
}

}  // namespace

void describe(config::Section<RotaryConfig>& section) {
  section.meaning("rotary position embedding (RoPE) and its scaling to longer contexts");
  section.field("base", &RotaryConfig::base, "base of the frequencies (rope_theta)").above(0.0);
  section.field("scaling", &RotaryConfig::scaling,
                "RoPE scaling: none, linear, dynamic (NTK-aware, for sequences of max_seq_len), llama3 or yarn");
  section.field("factor", &RotaryConfig::factor, "context length after scaling over the original one").above(0.0);
  section.field("low_freq_factor", &RotaryConfig::low_frequency,
                "llama3: slower frequencies are scaled by the whole factor");
  section.field("high_freq_factor", &RotaryConfig::high_frequency, "llama3: faster frequencies are not scaled");
  section
      .field("original_max_position_embeddings", &RotaryConfig::original_positions,
             "dynamic, llama3, yarn: context length before scaling, in tokens")
      .at_least(1);
  section
      .field("beta_fast", &RotaryConfig::beta_fast,
             "yarn: rotations over the original context above which a "
             "frequency is not scaled")
      .above(0.0);
  section
      .field("beta_slow", &RotaryConfig::beta_slow,
             "yarn: rotations over the original context below which a "
             "frequency is scaled by the whole factor")
      .above(0.0);
  section
      .field("attention_factor", &RotaryConfig::attention_factor,
             "yarn: factor on cosines and sines; 0: 0.1 ln(factor) + 1, or as mscale and mscale_all_dim say")
      .at_least(0.0);
  section
      .field("mscale", &RotaryConfig::mscale,
             "yarn, with mscale_all_dim: cosines and sines are multiplied by 0.1 mscale ln(factor) + 1 over the same "
             "of mscale_all_dim; 0: unset")
      .at_least(0.0);
  section
      .field("mscale_all_dim", &RotaryConfig::mscale_all_dim,
             "yarn, as DeepSeek has it: attention's scale is multiplied by (0.1 mscale_all_dim ln(factor) + 1)^2; 0: "
             "unset")
      .at_least(0.0);
  section.field("truncate", &RotaryConfig::truncate, "yarn: round the ends of the blended range to whole dimensions");
  section.retired("low_frequency", "low_freq_factor");
  section.retired("high_frequency", "high_freq_factor");
  section.retired("original_positions", "original_max_position_embeddings");
}

void describe(config::Section<MlaConfig>& section) {
  section.meaning("multi-head latent attention (MLA; DeepSeek-V2, 2405.04434); model.head_dim is its qk_nope_head_dim");
  section
      .field("q_lora_rank", &MlaConfig::q_lora_rank,
             "rank of the query latent; 0: queries are projected from the hidden state")
      .range(0, 1 << 20);
  section
      .field("kv_lora_rank", &MlaConfig::kv_lora_rank,
             "rank of the latent that keys and values are projected from, which is what a KV cache holds; 0: no "
             "latent attention")
      .range(0, 1 << 20);
  section
      .field("qk_rope_head_dim", &MlaConfig::qk_rope_head_dim,
             "dimension with RoPE of each query head, beside model.head_dim without, and of the key that all heads "
             "share")
      .range(0, 1 << 16);
  section.field("v_head_dim", &MlaConfig::v_head_dim, "dimension of a value head").range(0, 1 << 16);
  section.retired("query_rank", "q_lora_rank");
  section.retired("key_rank", "kv_lora_rank");
  section.retired("rotary_size", "qk_rope_head_dim");
  section.retired("value_size", "v_head_dim");
}

void describe(config::Section<SparseConfig>& section) {
  section.meaning("block-sparse attention with the patterns, keys and layouts of DeepSpeed's, in all layers");
  section.field(
      "mode", &SparseConfig::mode,
      "pattern: none (dense attention), dense (all blocks), fixed (local windows whose last blocks are global; "
      "1904.10509), variable, bigbird (2007.14062) or longformer (2004.05150)");
  section.field("block", &SparseConfig::block, "tokens of a block: a multiple of 16").range(16, 1024);
  section.field("different_layout_per_head", &SparseConfig::different_layout_per_head,
                "heads have layouts of their own: random blocks, and which blocks of a window are global");
  section.field("num_local_blocks", &SparseConfig::num_local_blocks, "fixed: blocks of a local window").at_least(1);
  section
      .field("num_global_blocks", &SparseConfig::num_global_blocks,
             "fixed: global blocks of each window, the last ones; bigbird: of the sequence, the first ones")
      .at_least(1);
  section.field("horizontal_global_attention", &SparseConfig::horizontal_global_attention,
                "fixed, variable, not causal: global blocks attend to all blocks");
  section
      .field(
          "num_different_global_patterns", &SparseConfig::num_different_global_patterns,
          "fixed, with different_layout_per_head: head h takes the pattern h modulo this, counted from a window's end")
      .at_least(1);
  section
      .field("num_random_blocks", &SparseConfig::num_random_blocks,
             "variable, bigbird: random blocks of each row; unset: 1 for bigbird, 0 for variable")
      .at_least(0);
  section
      .field("num_sliding_window_blocks", &SparseConfig::num_sliding_window_blocks,
             "bigbird, longformer: blocks of the sliding window, half of them either side")
      .at_least(1);
  section.field("local_window_blocks", &SparseConfig::local_window_blocks,
                "variable: blocks of the first windows; the last number goes on");
  section.field("global_block_indices", &SparseConfig::global_block_indices,
                "variable, longformer: global blocks, or where ranges of them begin");
  section.field("global_block_end_indices", &SparseConfig::global_block_end_indices,
                "variable, longformer: where those ranges end, exclusive; empty: single blocks");
}

void describe(config::Section<ModelConfig>& section) {
  section.meaning("the architecture: a model family, and what differs from its smallest published model");
  section.field(
      "family", &ModelConfig::family,
      "model family, which gives the keys below their defaults; gpt2 also stands for GPT-3, llama for Llama 2 "
      "and 3, qwen2 for Qwen 2.5, t5 with experts for Switch Transformer; unset: no model");
  section.field(
      "init_from", &ModelConfig::init_from,
      "Hugging Face folder to start from: its configuration, changed by the keys given here, and its weights; "
      "unset: weights are initialised from run.seed");
  section.field("init_partial", &ModelConfig::init_partial,
                "with init_from: sizes may differ; tensors with the same name and shape are loaded, the others are "
                "initialised from run.seed, and the log names them");
  section.field("init_resize_vocab", &ModelConfig::init_resize_vocab,
                "with init_from: vocab_size may differ; embedding and output head keep the rows that both have, more "
                "are initialised from run.seed");
  section.field("init_dense", &ModelConfig::init_dense,
                "with init_from a model with experts: a dense one, with an MLP of ffn_size in place of each mixture, "
                "which is initialised from run.seed; all other weights are loaded");
  section
      .field("vocab_size", &ModelConfig::vocab_size,
             "vocabulary size, rows of the token embedding; unset: that of data.tokenizer or of the token shards, "
             "rounded up to a multiple of 64, or the family's where neither says")
      .at_least(1);
  section.field("max_seq_len", &ModelConfig::max_seq_len, "longest sequence in tokens (max_position_embeddings)")
      .at_least(1);
  section.field("hidden_size", &ModelConfig::hidden_size, "hidden size of the model (d_model)").at_least(1);
  section.field("num_layers", &ModelConfig::num_layers, "transformer layers; of the decoder where there is an encoder")
      .at_least(1);
  section
      .field("num_encoder_layers", &ModelConfig::num_encoder_layers,
             "families transformer and t5: layers of the encoder")
      .at_least(0);
  section
      .field("num_heads", &ModelConfig::num_heads,
             "attention (query) heads; unset: the family's, or hidden_size by its head_dim")
      .at_least(1);
  section
      .field("num_kv_heads", &ModelConfig::num_kv_heads,
             "key and value heads; fewer than num_heads: grouped-query attention (GQA), 1: multi-query (MQA); unset: "
             "num_heads, or the family's where sizes are its own")
      .at_least(1);
  section.field("head_dim", &ModelConfig::head_dim, "dimension of a head; unset: hidden_size / num_heads").at_least(1);
  section
      .field("ffn_size", &ModelConfig::ffn_size,
             "hidden size of the MLP (intermediate_size, d_ff); unset: in the family's proportion to hidden_size (4 "
             "for gpt2 "
             "and bert, 3.5 for llama), rounded up to a multiple of 16")
      .at_least(1);
  section.field("segments", &ModelConfig::segments, "bert: token types (type_vocab_size)").at_least(0);
  section.field("norm", &ModelConfig::norm, "layer: LayerNorm; rms: RMSNorm");
  section.field("epsilon", &ModelConfig::epsilon, "epsilon of the norms").above(0.0);
  section.field("norm_first", &ModelConfig::norm_first,
                "pre-norm, with a final norm before the head; false: post-norm");
  section.field("activation", &ModelConfig::activation, "activation function of the MLP");
  section.field("gated", &ModelConfig::gated, "gated MLP, act(gate) * up: SwiGLU with silu, GeGLU with gelu");
  section.field("attention_bias", &ModelConfig::attention_bias, "bias in the query, key and value projections");
  section.field("output_bias", &ModelConfig::output_bias, "bias in the output projection of attention");
  section.field("mlp_bias", &ModelConfig::mlp_bias, "bias in the projections of the MLP");
  section.field("query_key_norm", &ModelConfig::query_key_norm, "QK norm: RMSNorm over each head of queries and keys");
  section.field("causal", &ModelConfig::causal, "causal attention mask; false: bidirectional");
  section.field("position_kind", &ModelConfig::position_kind,
                "position embedding: learned, sinusoidal, rotary (RoPE), or relative (T5: biases of attention scores)");
  section.section("rotary", &ModelConfig::rotary);
  section
      .field("relative_attention_num_buckets", &ModelConfig::relative_attention_num_buckets,
             "position_kind relative: buckets of distances between query and key, each with a learned bias a head")
      .at_least(2);
  section
      .field("relative_attention_max_distance", &ModelConfig::relative_attention_max_distance,
             "position_kind relative: distance from which on all share the last bucket, in tokens")
      .at_least(1);
  section.section("mla", &ModelConfig::mla);
  section
      .field("window", &ModelConfig::window,
             "sliding-window attention: tokens a token attends to, itself included; 0: full attention")
      .at_least(0);
  section.field(
      "window_layers", &ModelConfig::window_layers,
      "layers with the sliding window: all; odd: every second one, as GPT-3; from: those from window_from on");
  section.field("window_from", &ModelConfig::window_from, "index of the first layer with the sliding window")
      .at_least(0);
  section.section("sparse_attention", &ModelConfig::sparse_attention);
  section.field("tied", &ModelConfig::tied, "the output head shares its weight with the token embedding");
  section.field("embedding_scale", &ModelConfig::embedding_scale,
                "token embeddings are multiplied by sqrt(hidden_size)");
  section
      .field("mtp_depth", &ModelConfig::mtp_depth,
             "multi-token prediction (MTP; DeepSeek-V3, 2412.19437): modules that predict so many further tokens in "
             "training, each of one layer, with the model's embedding and head; 0: none")
      .at_least(0);
  section
      .field("mtp_loss_weight", &ModelConfig::mtp_loss_weight,
             "weight of MTP: the total loss gets this over mtp_depth times the sum of each module's loss, which is "
             "divided by the number of targets of the main loss")
      .at_least(0.0);
  section.field("dropout", &ModelConfig::dropout, "dropout probability of embeddings and residual branches");
  section.field("attention_dropout", &ModelConfig::attention_dropout, "dropout probability of attention weights");
  section.field("label_smoothing", &ModelConfig::label_smoothing, "label smoothing of the cross-entropy loss");
  section.field("z_loss", &ModelConfig::z_loss, "weight of the z-loss, the mean of (log Z)^2; 0: none").at_least(0.0);
  section.field("init_std", &ModelConfig::init_std, "standard deviation of the weight initialisation").at_least(0.0);
  section.field("scaled_residual_init", &ModelConfig::scaled_residual_init,
                "output projections are initialised with init_std / sqrt(2 num_layers), as in GPT-2");
  section
      .field(
          "mup_base_hidden_size", &ModelConfig::mup_base_hidden_size,
          "muP (maximal update parametrisation; Yang et al. 2022): hidden_size of the model that the learning rate was "
          "tuned with; hidden matrices then start at init_std / sqrt(m) and learn at the rate / m, and logits are "
          "divided by m, with m = hidden_size over this; 0: standard parametrisation")
      .at_least(0);
  section
      .field(
          "mup_base_head_dim", &ModelConfig::mup_base_head_dim,
          "with mup_base_hidden_size: head_dim of that model; attention scores are divided by head_dim instead of its "
          "root, equal where both are the same; 0: the same")
      .at_least(0);
  section.retired("vocabulary", "vocab_size");
  section.retired("positions", "max_seq_len");
  section.retired("width", "hidden_size");
  section.retired("layers", "num_layers");
  section.retired("encoder_layers", "num_encoder_layers");
  section.retired("heads", "num_heads");
  section.retired("kv_heads", "num_kv_heads");
  section.retired("head_size", "head_dim");
  section.retired("inner", "ffn_size");
}

std::optional<ModelShape> shape_of(const ModelConfig& config) {
  if (!config.family) return std::nullopt;
  ModelShape shape = with_keys(family_shape(*config.family), config);
  derive_sizes(config, shape);
  return shape;
}

namespace {

/// Beside a stored model's experts: keys that are not at their defaults. derived.cpp refuses those that are given and
/// cannot be seen so.
void set_given(const Experts& given, Experts& to) {
  static const config::Schema schema = config::schema_of<Experts>();
  const Experts defaults;
  for (const config::Field& field : schema.fields) {
    const config::Value value = field.get(&given);
    if (!(value == field.get(&defaults))) field.set(&to, value);
  }
}

}  // namespace

ModelShape with_keys(ModelShape shape, const ModelConfig& config) {
  if (const auto& mode = config.sparse_attention.mode; mode && *mode != shape.sparse_attention.mode)
    shape.sparse_attention = sparse_defaults(*mode);
  visit_pairs(config, shape, [](const auto& key, auto& value) {
    if (key) value = *key;
  });
  if (config.experts.used()) {
    shape.experts = config.experts;
  } else if (shape.experts.used()) {
    set_given(config.experts, shape.experts);
  }
  if (config.init_dense) shape.experts = {};
  return shape;
}

ModelConfig resolved(const ModelConfig& config) {
  const auto shape = shape_of(config);
  if (!shape) return config;
  ModelConfig whole = whole_config(*shape);
  whole.init_from = config.init_from;
  whole.init_partial = config.init_partial;
  whole.init_resize_vocab = config.init_resize_vocab;
  whole.init_dense = config.init_dense;
  return whole;
}

ModelConfig config_of(const ModelShape& shape) {
  const ModelConfig whole = whole_config(shape);
  ModelConfig config = whole;
  const ModelShape usual = family_shape(shape.family);
  visit_pairs(config, usual, [](auto& key, const auto& value) {
    if (key == value) key.reset();
  });
  if (shape.sparse_attention.used()) config.sparse_attention = whole.sparse_attention;  // defaults follow the mode
  bool other_sizes = false;
  visit_derived(config, [&](const auto& key) { other_sizes = other_sizes || key.has_value(); });
  if (other_sizes) {  // one that is left out would be derived
    config.hidden_size = whole.hidden_size;
    config.num_heads = whole.num_heads;
    config.num_kv_heads = whole.num_kv_heads;
    config.head_dim = whole.head_dim;
    config.ffn_size = whole.ffn_size;
  }
  return config;
}

std::vector<std::string> differences(const ModelShape& shape, const ModelShape& other) {
  const ModelConfig ours = whole_config(shape), theirs = whole_config(other);
  std::vector<std::string> out;
  add_differences(config::schema_of<ModelConfig>(), &ours, &theirs, "", out);
  add_differences(config::schema_of<Experts>(), &ours.experts, &theirs.experts, "experts.", out);
  return out;
}

std::string shape_text(const ModelShape& shape) {
  std::string text = fmt::format("{}, ", name_in(enum_names(std::type_identity<Family>()), shape.family));
  if (shape.num_encoder_layers > 0)
    text += counted(static_cast<std::size_t>(shape.num_encoder_layers), "encoder layer") + ", ";
  text += fmt::format("{}, hidden_size {}, {} of {}", counted(static_cast<std::size_t>(shape.num_layers), "layer"),
                      shape.hidden_size, counted(static_cast<std::size_t>(shape.num_heads), "head"), shape.head_dim);
  if (shape.num_kv_heads != shape.num_heads) text += fmt::format(" ({} for keys and values)", shape.num_kv_heads);
  if (shape.mla.used()) {
    text += fmt::format(", latents of {} and {} (+{} for RoPE), values of {}", shape.mla.q_lora_rank,
                        shape.mla.kv_lora_rank, shape.mla.qk_rope_head_dim, shape.mla.v_head_dim);
  }
  if (shape.mtp_depth > 0) text += fmt::format(", MTP depth {}", shape.mtp_depth);
  if (const Experts& experts = shape.experts; experts.used()) {
    text += fmt::format(", {} experts of {} in {}, top {}", experts.num_experts, expert_ffn_size(shape),
                        counted(static_cast<std::size_t>(expert_layers(shape)), "layer"), experts.top_k);
    if (experts.num_shared_experts > 0) text += fmt::format(" and {} shared", experts.num_shared_experts);
  }
  return text + fmt::format(", ffn_size {}, vocab_size {}, max_seq_len {}", shape.ffn_size, shape.vocab_size,
                            shape.max_seq_len);
}

std::vector<config::Problem> find_problems(const ModelConfig& config) {
  if (config.init_dense && config.experts.used()) {
    return {{.key = "model.init_dense",
             .reason = "makes a dense model, but [experts] is given",
             .hint = "leave [experts] out, or set model.init_dense = false",
             .where = {}}};
  }
  if (config.init_from) return {};  // the folder says the rest; whoever opens it looks for problems
  for (const auto& [key, given] : {std::pair{"model.init_partial", config.init_partial},
                                   {"model.init_resize_vocab", config.init_resize_vocab},
                                   {"model.init_dense", config.init_dense}}) {
    if (given)
      return {{.key = key,
               .reason = "is given, but no weights are loaded without model.init_from",
               .hint = "leave it out, or set model.init_from",
               .where = {}}};
  }
  if (const auto shape = shape_of(config)) {
    constexpr std::int64_t kMost = 1 << 20;  // beyond that find_problems(shape) has something to say
    const bool derives = !config.head_dim && (config.hidden_size || config.num_heads) && shape->hidden_size <= kMost;
    if (derives && shape->num_heads > 0 && shape->hidden_size % shape->num_heads != 0) {
      std::int64_t fits = std::min(shape->num_heads, shape->hidden_size);
      while (shape->hidden_size % fits != 0) --fits;
      return {{.key = "model.num_heads",
               .reason = fmt::format("{} does not divide hidden_size = {}, and head_dim is not given", shape->num_heads,
                                     shape->hidden_size),
               .hint = fmt::format("set model.num_heads = {}", fits),
               .where = {}}};
    }
    return find_problems(*shape, "model");
  }
  if (config == ModelConfig{}) return {};
  if (ModelConfig without = config; without.experts.used() && (without.experts = {}, without == ModelConfig{}))
    return {{.key = "experts",
             .reason = "is given without a model whose layers have them",
             .hint = "set model.family = \"mistral\", or another of `trireme recipe docs`",
             .where = {}}};
  return {{.key = "model",
           .reason = "is given without a family, so nothing uses it",
           .hint = "set model.family = \"gpt2\", or another of `trireme recipe docs`",
           .where = {}}};
}

}  // namespace trireme::spec
