#include "trireme/spec/model_config.h"

#include <fmt/format.h>

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
  visit(section.rotary.truncate, shape.rotary.truncate);
  visit(section.window, shape.window);
  visit(section.window_layers, shape.window_layers);
  visit(section.window_from, shape.window_from);
  visit(section.tied, shape.tied);
  visit(section.embedding_scale, shape.embedding_scale);
  visit(section.dropout, shape.dropout);
  visit(section.attention_dropout, shape.attention_dropout);
  visit(section.label_smoothing, shape.label_smoothing);
  visit(section.z_loss, shape.z_loss);
  visit(section.init_std, shape.init_std);
  visit(section.scaled_residual_init, shape.scaled_residual_init);
}

/// Every key set.
ModelConfig whole_config(const ModelShape& shape) {
  ModelConfig config;
  config.family = shape.family;
  visit_pairs(config, shape, [](auto& key, const auto& value) { key = value; });
  return config;
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
  section.meaning("rotary positions, and how they are stretched to longer contexts than were trained first");
  section.field("base", &RotaryConfig::base, "of the wavelengths, which grow from 2 pi to about 2 pi times this")
      .above(0.0);
  section.field("scaling", &RotaryConfig::scaling, "none, or as published: linear, Llama 3.1's, YaRN");
  section.field("factor", &RotaryConfig::factor, "how much longer the context becomes").above(0.0);
  section.field("low_frequency", &RotaryConfig::low_frequency, "llama3: turns below which a wave is stretched whole");
  section.field("high_frequency", &RotaryConfig::high_frequency, "llama3: turns above which a wave stays as it is");
  section.field("original_positions", &RotaryConfig::original_positions, "llama3, yarn: the context trained first")
      .at_least(1);
  section.field("beta_fast", &RotaryConfig::beta_fast, "yarn: turns above which a wave stays as it is").above(0.0);
  section.field("beta_slow", &RotaryConfig::beta_slow, "yarn: turns below which a wave is stretched whole").above(0.0);
  section
      .field("attention_factor", &RotaryConfig::attention_factor,
             "yarn: magnitude of cosines and sines; 0: 0.1 ln(factor) + 1")
      .at_least(0.0);
  section.field("truncate", &RotaryConfig::truncate, "yarn: round the blended range to whole pairs");
}

