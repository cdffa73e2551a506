// BERT's encoder with its masked-LM head.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/formats/format_error.h"
#include "trireme/models/families/families.h"

namespace trireme::models {
namespace {

constexpr std::string_view kBertPrefixes[] = {"bert."};

spec::ModelShape read_bert_config(const formats::HfConfig& config) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kBert);
  shape.vocab_size = config.get<std::int64_t>("vocab_size");
  shape.hidden_size = config.get<std::int64_t>("hidden_size");
  shape.num_layers = config.get<std::int64_t>("num_hidden_layers");
  shape.num_heads = shape.num_kv_heads = config.get<std::int64_t>("num_attention_heads");
  if (shape.num_heads < 1 || shape.hidden_size % shape.num_heads != 0) {
    unsupported(config, "num_attention_heads", std::to_string(shape.num_heads),
                fmt::format("it must divide hidden_size = {}", shape.hidden_size));
  }
  shape.head_dim = shape.hidden_size / shape.num_heads;
  shape.ffn_size = config.get<std::int64_t>("intermediate_size");
  shape.max_seq_len = config.get_or<std::int64_t>("max_position_embeddings", 512);
  shape.segments = config.get_or<std::int64_t>("type_vocab_size", 2);
  shape.activation = activation_named(config, "hidden_act", "gelu");
  shape.epsilon = config.get_or<double>("layer_norm_eps", 1e-12);
  shape.dropout = config.get_or<double>("hidden_dropout_prob", 0.1);
  shape.attention_dropout = config.get_or<double>("attention_probs_dropout_prob", 0.1);
  shape.init_std = config.get_or<double>("initializer_range", 0.02);
  shape.tied = config.get_or<bool>("tie_word_embeddings", true);
  const auto positions = config.get_or<std::string>("position_embedding_type", "absolute");
  if (positions != "absolute") {
    unsupported(config, "position_embedding_type", formats::shown(positions), "supported is absolute");
  }
  if (config.get_or<bool>("is_decoder", false)) unsupported(config, "is_decoder", "true", "set it to false");
  return shape;
}

void write_bert_config(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("vocab_size", shape.vocab_size);
  config.set("hidden_size", shape.hidden_size);
  config.set("num_hidden_layers", shape.num_layers);
  config.set("num_attention_heads", shape.num_heads);
  config.set("intermediate_size", shape.ffn_size);
  config.set("max_position_embeddings", shape.max_seq_len);
  config.set("type_vocab_size", shape.segments);
  config.set("hidden_act", published_name(shape.activation));
  config.set("layer_norm_eps", shape.epsilon);
  config.set("hidden_dropout_prob", shape.dropout);
  config.set("attention_probs_dropout_prob", shape.attention_dropout);
  config.set("initializer_range", shape.init_std);
  config.set("tie_word_embeddings", shape.tied);
}

std::vector<PublishedTensor> bert_tensors(Model& model, const TensorNaming& naming) {
  const std::string& prefix = naming.prefix;
  const std::int64_t heads_dim = model.shape.num_heads * model.shape.head_dim;
  TensorList list(model);
  const auto pair = [&](const std::string& name, const std::string& param) {
    list.add(name + ".weight", param + ".weight");
    list.add(name + ".bias", param + ".bias");
  };
  list.add(prefix + "embeddings.word_embeddings.weight", "embedding.tokens.weight");
  list.add(prefix + "embeddings.position_embeddings.weight", "embedding.positions.weight");
  list.add(prefix + "embeddings.token_type_embeddings.weight", "embedding.segments.weight");
  pair(prefix + "embeddings.LayerNorm", "embedding.norm");
  for (std::int64_t layer = 0; layer < model.shape.num_layers; ++layer) {
    const std::string theirs = fmt::format("{}encoder.layer.{}.", prefix, layer),
                      ours = fmt::format("layers.{}.", layer);
    std::int64_t row = 0;
    for (const char* name : {"query", "key", "value"}) {
      for (const char* kind : {"weight", "bias"}) {
        list.add_rows(fmt::format("{}attention.self.{}.{}", theirs, name, kind),
                      fmt::format("{}attention.qkv.{}", ours, kind), row, heads_dim);
      }
      row += heads_dim;
    }
    pair(theirs + "attention.output.dense", ours + "attention.out");
    pair(theirs + "attention.output.LayerNorm", ours + "attention.norm");
    pair(theirs + "intermediate.dense", ours + "mlp.in");
    pair(theirs + "output.dense", ours + "mlp.out");
    pair(theirs + "output.LayerNorm", ours + "mlp.norm");
  }
  pair("cls.predictions.transform.dense", "head.dense");
  pair("cls.predictions.transform.LayerNorm", "head.norm");
  list.add("cls.predictions.bias", "head.bias");
  const bool tied = model.shape.tied;
  list.add("cls.predictions.decoder.weight", tied ? "embedding.tokens.weight" : "head.weight", false, tied);
  list.add("cls.predictions.decoder.bias", "head.bias", false, true);
  return list.take();
}

}  // namespace

const FamilyFormat kBertFormat{.model_type = "bert",
                               .architecture = "BertForMaskedLM",
                               .family = spec::Family::kBert,
                               .read_config = read_bert_config,
                               .write_config = write_bert_config,
                               .tensors = bert_tensors,
                               .prefixes = kBertPrefixes};

}  // namespace trireme::models
