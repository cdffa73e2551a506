// Llama 2 and 3, Mistral, Qwen 2.5 and 3, and those of them with experts (Mixtral, Qwen2-MoE, Qwen3-MoE): one body,
// several sets of features.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/formats/format_error.h"
#include "trireme/models/families/families.h"

namespace trireme::models {
namespace {

constexpr std::string_view kLlamaPrefixes[] = {"model.", ""};

/// Published files leave keys out that have their class's default; null is a value of its own.
bool is_left_out(const formats::HfConfig& config, const char* key) { return !config.json().contains(key); }

bool is_qwen(spec::Family family) { return family == spec::Family::kQwen2 || family == spec::Family::kQwen3; }

/// The first layer with a window by `layer_types`, which beats max_window_layers; all after it must have one too.
std::int64_t first_windowed(const formats::HfConfig& config, const std::vector<std::string>& types) {
  std::size_t first = types.size();
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] != "sliding_attention" && types[layer] != "full_attention") {
      unsupported(config, "layer_types", formats::shown(types[layer]), "full_attention or sliding_attention");
    }
    const bool windowed = types[layer] == "sliding_attention";
    if (windowed && first == types.size()) first = layer;
    if (!windowed && first < layer) {
      unsupported(config, "layer_types",
                  fmt::format("full attention in layer {} above a window in layer {}", layer, first),
                  "full_attention in the lower layers and sliding_attention in all above them");
    }
  }
  return static_cast<std::int64_t>(first);
}

/// Which layers see a window only: all (Mistral), or those that the configuration says (Qwen).
void read_window(const formats::HfConfig& config, spec::ModelShape& shape) {
  constexpr std::int64_t kDefaultWindow = 4096, kDefaultWindowFrom = 28;  // of the reference's configuration classes
  shape.window = 0;
  if (shape.family == spec::Family::kMistral && shape.experts.used()) {  // Mixtral has none where it says none
    shape.window = config.get_or<std::int64_t>("sliding_window", 0);
    return;
  }
  const auto window =
      is_left_out(config, "sliding_window") ? kDefaultWindow : config.find<std::int64_t>("sliding_window");
  if (shape.family == spec::Family::kMistral) {
    shape.window = window.value_or(0);
    return;
  }
  if (!is_qwen(shape.family) || !window || !config.get_or<bool>("use_sliding_window", false)) return;
  shape.window_from = config.get_or<std::int64_t>("max_window_layers", kDefaultWindowFrom);
  if (const auto types = config.find<std::vector<std::string>>("layer_types")) {
    shape.window_from = first_windowed(config, *types);
  }
  if (shape.window_from >= shape.num_layers) {
    shape.window_from = 0;
    return;
  }
  shape.window = *window;
  shape.window_layers = spec::WindowLayers::kFrom;
}

std::int64_t default_positions(spec::Family family) {
  return family == spec::Family::kLlama ? 2048 : family == spec::Family::kMistral ? 131072 : 32768;
}

std::int64_t default_kv_heads(const formats::HfConfig& config, const spec::ModelShape& shape) {
  if (shape.family == spec::Family::kLlama || !is_left_out(config, "num_key_value_heads")) return shape.num_heads;
  return shape.family == spec::Family::kMistral ? 8 : 32;
}

/// Biases, of the families that have a choice: the reference looks at these keys nowhere else.
void read_biases(const formats::HfConfig& config, spec::ModelShape& shape) {
  const bool chosen = shape.family == spec::Family::kLlama || shape.family == spec::Family::kQwen3;
  const bool bias = chosen && config.get_or<bool>("attention_bias", false);
  shape.attention_bias = shape.family == spec::Family::kQwen2 || bias;
  shape.output_bias = bias;
  shape.mlp_bias = shape.family == spec::Family::kLlama && config.get_or<bool>("mlp_bias", false);
}

