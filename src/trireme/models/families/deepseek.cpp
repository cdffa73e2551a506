// DeepSeek-V3: latent attention, dense MLPs in the first layers, experts with biased routers in the others. Modules of
// multi-token prediction are published as layers behind the last one, with copies of the embedding and the head.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/models/families/families.h"

namespace trireme::models {
namespace {

constexpr std::string_view kDeepseekPrefixes[] = {"model.", ""};
/// Norms of the latents have it whatever rms_norm_eps says: here all norms have one.
constexpr double kLatentEpsilon = 1e-6;
/// What the model was trained with (2412.19437, section 4.2), which no configuration says. Above 0 there are biases.
constexpr double kBiasUpdateRate = 1e-3;

/// What would be another model, were it left out.
void refuse_others(const formats::HfConfig& config, const spec::ModelShape& shape) {
  if (shape.experts.used()) {
    if (const auto score = config.get_or<std::string>("scoring_func", "sigmoid"); score != "sigmoid")
      unsupported(config, "scoring_func", score, "sigmoid");
    if (const auto method = config.get_or<std::string>("topk_method", "noaux_tc"); method != "noaux_tc")
      unsupported(config, "topk_method", method, "noaux_tc: biases and groups scored by their two best");
    if (const auto each = config.get_or<std::int64_t>("moe_layer_freq", 1); each != 1)
      unsupported(config, "moe_layer_freq", fmt::format("{}", each), "1: all layers after the dense ones have experts");
  }
  if (config.get_or<bool>("attention_bias", false)) {
    unsupported(config, "attention_bias", "true", "latent attention has no biases");
  }
  if (!config.get_or<bool>("rope_interleave", true)) {
    unsupported(config, "rope_interleave", "false", "RoPE of this family rotates neighbouring pairs");
  }
  if (shape.epsilon != kLatentEpsilon) {
    unsupported(config, "rms_norm_eps", fmt::format("{}", shape.epsilon),
                "norms of latents have 1e-06, and all norms of a model have one here");
  }
}

/// None where all layers are dense.
spec::Experts read_deepseek_experts(const formats::HfConfig& config, std::int64_t layers) {
  const auto dense = config.get_or<std::int64_t>("first_k_dense_replace", 3);
  if (dense >= layers) return {};
  spec::Experts experts{.num_experts = config.get_or<std::int64_t>("n_routed_experts", 256),
                        .top_k = config.get_or<std::int64_t>("num_experts_per_tok", 8),
                        .ffn_size = config.get_or<std::int64_t>("moe_intermediate_size", 2048),
                        .num_shared_experts = config.get_or<std::int64_t>("n_shared_experts", 1),
                        .first_dense_layers = dense};
  experts.router = spec::RouterKind::kSigmoidTopK;
  experts.norm_topk_prob = config.get_or<bool>("norm_topk_prob", true);
  experts.routed_scaling_factor = config.get_or<double>("routed_scaling_factor", 2.5);
  experts.num_groups = config.get_or<std::int64_t>("n_group", 8);
  experts.top_k_groups = config.get_or<std::int64_t>("topk_group", 4);
  experts.bias_update_rate = kBiasUpdateRate;
  return experts;
}

spec::ModelShape read_deepseek_config(const formats::HfConfig& config) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kDeepseekV3);
  shape.vocab_size = config.get<std::int64_t>("vocab_size");
  shape.hidden_size = config.get<std::int64_t>("hidden_size");
  shape.num_layers = config.get<std::int64_t>("num_hidden_layers");
  shape.num_heads = shape.num_kv_heads = config.get<std::int64_t>("num_attention_heads");
  shape.ffn_size = config.get<std::int64_t>("intermediate_size");
  shape.head_dim = config.get_or<std::int64_t>("qk_nope_head_dim", 128);
  // null: queries come from the hidden state; left out: the configuration class's default.
  const bool has_rank = !config.json().contains("q_lora_rank") || !config.json()["q_lora_rank"].is_null();
  shape.mla = {.q_lora_rank = has_rank ? config.get_or<std::int64_t>("q_lora_rank", 1536) : 0,
               .kv_lora_rank = config.get_or<std::int64_t>("kv_lora_rank", 512),
               .qk_rope_head_dim = config.get_or<std::int64_t>("qk_rope_head_dim", 64),
               .v_head_dim = config.get_or<std::int64_t>("v_head_dim", 128)};
  shape.max_seq_len = config.get_or<std::int64_t>("max_position_embeddings", 4096);
  shape.activation = activation_named(config, "hidden_act", "silu");
  shape.epsilon = config.get_or<double>("rms_norm_eps", kLatentEpsilon);
  shape.tied = config.get_or<bool>("tie_word_embeddings", false);
  shape.init_std = config.get_or<double>("initializer_range", 0.02);
  shape.attention_dropout = config.get_or<double>("attention_dropout", 0);
  shape.rotary = {};
  read_rotary(config, shape, 10000);
  shape.experts = read_deepseek_experts(config, shape.num_layers);
  shape.mtp_depth = config.get_or<std::int64_t>("num_nextn_predict_layers", 0);
  refuse_others(config, shape);
  return shape;
}

