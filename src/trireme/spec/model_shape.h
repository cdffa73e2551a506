// spec/model_shape.h -- a transformer's shape as a value: sizes, features, and what follows from them by counting.
//
// One struct describes every family: a family is a set of features (which norm, which positions, which MLP) and names
// for its published weights; the models room assembles layers from the same value that the planner counts with.
// Depends on: base, experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/spec/experts.h"
#include "trireme/spec/sparse_attention.h"

namespace trireme::spec {

enum class Family : std::uint8_t {
  kGpt2,         ///< GPT-2 and GPT-3
  kLlama,        ///< Llama 2 and 3
  kMistral,      ///< Mistral 7B: Llama with a sliding window
  kQwen2,        ///< Qwen 2 and 2.5: Llama with biases of queries, keys and values
  kQwen3,        ///< Qwen 3: a norm of each head's queries and keys instead
  kTransformer,  ///< the original encoder and decoder (Vaswani et al. 2017)
  kBert,         ///< bidirectional encoder, masked-LM head
  kDeepseekV3,   ///< DeepSeek-V3, whose experts [experts] says: Llama with latent attention
  kT5,           ///< T5, and with [experts] Switch Transformer: encoder and decoder with relative position biases
};
enum class NormKind : std::uint8_t { kLayer, kRms };
enum class Activation : std::uint8_t { kRelu, kGelu, kGeluTanh, kSilu };
enum class PositionKind : std::uint8_t { kLearned, kSinusoidal, kRotary, kRelative };
enum class RotaryScaling : std::uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };
/// Which layers a window applies to.
enum class WindowLayers : std::uint8_t {
  kAll,
  kOdd,   ///< layers 1, 3, 5, ...: GPT-3's alternation of dense and locally banded attention
  kFrom,  ///< layers from ModelShape::window_from on
};

std::span<const Named<Family>> enum_names(std::type_identity<Family>);
std::span<const Named<NormKind>> enum_names(std::type_identity<NormKind>);
std::span<const Named<Activation>> enum_names(std::type_identity<Activation>);
std::span<const Named<PositionKind>> enum_names(std::type_identity<PositionKind>);
std::span<const Named<RotaryScaling>> enum_names(std::type_identity<RotaryScaling>);
std::span<const Named<WindowLayers>> enum_names(std::type_identity<WindowLayers>);

struct Rotary {
  double base = 10000;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;                             ///< not none: how much longer the context becomes
  double low_frequency = 1, high_frequency = 4;  ///< llama3
  std::int64_t original_positions = 8192;        ///< dynamic, llama3, yarn: the context that was trained first
  double beta_fast = 32, beta_slow = 1;          ///< yarn
  double attention_factor = 0;                   ///< yarn: magnitude of cosines and sines; 0: yarn_magnitude()
  bool truncate = true;                          ///< yarn: round the blended range to whole pairs
  double mscale = 0, mscale_all_dim = 0;         ///< yarn, as DeepSeek has it; 0: unset
  bool operator==(const Rotary&) const = default;
};

/// What YaRN multiplies cosines and sines by: attention_factor where it is given, else 0.1 mscale ln(factor) + 1 over
/// the same of mscale_all_dim where both are, else 0.1 ln(factor) + 1.
double yarn_magnitude(const Rotary& rotary);
/// What scores are multiplied by beside 1 / sqrt(head size): (0.1 mscale_all_dim ln(factor) + 1)^2 under YaRN with
/// mscale_all_dim, 1 otherwise.
double rotary_score_factor(const Rotary& rotary);

/// Multi-head latent attention (DeepSeek-V2, 2405.04434): queries, keys and values from latents of these ranks.
struct Mla {
  std::int64_t q_lora_rank = 0;       ///< 0: queries come from the hidden state
  std::int64_t kv_lora_rank = 0;      ///< 0: no latent attention
  std::int64_t qk_rope_head_dim = 0;  ///< of each query head beside head_dim, and of the one key that heads share
  std::int64_t v_head_dim = 0;
  bool used() const { return kv_lora_rank > 0; }
  bool operator==(const Mla&) const = default;
};

struct ModelShape {
  Family family = Family::kGpt2;
  std::int64_t vocab_size = 50257;
  std::int64_t max_seq_len = 1024;
  std::int64_t hidden_size = 768;
  std::int64_t num_layers = 12;         ///< decoder layers where there is an encoder too
  std::int64_t num_encoder_layers = 0;  ///< beside a decoder
  std::int64_t num_heads = 12;
  std::int64_t num_kv_heads = 12;  ///< fewer than num_heads: GQA; 1: MQA
  std::int64_t head_dim = 64;
  std::int64_t ffn_size = 3072;
  std::int64_t segments = 0;  ///< BERT's token types

  NormKind norm = NormKind::kLayer;
  double epsilon = 1e-5;
  bool norm_first = true;  ///< pre-norm, with a last norm before the head; false: post-norm
  Activation activation = Activation::kGeluTanh;
  bool gated = false;          ///< act(gate) * up in place of act(in)
  bool attention_bias = true;  ///< of queries, keys and values
  bool output_bias = true;     ///< of attention's output
  bool mlp_bias = true;
  bool query_key_norm = false;  ///< RMSNorm over each head
  bool causal = true;           ///< false: every token sees all, as in BERT
  PositionKind position_kind = PositionKind::kLearned;
  Rotary rotary;
  /// kRelative (T5): scores get a learned number a head and bucket of the distance; distances beyond the largest share
  /// the last bucket.
  std::int64_t relative_attention_num_buckets = 32, relative_attention_max_distance = 128;
  Mla mla;
  std::int64_t window = 0;  ///< sliding window: tokens a token attends to, itself included; 0: full
  WindowLayers window_layers = WindowLayers::kAll;
  std::int64_t window_from = 0;
  SparseAttention sparse_attention;  ///< in all layers
  bool tied = true;                  ///< the head's weight is the token embedding
  bool embedding_scale = false;      ///< token embeddings times sqrt(hidden_size)

