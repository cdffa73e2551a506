// T5 1.0 and 1.1, and Switch Transformer, which is T5 with experts in every other layer.
//
// The reference gives an expert room for `expert_capacity` tokens of a sequence, whatever its length, and lets a token
// beyond it pass times its gate. Here models are read dropless, which is the same wherever no expert has more.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/formats/format_error.h"
#include "trireme/models/families/families.h"

namespace trireme::models {
namespace {

constexpr std::string_view kT5Prefixes[] = {""};
constexpr std::int64_t kPositions = 512;  // trained with; nothing in the model ends there

void read_sizes(const formats::HfConfig& config, spec::ModelShape& shape) {
  shape.vocab_size = config.get<std::int64_t>("vocab_size");
  shape.hidden_size = config.get<std::int64_t>("d_model");
  shape.head_dim = config.get<std::int64_t>("d_kv");
  shape.ffn_size = config.get<std::int64_t>("d_ff");
  shape.num_encoder_layers = config.get<std::int64_t>("num_layers");
  shape.num_layers = config.get_or<std::int64_t>("num_decoder_layers", shape.num_encoder_layers);
  shape.num_heads = shape.num_kv_heads = config.get<std::int64_t>("num_heads");
  shape.max_seq_len = config.get_or<std::int64_t>("n_positions", kPositions);
  shape.relative_attention_num_buckets = config.get_or<std::int64_t>("relative_attention_num_buckets", 32);
  shape.relative_attention_max_distance = config.get_or<std::int64_t>("relative_attention_max_distance", 128);
  shape.epsilon = config.get_or<double>("layer_norm_epsilon", 1e-6);
  shape.dropout = config.get_or<double>("dropout_rate", 0.1);
  shape.tied = config.get_or<bool>("tie_word_embeddings", true);
  if (!config.get_or<bool>("is_encoder_decoder", true))
    unsupported(config, "is_encoder_decoder", "false", "models with an encoder and a decoder");
}

/// "relu", "gated-gelu".
void read_activation(const formats::HfConfig& config, spec::ModelShape& shape) {
  constexpr std::string_view kGated = "gated-";
  const auto name = config.get_or<std::string>("feed_forward_proj", "relu");
  shape.gated = name.starts_with(kGated);
  if (name == "gated-gelu") {  // by which the reference means gelu_new
    shape.activation = spec::Activation::kGeluTanh;
  } else if (name == "relu" || name == "gated-silu") {
    shape.activation = name == "relu" ? spec::Activation::kRelu : spec::Activation::kSilu;
  } else {
    unsupported(config, "feed_forward_proj", formats::shown(name), "supported are relu, gated-gelu and gated-silu");
  }
}

/// One layer in so many has experts, of a stack of `layers`.
std::int64_t read_sparse_step(const formats::HfConfig& config, const char* key, std::int64_t layers) {
  const auto sparse = config.get_or<std::int64_t>(key, 3);
  const std::int64_t step = sparse > 0 ? layers / sparse : 0;
  // The reference puts experts into layers 1, 1 + step, ...: with larger steps not the last of each.
  if (step < 1 || step > 2 || layers % step != 0)
    unsupported(config, key, fmt::format("{} of {} layers", sparse, layers), "all layers, or every other one");
  return step;
}

spec::Experts read_switch_experts(const formats::HfConfig& config, const spec::ModelShape& shape) {
  spec::Experts experts{.num_experts = config.get_or<std::int64_t>("num_experts", 8), .top_k = 1};
  experts.router = spec::RouterKind::kSwitch;
  experts.every = read_sparse_step(config, "num_sparse_encoder_layers", shape.num_encoder_layers);
  const std::int64_t decoder = read_sparse_step(config, "num_sparse_decoder_layers", shape.num_layers);
  if (decoder != experts.every)
    unsupported(config, "num_sparse_decoder_layers", fmt::format("one layer in {}", decoder),
                fmt::format("one in {}, as in the encoder", experts.every));
  if (config.get_or<bool>("router_bias", false)) unsupported(config, "router_bias", "true", "routers have no bias");
  experts.jitter = config.get_or<double>("router_jitter_noise", 0.01);
  if (config.get_or<bool>("output_router_logits", false)) {  // then the reference adds the losses
    experts.aux_loss_weight = config.get_or<double>("router_aux_loss_coef", 0.001);
    experts.z_loss_weight = config.get_or<double>("router_z_loss_coef", 0.001);
  }
  return experts;
}

template <bool kSwitch>
spec::ModelShape read_t5_config(const formats::HfConfig& config) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kT5);
  read_sizes(config, shape);
  if constexpr (kSwitch) {
    shape.activation = activation_named(config, "dense_act_fn", "relu");
    shape.experts = read_switch_experts(config, shape);
  } else {
    read_activation(config, shape);
  }
  return shape;
}

