// spec/model_config.h -- the [model] section of a recipe: a family, and what differs from its smallest published model.
//
//   [model]                        const auto shape = shape_of(recipe.model);
//   family = "llama"               shape->hidden_size == 512, shape->head_dim == 64, shape->num_kv_heads == 8,
//   hidden_size = 512              shape->ffn_size == 1792 as wide as Llama's, and the rest as in Llama 3 8B
//   num_heads = 8
//
// Every member of ModelShape is a key of the same name here; the pairs are listed once, in visit_pairs().
// Depends on: base, spec/model_shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/spec/model_shape.h"

namespace trireme::spec {

/// [model.rotary]
struct RotaryConfig {
  std::optional<double> base;
  std::optional<RotaryScaling> scaling;
  std::optional<double> factor, low_frequency, high_frequency;
  std::optional<std::int64_t> original_positions;
  std::optional<double> beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim;
  std::optional<bool> truncate;
  bool operator==(const RotaryConfig&) const = default;
};

/// [model.mla]
struct MlaConfig {
  std::optional<std::int64_t> q_lora_rank, kv_lora_rank, qk_rope_head_dim, v_head_dim;
  bool operator==(const MlaConfig&) const = default;
};

/// [model.sparse_attention]
struct SparseConfig {
  std::optional<SparseMode> mode;
  std::optional<std::int64_t> block;
  std::optional<bool> different_layout_per_head;
  std::optional<std::int64_t> num_local_blocks, num_global_blocks;
  std::optional<bool> horizontal_global_attention;
  std::optional<std::int64_t> num_different_global_patterns, num_random_blocks, num_sliding_window_blocks;
  std::optional<std::vector<std::int64_t>> local_window_blocks, global_block_indices, global_block_end_indices;
  bool operator==(const SparseConfig&) const = default;
};

/// [model]: what is unset is as shape_of() derives it. Without a family there is no model.
struct ModelConfig {
  std::optional<Family> family;
  std::optional<std::string> init_from;  ///< a published model's folder: shape and weights to start with
  bool init_partial = false;             ///< tensors that do not fit are initialised, not loaded
  bool init_resize_vocab = false;        ///< embeddings keep the rows that both vocabularies have
  bool init_dense = false;               ///< of a model with experts a dense one
  std::optional<std::int64_t> vocab_size, max_seq_len, hidden_size, num_layers, num_encoder_layers, num_heads,
      num_kv_heads, head_dim, ffn_size, segments;
  std::optional<NormKind> norm;
  std::optional<double> epsilon;
  std::optional<bool> norm_first;
  std::optional<Activation> activation;
  std::optional<bool> gated, attention_bias, output_bias, mlp_bias, query_key_norm, causal;
  std::optional<PositionKind> position_kind;
  RotaryConfig rotary;
  std::optional<std::int64_t> relative_attention_num_buckets, relative_attention_max_distance;
  MlaConfig mla;
  std::optional<std::int64_t> window;
  std::optional<WindowLayers> window_layers;
  std::optional<std::int64_t> window_from;
  SparseConfig sparse_attention;
  std::optional<bool> tied, embedding_scale;
  std::optional<std::int64_t> mtp_depth;
  std::optional<double> mtp_loss_weight;
  std::optional<double> dropout, attention_dropout, label_smoothing, z_loss, init_std;
  std::optional<bool> scaled_residual_init;
  std::optional<std::int64_t> mup_base_hidden_size, mup_base_head_dim;
  Experts experts;  ///< the section [experts] of a recipe; without any the model is dense, or as init_from says
  bool operator==(const ModelConfig&) const = default;
};

void describe(config::Section<RotaryConfig>& section);
void describe(config::Section<MlaConfig>& section);
void describe(config::Section<SparseConfig>& section);
void describe(config::Section<ModelConfig>& section);

/// The shape that a section asks for; none without a family, also where init_from says it. A model of other sizes than
/// the family's smallest has those that follow from the ones given: head_dim = hidden_size / num_heads, num_kv_heads =
/// num_heads, ffn_size in the family's proportion to hidden_size, num_heads by the family's head_dim.
std::optional<ModelShape> shape_of(const ModelConfig& config);
/// `shape` with the keys that the section sets: what fine-tuning changes of a published model, such as dropout.
ModelShape with_keys(ModelShape shape, const ModelConfig& config);
/// The section with every key set, as its family has it: what `trireme recipe show` prints. Empty stays empty.
ModelConfig resolved(const ModelConfig& config);
/// The section that gives this shape: its family and what differs; sizes that are derived from each other together.
ModelConfig config_of(const ModelShape& shape);
/// "llama, 4 layers, hidden_size 96, 4 heads of 24 (2 for keys and values), ffn_size 336, vocab_size 2048, max_seq_len
/// 256".
std::string shape_text(const ModelShape& shape);
/// Keys in which two shapes differ, with the first one's value: "window = 4". Empty when they are equal.
std::vector<std::string> differences(const ModelShape& shape, const ModelShape& other);

/// Keys without a family, and every problem of the shape.
std::vector<config::Problem> find_problems(const ModelConfig& config);

}  // namespace trireme::spec