  std::int64_t mtp_depth = 0;    ///< multi-token prediction (DeepSeek-V3): further tokens predicted in training
  double mtp_loss_weight = 0.3;  ///< of the mean of their losses

  Experts experts;  ///< in place of the MLPs of the layers that has_experts() says; without biases

  double dropout = 0;  ///< of residual branches and embeddings
  double attention_dropout = 0;
  double label_smoothing = 0;
  double z_loss = 0;
  double init_std = 0.02;
  bool scaled_residual_init = true;  ///< output projections start at init_std / sqrt(2 num_layers): GPT-2
  /// muP (Yang et al. 2022): hidden_size of the model that hyperparameters were tuned with; 0: standard
  /// parametrisation.
  std::int64_t mup_base_hidden_size = 0;
  std::int64_t mup_base_head_dim = 0;  ///< likewise head_dim; 0: this one's own
  bool operator==(const ModelShape&) const = default;
};

/// The features of a family, at the sizes of its smallest published model.
ModelShape family_shape(Family family);

/// Whether models of the family have an encoder beside their decoder.
bool has_encoder(Family family);
/// What attention's scores are multiplied by, RoPE's and muP's factors included: 1 / sqrt(head size); 1 for T5.
double attention_scale(const ModelShape& shape);
/// What the head's input is multiplied by: muP's factor, and 1 / sqrt(hidden_size) for T5's tied head.
double head_scale(const ModelShape& shape);

/// What muP makes of a width: all 1 without it. Init and learning rates are those of the base model where they are
/// equal.
struct Mup {
  double width = 1;            ///< hidden_size / that of the base model
  double matrix_init = 1;      ///< factor on the standard deviation of hidden matrices: 1 / sqrt(width)
  double matrix_rate = 1;      ///< factor on their learning rate with Adam: 1 / width
  double output = 1;           ///< factor on logits: 1 / width
  double attention_score = 1;  ///< factor on scores beside 1 / sqrt(head_dim): sqrt(base head_dim / head_dim)
};
Mup mup_of(const ModelShape& shape);

/// The window of one decoder layer; 0: none.
std::int64_t window_of(const ModelShape& shape, std::int64_t layer);

/// Numbers of one token in all heads.
struct AttentionWidths {
  std::int64_t queries = 0, keys = 0, values = 0, attended = 0;  ///< attended: the core's output
};
AttentionWidths attention_widths(const ModelShape& shape);
/// Elements of attention's matrices in one layer.
std::int64_t attention_weights(const ModelShape& shape);

/// Whether a layer of the decoder (or the encoder), or of MTP, which counts on, has experts in place of its MLP: behind
/// the first_dense_layers the last of every `every`, in each stack by itself.
bool has_experts(const ModelShape& shape, std::int64_t layer);
/// Layers that have, without MTP's.
std::int64_t expert_layers(const ModelShape& shape);
/// The width of an expert's middle, and of all shared experts', which are one MLP.
std::int64_t expert_ffn_size(const ModelShape& shape);
std::int64_t shared_ffn_size(const ModelShape& shape);
/// Logits of a token: of noisy-top-k the deviations of its noise too, and those of the first level.
std::int64_t router_outputs(const Experts& experts);

/// What cannot be: num_heads that num_kv_heads does not divide, an odd head_dim with RoPE, ... Fields are named below
/// `prefix`.
std::vector<config::Problem> find_problems(const ModelShape& shape, const std::string& prefix = "model");

struct ParameterCount {
  std::int64_t embedding = 0;       ///< tokens, positions, types
  std::int64_t layers = 0;          ///< all blocks, experts included
  std::int64_t experts = 0;         ///< of them, routed experts
  std::int64_t active_experts = 0;  ///< of those, what one token meets
  std::int64_t mtp = 0;          ///< modules of multi-token prediction, without the embedding and head that they share
  std::int64_t mtp_experts = 0;  ///< of them, routed experts
  std::int64_t head = 0;         ///< last norm, head where it is not tied, masked-LM head
  std::int64_t total() const { return embedding + layers + mtp + head; }
  /// What one token meets, without MTP.
  std::int64_t active() const { return embedding + layers - experts + active_experts + head; }
};
ParameterCount count_parameters(const ModelShape& shape);

/// Multiply-adds count as two. GEMMs only, as model FLOPs are reported; the causal mask and windows are
/// counted as they are: tiles outside are not computed.
struct FlopCount {
  double projections = 0;  ///< attention's four and the MLP's
  double attention = 0;    ///< queries times keys, probabilities times values
  double mtp = 0;          ///< modules of multi-token prediction, each with its pass through the head
  double head = 0;
  double total() const { return projections + attention + mtp + head; }
};
/// Of the forward pass over one sequence of `length` tokens (and `source_length` for an encoder beside a decoder).
/// Backward is twice that.
FlopCount count_flops(const ModelShape& shape, std::int64_t length, std::int64_t source_length = 0);

}  // namespace trireme::spec
