// Model families of the trainer as graphs: what a recipe's [model] says, operator by operator.
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/plan/graph/models.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan::graph {
namespace {

/// What of a shape graphs have no operator for.
std::vector<std::string> lacking(const spec::ModelShape& shape) {
  std::vector<std::string> lacks;
  const auto need = [&](bool has, const char* what) {
    if (!has) lacks.emplace_back(what);
  };
  need(shape.norm == spec::NormKind::kLayer, "RMS norms");
  need(shape.norm_first && shape.causal && !spec::has_encoder(shape.family), "other orders than pre-norm decoders");
  need(shape.position_kind == spec::PositionKind::kLearned, "positions that are not learned");
  need(shape.activation == spec::Activation::kGelu || shape.activation == spec::Activation::kGeluTanh,
       "activations beside GELU");
  need(!shape.gated, "gated MLPs");
  need(shape.attention_bias && shape.output_bias && shape.mlp_bias, "matrices without biases");
  need(!shape.query_key_norm, "norms of queries and keys");
  need(shape.num_kv_heads == shape.num_heads, "grouped queries");
  need(!shape.mla.used(), "latent attention");
  need(shape.window == 0, "windows of attention");
  need(!shape.sparse_attention.used(), "sparse attention");
  need(shape.tied && !shape.embedding_scale, "heads with a weight of their own");
  need(!shape.experts.used() && shape.mtp_depth == 0, "the trainer's experts (there is the graph moe)");
  return lacks;
}

}  // namespace

Graph graph_of_family(const std::string& name, const spec::ModelShape& shape, Index batch) {
  if (const std::vector<std::string> lacks = lacking(shape); !lacks.empty())
    throw ConfigError(fmt::format("{} as an operator graph: graphs have no {}", name, listed(lacks)),
                      "take a model of family gpt2, or write the graph as text");
  return gpt(name, {.batch = batch,
                    .seq_len = shape.max_seq_len,
                    .layers = shape.num_layers,
                    .hidden = shape.hidden_size,
                    .heads = shape.num_heads,
                    .vocab = shape.vocab_size,
                    .positions = shape.max_seq_len,
                    .head_dim = shape.head_dim,
                    .ffn = shape.ffn_size});
}

Graph import_recipe(const std::string& path, Index batch) {
  const spec::Recipe recipe = spec::load_recipe({.file = path}).value;
  const std::optional<spec::ModelShape> shape = spec::shape_of(recipe.model);
  if (!shape) throw ConfigError(path + " has no model.family", "name a recipe with a [model]");
  return graph_of_family(recipe.run.name, *shape, batch > 0 ? batch : 8);
}

}  // namespace trireme::plan::graph