void write_deepseek_config(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("vocab_size", shape.vocab_size);
  config.set("hidden_size", shape.hidden_size);
  config.set("num_hidden_layers", shape.num_layers);
  if (shape.mtp_depth > 0 || config.json().contains("num_nextn_predict_layers"))
    config.set("num_nextn_predict_layers", shape.mtp_depth);
  const spec::Experts& experts = shape.experts;
  config.set("first_k_dense_replace", experts.used() ? experts.first_dense_layers : shape.num_layers);
  if (experts.used()) {
    config.set("n_routed_experts", experts.num_experts);
    config.set("n_shared_experts", experts.num_shared_experts);
    config.set("num_experts_per_tok", experts.top_k);
    config.set("moe_intermediate_size", spec::expert_ffn_size(shape));
    config.set("norm_topk_prob", experts.norm_topk_prob);
    config.set("routed_scaling_factor", experts.routed_scaling_factor);
    config.set("n_group", experts.num_groups);
    config.set("topk_group", experts.top_k_groups);
    config.set("scoring_func", "sigmoid");
    config.set("topk_method", "noaux_tc");
  }
  config.set("num_attention_heads", shape.num_heads);
  config.set("num_key_value_heads", shape.num_heads);
  config.set("intermediate_size", shape.ffn_size);
  config.set("qk_nope_head_dim", shape.head_dim);
  config.set("q_lora_rank", shape.mla.q_lora_rank > 0 ? nlohmann::ordered_json(shape.mla.q_lora_rank) : nullptr);
  config.set("kv_lora_rank", shape.mla.kv_lora_rank);
  config.set("qk_rope_head_dim", shape.mla.qk_rope_head_dim);
  config.set("v_head_dim", shape.mla.v_head_dim);
  config.set("max_position_embeddings", shape.max_seq_len);
  config.set("hidden_act", published_name(shape.activation));
  config.set("rms_norm_eps", shape.epsilon);
  config.set("tie_word_embeddings", shape.tied);
  config.set("initializer_range", shape.init_std);
  config.set("attention_dropout", shape.attention_dropout);
  config.set("attention_bias", shape.attention_bias);
  config.set("rope_interleave", true);
  write_rotary(shape.rotary, config);
}

/// "layers.3.", or "mtp.0." behind the last.
std::string our_layer(const spec::ModelShape& shape, std::int64_t layer) {
  return layer < shape.num_layers ? fmt::format("layers.{}.", layer) : fmt::format("mtp.{}.", layer - shape.num_layers);
}

std::vector<PublishedBias> deepseek_biases(const spec::ModelShape& shape, const std::string& prefix) {
  std::vector<PublishedBias> biases;
  for (std::int64_t layer = 0; layer < shape.num_layers + shape.mtp_depth; ++layer) {
    if (spec::has_experts(shape, layer))
      biases.push_back({fmt::format("{}layers.{}.mlp.gate.e_score_correction_bias", prefix, layer),
                        our_layer(shape, layer) + "mlp"});
  }
  return biases;
}

