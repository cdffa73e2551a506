// Model families of the trainer as graphs: what a recipe's [model] says, operator by operator.
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/plan/graph/models.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan::graph {
namespace {

bool is_plain_gpt(const spec::ModelShape& shape) {
  return shape.family == spec::Family::kGpt2 && shape.norm == spec::NormKind::kLayer && !shape.gated &&
         shape.position_kind == spec::PositionKind::kLearned && shape.activation != spec::Activation::kRelu &&
         shape.activation != spec::Activation::kSilu && shape.attention_bias && shape.output_bias && shape.mlp_bias &&
         !shape.query_key_norm && shape.num_kv_heads == shape.num_heads && shape.window == 0 && shape.tied;
}

/// What of a shape graphs have no operator for.
std::vector<std::string> lacking(const spec::ModelShape& shape) {
  std::vector<std::string> lacks;
  const auto need = [&](bool has, const char* what) {
    if (!has) lacks.emplace_back(what);
  };
  const bool is_bert = shape.family == spec::Family::kBert;
  need(!spec::has_encoder(shape.family), "encoders beside decoders (there is the graph gnmt)");
  if (is_bert) {
    need(!shape.norm_first && !shape.causal && shape.norm == spec::NormKind::kLayer && shape.segments == 2 &&
             shape.position_kind == spec::PositionKind::kLearned && !shape.gated && shape.attention_bias &&
             shape.output_bias && shape.mlp_bias && shape.num_kv_heads == shape.num_heads && shape.tied &&
             (shape.activation == spec::Activation::kGelu || shape.activation == spec::Activation::kGeluTanh) &&
             shape.window == 0 && !shape.query_key_norm,
         "encoders of another make than BERT's");
  } else if (!spec::has_encoder(shape.family)) {
    need(shape.norm_first && shape.causal, "other orders than pre-norm decoders");
    need(shape.position_kind == spec::PositionKind::kLearned || shape.position_kind == spec::PositionKind::kRotary,
         "positions that are neither learned nor rotary");
  }
  need(shape.position_kind != spec::PositionKind::kRotary || shape.rotary.scaling == spec::RotaryScaling::kNone,
       "rotary positions that are scaled");
  need(!shape.mla.used(), "latent attention");
  need(!shape.sparse_attention.used(), "sparse attention");
  need(!shape.embedding_scale, "embeddings that are scaled");
  need(shape.mup_base_hidden_size == 0, "factors of muP");
  need(!shape.experts.used() && shape.mtp_depth == 0, "the trainer's experts (there is the graph moe)");
  return lacks;
}

}  // namespace

Graph graph_of_family(const std::string& name, const spec::ModelShape& shape, Index batch) {
  if (const std::vector<std::string> lacks = lacking(shape); !lacks.empty())
    throw ConfigError(fmt::format("{} as an operator graph: graphs have no {}", name, listed(lacks)),
                      "take another model, such as gpt2-124m or llama3-8b, or write the graph as text");
  const bool is_bert = shape.family == spec::Family::kBert;
  if (!is_bert && !is_plain_gpt(shape)) return decoder(name, shape, batch);
  const TransformerShape sizes{.batch = batch,
                               .seq_len = shape.max_seq_len,
                               .layers = shape.num_layers,
                               .hidden = shape.hidden_size,
                               .heads = shape.num_heads,
                               .vocab = shape.vocab_size,
                               .positions = shape.max_seq_len,
                               .head_dim = shape.head_dim,
                               .ffn = shape.ffn_size,
                               .next_sentence = false};
  return is_bert ? bert(name, sizes) : gpt(name, sizes);
}

Graph import_recipe(const std::string& path, Index batch) {
  const spec::Recipe recipe = spec::load_recipe({.file = path}).value;
  const std::optional<spec::ModelShape> shape = spec::shape_of(recipe.model);
  if (!shape) throw ConfigError(path + " has no model.family", "name a recipe with a [model]");
  return graph_of_family(recipe.run.name, *shape, batch > 0 ? batch : 8);
}

}  // namespace trireme::plan::graph