/// Of Mixtral: all layers, softmax over the chosen logits. Of Qwen: layers, widths and shared experts of their own.
spec::Experts read_experts(const formats::HfConfig& config, const spec::ModelShape& shape) {
  spec::ModelShape with = shape;
  spec::Experts& experts = with.experts;
  if (shape.family == spec::Family::kMistral) {
    experts.num_experts = config.get_or<std::int64_t>("num_local_experts", 8);
    experts.top_k = config.get_or<std::int64_t>("num_experts_per_tok", 2);
    experts.jitter = config.get_or<double>("router_jitter_noise", 0);
  } else {
    const bool qwen2 = shape.family == spec::Family::kQwen2;
    experts.num_experts = config.get_or<std::int64_t>("num_experts", qwen2 ? 60 : 128);
    experts.top_k = config.get_or<std::int64_t>("num_experts_per_tok", qwen2 ? 4 : 8);
    experts.ffn_size = config.get_or<std::int64_t>("moe_intermediate_size", qwen2 ? 1408 : 768);
    experts.norm_topk_prob = config.get_or<bool>("norm_topk_prob", false);
    read_sparse_layers(config, with);
    if (qwen2) {
      const auto shared = config.get_or<std::int64_t>("shared_expert_intermediate_size", 5632);
      if (experts.ffn_size < 1 || shared % experts.ffn_size != 0)
        unsupported(config, "shared_expert_intermediate_size", fmt::format("{}", shared),
                    fmt::format("a multiple of moe_intermediate_size = {}", experts.ffn_size));
      experts.num_shared_experts = shared / experts.ffn_size;
      experts.shared_expert_gate = true;
    }
  }
  read_aux_loss(config, with);
  return experts;
}

void write_experts(const spec::ModelShape& shape, formats::HfConfig& config) {
  const spec::Experts& experts = shape.experts;
  config.set("num_experts_per_tok", experts.top_k);
  write_aux_loss(shape, config);
  if (shape.family == spec::Family::kMistral) {
    config.set("num_local_experts", experts.num_experts);
    config.set("intermediate_size", spec::expert_ffn_size(shape));
    config.set("router_jitter_noise", experts.jitter);
    return;
  }
  config.set("num_experts", experts.num_experts);
  config.set("moe_intermediate_size", spec::expert_ffn_size(shape));
  config.set("norm_topk_prob", experts.norm_topk_prob);
  write_sparse_layers(shape, config);
  if (shape.family == spec::Family::kQwen2) config.set("shared_expert_intermediate_size", spec::shared_ffn_size(shape));
}

spec::ModelShape read(const formats::HfConfig& config, spec::Family family, bool experts) {
  spec::ModelShape shape = spec::family_shape(family);
  shape.vocab_size = config.get<std::int64_t>("vocab_size");
  shape.hidden_size = config.get<std::int64_t>("hidden_size");
  shape.num_layers = config.get<std::int64_t>("num_hidden_layers");
  shape.num_heads = config.get<std::int64_t>("num_attention_heads");
  shape.ffn_size = config.get<std::int64_t>("intermediate_size");
  shape.max_seq_len = config.get_or<std::int64_t>("max_position_embeddings", default_positions(family));
  shape.num_kv_heads = config.get_or<std::int64_t>("num_key_value_heads", default_kv_heads(config, shape));
  if (experts) shape.experts = read_experts(config, shape);
  const bool fixed_size = family == spec::Family::kQwen3 && !experts && is_left_out(config, "head_dim");
  const std::int64_t head_dim = fixed_size ? 128 : (shape.num_heads > 0 ? shape.hidden_size / shape.num_heads : 0);
  shape.head_dim = config.get_or<std::int64_t>("head_dim", head_dim);
  shape.activation = activation_named(config, "hidden_act", "silu");
  shape.epsilon = config.get_or<double>("rms_norm_eps", 1e-6);
  shape.tied = config.get_or<bool>("tie_word_embeddings", false);
  shape.init_std = config.get_or<double>("initializer_range", 0.02);
  shape.attention_dropout = config.get_or<double>("attention_dropout", 0);
  read_biases(config, shape);
  read_rotary(config, shape, 10000);
  read_window(config, shape);
  return shape;
}

