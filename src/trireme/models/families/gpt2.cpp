// GPT-2 and, at other sizes, GPT-3: weights of projections are published as [in, out].
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/base/log.h"
#include "trireme/models/families/families.h"

namespace trireme::models {
namespace {

constexpr std::string_view kGpt2Prefixes[] = {"transformer.", ""};

spec::ModelShape read_gpt2_config(const formats::HfConfig& config) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
  shape.vocab_size = config.get<std::int64_t>("vocab_size");
  shape.max_seq_len = config.get_or<std::int64_t>("n_positions", 1024);
  shape.hidden_size = config.get<std::int64_t>("n_embd");
  shape.num_layers = config.get<std::int64_t>("n_layer");
  shape.num_heads = shape.num_kv_heads = config.get<std::int64_t>("n_head");
  if (shape.num_heads < 1 || shape.hidden_size % shape.num_heads != 0) {
    unsupported(config, "n_head", std::to_string(shape.num_heads),
                fmt::format("it must divide n_embd = {}", shape.hidden_size));
  }
  shape.head_dim = shape.hidden_size / shape.num_heads;
  shape.ffn_size = config.get_or<std::int64_t>("n_inner", 4 * shape.hidden_size);
  shape.activation = activation_named(config, "activation_function", "gelu_new");
  shape.epsilon = config.get_or<double>("layer_norm_epsilon", 1e-5);
  shape.tied = config.get_or<bool>("tie_word_embeddings", true);
  shape.init_std = config.get_or<double>("initializer_range", 0.02);
  shape.dropout = config.get_or<double>("resid_pdrop", 0.1);
  shape.attention_dropout = config.get_or<double>("attn_pdrop", 0.1);
  if (!config.get_or<bool>("scale_attn_weights", true)) {
    unsupported(config, "scale_attn_weights", "false", "only scaled attention is supported");
  }
  if (config.get_or<bool>("scale_attn_by_inverse_layer_idx", false)) {
    unsupported(config, "scale_attn_by_inverse_layer_idx", "true", "set it to false");
  }
  if (config.get_or<bool>("add_cross_attention", false)) {
    unsupported(config, "add_cross_attention", "true", "only the decoder by itself is supported");
  }
  if (const double of_embedding = config.get_or<double>("embd_pdrop", 0.1); of_embedding != shape.dropout) {
    log_warn("{}: embd_pdrop is {} and resid_pdrop {}; in training both will be {}", config.source(), of_embedding,
             shape.dropout, shape.dropout);
  }
  return shape;
}

void write_gpt2_config(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("vocab_size", shape.vocab_size);
  config.set("n_positions", shape.max_seq_len);
  config.set("n_embd", shape.hidden_size);
  config.set("n_layer", shape.num_layers);
  config.set("n_head", shape.num_heads);
  config.set("n_inner", shape.ffn_size);
  config.set("activation_function", published_name(shape.activation));
  config.set("layer_norm_epsilon", shape.epsilon);
  config.set("tie_word_embeddings", shape.tied);
  config.set("initializer_range", shape.init_std);
  config.set("resid_pdrop", shape.dropout);
  config.set("embd_pdrop", shape.dropout);
  config.set("attn_pdrop", shape.attention_dropout);
}

std::vector<PublishedTensor> gpt2_tensors(Model& model, const TensorNaming& naming) {
  const std::string& prefix = naming.prefix;
  TensorList list(model);
  list.add(prefix + "wte.weight", "embedding.tokens.weight");
  list.add(prefix + "wpe.weight", "embedding.positions.weight");
  for (std::int64_t layer = 0; layer < model.shape.num_layers; ++layer) {
    const std::string theirs = fmt::format("{}h.{}.", prefix, layer), ours = fmt::format("layers.{}.", layer);
    const auto pair = [&](const char* name, const char* param, bool transposed) {
      list.add(fmt::format("{}{}.weight", theirs, name), fmt::format("{}{}.weight", ours, param), transposed);
      list.add(fmt::format("{}{}.bias", theirs, name), fmt::format("{}{}.bias", ours, param));
    };
    pair("ln_1", "attention.norm", false);
    pair("attn.c_attn", "attention.qkv", true);
    pair("attn.c_proj", "attention.out", true);
    pair("ln_2", "mlp.norm", false);
    pair("mlp.c_fc", "mlp.in", true);
    pair("mlp.c_proj", "mlp.out", true);
  }
  list.add(prefix + "ln_f.weight", "norm.weight");
  list.add(prefix + "ln_f.bias", "norm.bias");
  list.add_head();
  return list.take();
}

}  // namespace

const FamilyFormat kGpt2Format{.model_type = "gpt2",
                               .architecture = "GPT2LMHeadModel",
                               .family = spec::Family::kGpt2,
                               .read_config = read_gpt2_config,
                               .write_config = write_gpt2_config,
                               .tensors = gpt2_tensors,
                               .prefixes = kGpt2Prefixes};

}  // namespace trireme::models