void write_switch_experts(const spec::ModelShape& shape, formats::HfConfig& config) {
  const spec::Experts& experts = shape.experts;
  const auto room = static_cast<double>(shape.max_seq_len) / static_cast<double>(experts.num_experts);
  config.set("dense_act_fn", published_name(shape.activation));
  config.set("num_experts", experts.num_experts);
  config.set("num_sparse_encoder_layers", shape.num_encoder_layers / experts.every);
  config.set("num_sparse_decoder_layers", shape.num_layers / experts.every);
  config.set("expert_capacity", experts.capacity_factor > 0
                                    ? static_cast<std::int64_t>(room * experts.capacity_factor + 0.999)
                                    : shape.max_seq_len);
  config.set("router_bias", false);
  config.set("router_dtype", "float32");
  config.set("router_jitter_noise", experts.jitter);
  config.set("output_router_logits", experts.aux_loss_weight > 0 || experts.z_loss_weight > 0);
  config.set("router_aux_loss_coef", experts.aux_loss_weight);
  config.set("router_z_loss_coef", experts.z_loss_weight);
}

void write_t5_config(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("vocab_size", shape.vocab_size);
  config.set("d_model", shape.hidden_size);
  config.set("d_kv", shape.head_dim);
  config.set("d_ff", shape.ffn_size);
  config.set("num_layers", shape.num_encoder_layers);
  config.set("num_decoder_layers", shape.num_layers);
  config.set("num_heads", shape.num_heads);
  config.set("n_positions", shape.max_seq_len);
  config.set("relative_attention_num_buckets", shape.relative_attention_num_buckets);
  config.set("relative_attention_max_distance", shape.relative_attention_max_distance);
  config.set("layer_norm_epsilon", shape.epsilon);
  config.set("dropout_rate", shape.dropout);
  config.set("tie_word_embeddings", shape.tied);
  config.set("is_encoder_decoder", true);
  config.set("decoder_start_token_id", 0);
  if (shape.experts.used()) return write_switch_experts(shape, config);
  config.set("feed_forward_proj", !shape.gated                                      ? "relu"
                                  : shape.activation == spec::Activation::kGeluTanh ? "gated-gelu"
                                                                                    : "gated-silu");
}

/// The blocks of one stack.
class Stack {
 public:
  Stack(TensorList& list, const spec::ModelShape& shape, bool encoder)
      : list_(list), shape_(shape), encoder_(encoder) {}