std::string module_tensor(const spec::ModelShape& shape, const std::string& prefix, std::int64_t depth) {
  return fmt::format("{}layers.{}.eh_proj.weight", prefix, shape.num_layers + depth);
}

/// What a module has beside its layer: norms of the embedding and of what enters, their projection, the norm before the
/// head, and the tables that it shares with the model, which files repeat.
void add_module(TensorList& list, const spec::ModelShape& shape, const std::string& theirs, const std::string& ours) {
  list.add_copy(theirs + "embed_tokens.weight", "embedding.tokens.weight");
  list.add(theirs + "enorm.weight", ours + "embedding_norm.weight");
  list.add(theirs + "hnorm.weight", ours + "hidden_norm.weight");
  list.add(theirs + "eh_proj.weight", ours + "projection.weight");
  list.add(theirs + "shared_head.norm.weight", ours + "norm.weight");
  list.add_copy(theirs + "shared_head.head.weight", shape.tied ? "embedding.tokens.weight" : "head.weight");
}

std::vector<PublishedTensor> deepseek_tensors(Model& model, const TensorNaming& naming) {
  const spec::ModelShape& shape = model.shape;
  const std::string& prefix = naming.prefix;
  TensorList list(model);
  list.add(prefix + "embed_tokens.weight", "embedding.tokens.weight");
  for (std::int64_t layer = 0; layer < shape.num_layers + shape.mtp_depth; ++layer) {
    const std::string theirs = fmt::format("{}layers.{}.", prefix, layer), ours = our_layer(shape, layer);
    if (layer >= shape.num_layers) add_module(list, shape, theirs, ours);
    const auto attention = [&](const char* their_name, const char* our_name) {
      list.add(fmt::format("{}self_attn.{}.weight", theirs, their_name),
               fmt::format("{}attention.{}.weight", ours, our_name));
    };
    list.add(theirs + "input_layernorm.weight", ours + "attention.norm.weight");
    if (shape.mla.q_lora_rank > 0) {
      attention("q_a_proj", "q_down");
      attention("q_a_layernorm", "q_norm");
      attention("q_b_proj", "q_up");
    } else {
      attention("q_proj", "q_up");
    }
    attention("kv_a_proj_with_mqa", "kv_down");
    attention("kv_a_layernorm", "kv_norm");
    attention("kv_b_proj", "kv_up");
    attention("o_proj", "out");
    list.add(theirs + "post_attention_layernorm.weight", ours + "mlp.norm.weight");
    if (spec::has_experts(shape, layer)) {
      list.add(theirs + "mlp.gate.weight", ours + "mlp.router.weight");
      list.add_experts({.each = theirs + "mlp.experts", .fused = theirs + "mlp.experts"}, ours + "mlp",
                       naming.fused_experts);
      list.add_shared(theirs + "mlp.shared_experts", ours + "mlp");
      continue;
    }
    list.add_rows(theirs + "mlp.gate_proj.weight", ours + "mlp.in.weight", 0, shape.ffn_size);
    list.add_rows(theirs + "mlp.up_proj.weight", ours + "mlp.in.weight", shape.ffn_size, shape.ffn_size);
    list.add(theirs + "mlp.down_proj.weight", ours + "mlp.out.weight");
  }
  list.add(prefix + "norm.weight", "norm.weight");
  list.add_head();
  return list.take();
}

}  // namespace

const FamilyFormat kDeepseekV3Format{.model_type = "deepseek_v3",
                                     .architecture = "DeepseekV3ForCausalLM",
                                     .family = spec::Family::kDeepseekV3,
                                     .read_config = read_deepseek_config,
                                     .write_config = write_deepseek_config,
                                     .tensors = deepseek_tensors,
                                     .prefixes = kDeepseekPrefixes,
                                     .experts = true,
                                     .biases = deepseek_biases,
                                     .module_tensor = module_tensor};

}  // namespace trireme::models