void describe(config::Section<ModelConfig>& section) {
  section.meaning("the model's shape: a family, and what differs from its smallest published model");
  section.field("family", &ModelConfig::family,
                "whose features an unset key below has; gpt2 also stands for GPT-3, llama for Llama 2 and 3, qwen2 for "
                "Qwen 2.5; unset: no model");
  section.field("init_from", &ModelConfig::init_from,
                "Hugging Face folder that the run starts from: its shape, changed by the keys given here, and its "
                "weights; unset: weights are drawn from run.seed");
  section.field("vocab_size", &ModelConfig::vocab_size, "how many token numbers there are").at_least(1);
  section.field("max_seq_len", &ModelConfig::max_seq_len, "the longest sequence").at_least(1);
  section.field("hidden_size", &ModelConfig::hidden_size, "numbers a token, between layers").at_least(1);
  section.field("num_layers", &ModelConfig::num_layers, "decoder layers where there is an encoder too").at_least(1);
  section.field("num_encoder_layers", &ModelConfig::num_encoder_layers, "transformer: layers of the encoder")
      .at_least(0);
  section.field("num_heads", &ModelConfig::num_heads, "of queries").at_least(1);
  section.field("num_kv_heads", &ModelConfig::num_kv_heads, "of keys and values; fewer than heads: grouped queries")
      .at_least(1);
  section.field("head_dim", &ModelConfig::head_dim, "numbers a head").at_least(1);
  section.field("ffn_size", &ModelConfig::ffn_size, "width of the MLP's middle").at_least(1);
  section.field("segments", &ModelConfig::segments, "bert: token types").at_least(0);
  section.field("norm", &ModelConfig::norm, "LayerNorm or RMSNorm");
  section.field("epsilon", &ModelConfig::epsilon, "added to variances in norms").above(0.0);
  section.field("norm_first", &ModelConfig::norm_first,
                "norms before attention and MLP, and a last one; false: after their residual sums");
  section.field("activation", &ModelConfig::activation, "of the MLP");
  section.field("gated", &ModelConfig::gated, "the MLP multiplies act(gate) with a second projection");
  section.field("attention_bias", &ModelConfig::attention_bias, "of queries, keys and values");
  section.field("output_bias", &ModelConfig::output_bias, "of attention's output");
  section.field("mlp_bias", &ModelConfig::mlp_bias, "of the MLP's projections");
  section.field("query_key_norm", &ModelConfig::query_key_norm, "RMSNorm of each head's queries and keys");
  section.field("causal", &ModelConfig::causal, "a token sees itself and earlier ones only");
  section.field("position_kind", &ModelConfig::position_kind, "how positions get in");
  section.section("rotary", &ModelConfig::rotary);
  section.field("window", &ModelConfig::window, "positions a token sees back, itself included; 0: all").at_least(0);
  section.field("window_layers", &ModelConfig::window_layers,
                "which layers have the window; odd: every second one, as GPT-3; from: those from window_from on");
  section.field("window_from", &ModelConfig::window_from, "first layer with the window").at_least(0);
  section.field("tied", &ModelConfig::tied, "the head's weight is the token embedding");
  section.field("embedding_scale", &ModelConfig::embedding_scale, "token vectors are multiplied by sqrt(width)");
  section.field("dropout", &ModelConfig::dropout, "share that falls of residual branches and embeddings");
  section.field("attention_dropout", &ModelConfig::attention_dropout, "share that falls of attention probabilities");
  section.field("label_smoothing", &ModelConfig::label_smoothing, "share of the target spread over the vocabulary");
  section.field("z_loss", &ModelConfig::z_loss, "weight of the squared log-partition in the loss").at_least(0.0);
  section.field("init_std", &ModelConfig::init_std, "standard deviation that matrices start with").at_least(0.0);
  section.field("scaled_residual_init", &ModelConfig::scaled_residual_init,
                "output projections start smaller by sqrt(2 layers), as GPT-2's");
}

std::optional<ModelShape> shape_of(const ModelConfig& config) {
  if (!config.family) return std::nullopt;
  return with_keys(family_shape(*config.family), config);
}

ModelShape with_keys(ModelShape shape, const ModelConfig& config) {
  visit_pairs(config, shape, [](const auto& key, auto& value) {
    if (key) value = *key;
  });
  return shape;
}

ModelConfig resolved(const ModelConfig& config) {
  const auto shape = shape_of(config);
  if (!shape) return config;
  ModelConfig whole = whole_config(*shape);
  whole.init_from = config.init_from;
  return whole;
}

ModelConfig config_of(const ModelShape& shape) {
  ModelConfig config = whole_config(shape);
  const ModelShape usual = family_shape(shape.family);
  visit_pairs(config, usual, [](auto& key, const auto& value) {
    if (key == value) key.reset();
  });
  return config;
}

std::vector<std::string> differences(const ModelShape& shape, const ModelShape& other) {
  const ModelConfig ours = whole_config(shape), theirs = whole_config(other);
  std::vector<std::string> out;
  add_differences(config::schema_of<ModelConfig>(), &ours, &theirs, "", out);
  return out;
}

std::vector<config::Problem> find_problems(const ModelConfig& config) {
  if (config.init_from) return {};  // the folder says the rest; whoever opens it looks for problems
  if (const auto shape = shape_of(config)) return find_problems(*shape, "model");
  if (config == ModelConfig{}) return {};
  return {{.key = "model",
           .reason = "is given without a family, so nothing uses it",
           .hint = "set model.family = \"gpt2\", or another of `trireme recipe docs`",
           .where = {}}};
}

}  // namespace trireme::spec