template <spec::Family kFamily, bool kExperts = false>
spec::ModelShape read_llama_config(const formats::HfConfig& config) {
  return read(config, kFamily, kExperts);
}

void write_llama_config(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("vocab_size", shape.vocab_size);
  config.set("hidden_size", shape.hidden_size);
  config.set("num_hidden_layers", shape.num_layers);
  config.set("num_attention_heads", shape.num_heads);
  config.set("num_key_value_heads", shape.num_kv_heads);
  config.set("head_dim", shape.head_dim);
  config.set("intermediate_size", shape.ffn_size);
  config.set("max_position_embeddings", shape.max_seq_len);
  config.set("hidden_act", published_name(shape.activation));
  config.set("rms_norm_eps", shape.epsilon);
  config.set("tie_word_embeddings", shape.tied);
  config.set("initializer_range", shape.init_std);
  config.set("attention_dropout", shape.attention_dropout);
  if (shape.family == spec::Family::kLlama) config.set("mlp_bias", shape.mlp_bias);
  if (shape.family == spec::Family::kLlama || shape.family == spec::Family::kQwen3) {
    config.set("attention_bias", shape.attention_bias);
  }
  write_rotary(shape.rotary, config);
  if (shape.family == spec::Family::kMistral) {
    config.set("sliding_window", shape.window > 0 ? nlohmann::ordered_json(shape.window) : nullptr);
  } else if (shape.family != spec::Family::kLlama) {
    config.set("use_sliding_window", shape.window > 0);
    config.set("sliding_window", shape.window > 0 ? nlohmann::ordered_json(shape.window) : nullptr);
    config.set("max_window_layers", shape.window > 0 ? shape.window_from : shape.num_layers);
  }
  if (shape.experts.used()) write_experts(shape, config);
}

void add_mixture(TensorList& list, const spec::ModelShape& shape, const std::string& theirs, const std::string& ours,
                 bool fused) {
  const bool mixtral = shape.family == spec::Family::kMistral;
  // Mixtral's files one by one have names of their own.
  const std::string block = theirs + (mixtral && !fused ? "block_sparse_moe" : "mlp");
  list.add(block + ".gate.weight", ours + ".router.weight");
  PublishedExperts names{.each = block + ".experts", .fused = block + ".experts"};
  if (mixtral) names.gate = "w1", names.up = "w3", names.down = "w2";
  list.add_experts(names, ours, fused);
  list.add_shared(theirs + "mlp.shared_expert", ours);
  if (shape.experts.shared_expert_gate && shape.experts.num_shared_experts > 0)
    list.add(theirs + "mlp.shared_expert_gate.weight", ours + ".shared.gate.weight");
}

std::vector<PublishedTensor> llama_tensors(Model& model, const TensorNaming& naming) {
  const spec::ModelShape& shape = model.shape;
  const std::string& prefix = naming.prefix;
  const std::int64_t queries = shape.num_heads * shape.head_dim, keys = shape.num_kv_heads * shape.head_dim;
  TensorList list(model);
  list.add(prefix + "embed_tokens.weight", "embedding.tokens.weight");
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string theirs = fmt::format("{}layers.{}.", prefix, layer), ours = fmt::format("layers.{}.", layer);
    const auto fused = [&](const std::string& kind) {
      list.add_rows(theirs + "self_attn.q_proj." + kind, ours + "attention.qkv." + kind, 0, queries);
      list.add_rows(theirs + "self_attn.k_proj." + kind, ours + "attention.qkv." + kind, queries, keys);
      list.add_rows(theirs + "self_attn.v_proj." + kind, ours + "attention.qkv." + kind, queries + keys, keys);
    };
    const auto gate_up = [&](const std::string& kind) {
      list.add_rows(theirs + "mlp.gate_proj." + kind, ours + "mlp.in." + kind, 0, shape.ffn_size);
      list.add_rows(theirs + "mlp.up_proj." + kind, ours + "mlp.in." + kind, shape.ffn_size, shape.ffn_size);
    };
    list.add(theirs + "input_layernorm.weight", ours + "attention.norm.weight");
    fused("weight");
    if (shape.attention_bias) fused("bias");
    if (shape.query_key_norm) {
      list.add(theirs + "self_attn.q_norm.weight", ours + "attention.q_norm.weight");
      list.add(theirs + "self_attn.k_norm.weight", ours + "attention.k_norm.weight");
    }
    list.add(theirs + "self_attn.o_proj.weight", ours + "attention.out.weight");
    if (shape.output_bias) list.add(theirs + "self_attn.o_proj.bias", ours + "attention.out.bias");
    list.add(theirs + "post_attention_layernorm.weight", ours + "mlp.norm.weight");
    if (spec::has_experts(shape, layer)) {
      add_mixture(list, shape, theirs, ours + "mlp", naming.fused_experts);
      continue;
    }
    gate_up("weight");
    list.add(theirs + "mlp.down_proj.weight", ours + "mlp.out.weight");
    if (shape.mlp_bias) {
      gate_up("bias");
      list.add(theirs + "mlp.down_proj.bias", ours + "mlp.out.bias");
    }
  }
  list.add(prefix + "norm.weight", "norm.weight");
  list.add_head();
  return list.take();
}

}  // namespace