  void add() {
    const std::int64_t layers = encoder_ ? shape_.num_encoder_layers : shape_.num_layers;
    const std::string stack = encoder_ ? "encoder" : "decoder";
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::string theirs = fmt::format("{}.block.{}.layer.", stack, layer),
                        ours = fmt::format("{}layers.{}.", encoder_ ? "encoder." : "", layer);
      self_attention(theirs + "0.", ours + "attention.", layer);
      if (!encoder_) cross_attention(theirs + "1.", ours + "cross.");
      mlp(theirs + (encoder_ ? "1." : "2."), ours + "mlp.", layer);
    }
    list_.add(stack + ".final_layer_norm.weight", encoder_ ? "encoder.norm.weight" : "norm.weight");
  }

 private:
  void self_attention(const std::string& theirs, const std::string& ours, std::int64_t layer) {
    const std::int64_t heads_dim = shape_.num_heads * shape_.head_dim;
    std::int64_t row = 0;
    for (const char* name : {"q", "k", "v"}) {
      list_.add_rows(fmt::format("{}SelfAttention.{}.weight", theirs, name), ours + "qkv.weight", row, heads_dim);
      row += heads_dim;
    }
    list_.add(theirs + "SelfAttention.o.weight", ours + "out.weight");
    if (layer == 0)  // the first layer's serves all of the stack
      list_.add(theirs + "SelfAttention.relative_attention_bias.weight",
                encoder_ ? "encoder.relative_bias.weight" : "relative_bias.weight");
    list_.add(theirs + "layer_norm.weight", ours + "norm.weight");
  }
  void cross_attention(const std::string& theirs, const std::string& ours) {
    const std::int64_t heads_dim = shape_.num_heads * shape_.head_dim;
    list_.add(theirs + "EncDecAttention.q.weight", ours + "q.weight");
    list_.add_rows(theirs + "EncDecAttention.k.weight", ours + "kv.weight", 0, heads_dim);
    list_.add_rows(theirs + "EncDecAttention.v.weight", ours + "kv.weight", heads_dim, heads_dim);
    list_.add(theirs + "EncDecAttention.o.weight", ours + "out.weight");
    list_.add(theirs + "layer_norm.weight", ours + "norm.weight");
  }
  void mlp(const std::string& theirs, const std::string& ours, std::int64_t layer) {
    list_.add(theirs + "layer_norm.weight", ours + "norm.weight");
    if (spec::has_experts(shape_, layer)) {
      list_.add(theirs + "mlp.router.classifier.weight", ours + "router.weight");
      list_.add_experts(
          {.each = theirs + "mlp.experts", .fused = {}, .up = "wi", .down = "wo", .before_number = "expert_"},
          ours.substr(0, ours.size() - 1), /*fused=*/false);
      return;
    }
    const std::string dense = theirs + (shape_.experts.used() ? "mlp" : "DenseReluDense");
    if (shape_.gated) {
      list_.add_rows(dense + ".wi_0.weight", ours + "in.weight", 0, shape_.ffn_size);
      list_.add_rows(dense + ".wi_1.weight", ours + "in.weight", shape_.ffn_size, shape_.ffn_size);
    } else {
      list_.add(dense + ".wi.weight", ours + "in.weight");
    }
    list_.add(dense + ".wo.weight", ours + "out.weight");
  }

  TensorList& list_;
  const spec::ModelShape& shape_;
  bool encoder_;
};

std::vector<PublishedTensor> t5_tensors(Model& model, const TensorNaming&) {
  TensorList list(model);
  list.add("shared.weight", "embedding.tokens.weight");
  for (const char* stack : {"encoder", "decoder"})
    list.add(fmt::format("{}.embed_tokens.weight", stack), "embedding.tokens.weight", false, /*optional=*/true);
  Stack(list, model.shape, /*encoder=*/true).add();
  Stack(list, model.shape, /*encoder=*/false).add();
  list.add_head();
  return list.take();
}

}  // namespace

const FamilyFormat kT5Format{.model_type = "t5",
                             .architecture = "T5ForConditionalGeneration",
                             .family = spec::Family::kT5,
                             .read_config = read_t5_config<false>,
                             .write_config = write_t5_config,
                             .tensors = t5_tensors,
                             .prefixes = kT5Prefixes};
const FamilyFormat kSwitchFormat{.model_type = "switch_transformers",
                                 .architecture = "SwitchTransformersForConditionalGeneration",
                                 .family = spec::Family::kT5,
                                 .read_config = read_t5_config<true>,
                                 .write_config = write_t5_config,
                                 .tensors = t5_tensors,
                                 .prefixes = kT5Prefixes,
                                 .experts = true};

}  // namespace trireme::models