const FamilyFormat kLlamaFormat{.model_type = "llama",
                                .architecture = "LlamaForCausalLM",
                                .family = spec::Family::kLlama,
                                .read_config = read_llama_config<spec::Family::kLlama>,
                                .write_config = write_llama_config,
                                .tensors = llama_tensors,
                                .prefixes = kLlamaPrefixes};
const FamilyFormat kMistralFormat{.model_type = "mistral",
                                  .architecture = "MistralForCausalLM",
                                  .family = spec::Family::kMistral,
                                  .read_config = read_llama_config<spec::Family::kMistral>,
                                  .write_config = write_llama_config,
                                  .tensors = llama_tensors,
                                  .prefixes = kLlamaPrefixes};
const FamilyFormat kQwen2Format{.model_type = "qwen2",
                                .architecture = "Qwen2ForCausalLM",
                                .family = spec::Family::kQwen2,
                                .read_config = read_llama_config<spec::Family::kQwen2>,
                                .write_config = write_llama_config,
                                .tensors = llama_tensors,
                                .prefixes = kLlamaPrefixes};
const FamilyFormat kQwen3Format{.model_type = "qwen3",
                                .architecture = "Qwen3ForCausalLM",
                                .family = spec::Family::kQwen3,
                                .read_config = read_llama_config<spec::Family::kQwen3>,
                                .write_config = write_llama_config,
                                .tensors = llama_tensors,
                                .prefixes = kLlamaPrefixes};
const FamilyFormat kMixtralFormat{.model_type = "mixtral",
                                  .architecture = "MixtralForCausalLM",
                                  .family = spec::Family::kMistral,
                                  .read_config = read_llama_config<spec::Family::kMistral, true>,
                                  .write_config = write_llama_config,
                                  .tensors = llama_tensors,
                                  .prefixes = kLlamaPrefixes,
                                  .experts = true};
const FamilyFormat kQwen2MoeFormat{.model_type = "qwen2_moe",
                                   .architecture = "Qwen2MoeForCausalLM",
                                   .family = spec::Family::kQwen2,
                                   .read_config = read_llama_config<spec::Family::kQwen2, true>,
                                   .write_config = write_llama_config,
                                   .tensors = llama_tensors,
                                   .prefixes = kLlamaPrefixes,
                                   .experts = true};
const FamilyFormat kQwen3MoeFormat{.model_type = "qwen3_moe",
                                   .architecture = "Qwen3MoeForCausalLM",
                                   .family = spec::Family::kQwen3,
                                   .read_config = read_llama_config<spec::Family::kQwen3, true>,
                                   .write_config = write_llama_config,
                                   .tensors = llama_tensors,
                                   .prefixes = kLlamaPrefixes,
                                   .experts = true};

}  // namespace trireme::models
