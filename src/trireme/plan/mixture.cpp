#include "trireme/plan/mixture.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::plan {
namespace {

double mlp_weights(const spec::ModelShape& shape, std::int64_t inner) {
  return static_cast<double>(shape.hidden_size * inner) * (shape.gated ? 3 : 2);
}

/// Of the matrices of latent attention.
double latent_weights(const spec::ModelShape& shape, const Mla& latent) {
  const std::int64_t queries = shape.num_heads * (shape.head_dim + latent.qk_rope_head_dim);
  const std::int64_t keys_values = shape.num_heads * (shape.head_dim + latent.v_head_dim);
  return static_cast<double>(shape.hidden_size * latent.q_lora_rank + latent.q_lora_rank * queries +
                             shape.hidden_size * (latent.kv_lora_rank + latent.qk_rope_head_dim) +
                             latent.kv_lora_rank * keys_values +
                             shape.num_heads * latent.v_head_dim * shape.hidden_size);
}

double plain_attention_weights(const spec::ModelShape& shape) {
  const std::int64_t queries = shape.num_heads * shape.head_dim, keys = shape.num_kv_heads * shape.head_dim;
  return static_cast<double>(shape.hidden_size * (2 * queries + 2 * keys));
}

/// What latent attention has more than the plain one that spec counts, of one layer.
double latent_surplus(const spec::ModelShape& shape, const Mla& latent) {
  if (latent.q_lora_rank == 0) return 0;
  return latent_weights(shape, latent) - plain_attention_weights(shape) +
         static_cast<double>(latent.q_lora_rank + latent.kv_lora_rank);  // norms of the latents
}

}  // namespace

void describe(config::Section<Experts>& section) {
  section.meaning("mixture of experts (MoE)");
  section.field("num_experts", &Experts::num_experts, "routed experts of each MoE layer").range(1, 1 << 20);
  section.field("top_k", &Experts::top_k, "experts that the router chooses for each token").range(1, 1 << 20);
  section.field("ffn_size", &Experts::ffn_size, "hidden size of an expert's MLP; 0: model.ffn_size").range(0, 1 << 20);
  section.field("num_shared_experts", &Experts::num_shared_experts, "shared experts, which process every token")
      .range(0, 1 << 10);
  section.field("every", &Experts::every, "one layer in this many is an MoE layer").range(1, 1 << 10);
  section.field("first_dense_layers", &Experts::first_dense_layers, "dense layers at the bottom, before the MoE layers")
      .range(0, 1 << 16);
  section
      .field("capacity_factor", &Experts::capacity_factor,
             "tokens an expert is padded to, over an even share; 0: dropless, as many tokens as are routed to it")
      .at_least(0);
  section.retired("count", "num_experts");
  section.retired("active", "top_k");
  section.retired("shared", "num_shared_experts");
  section.retired("inner", "ffn_size");
  section.retired("dense_layers", "first_dense_layers");
  section.retired("capacity", "capacity_factor");
}

void describe(config::Section<Mla>& section) {
  section.meaning("multi-head latent attention (DeepSeek-V2, 2405.04434)");
  section.field("q_lora_rank", &Mla::q_lora_rank, "rank of the query latent; 0: no latent attention").range(0, 1 << 20);
  section.field("kv_lora_rank", &Mla::kv_lora_rank, "rank of the key and value latent").range(0, 1 << 20);
  section
      .field("qk_rope_head_dim", &Mla::qk_rope_head_dim,
             "dimension of a query and key head that has RoPE, beside model.head_dim without")
      .range(0, 1 << 16);
  section.field("v_head_dim", &Mla::v_head_dim, "dimension of a value head").range(0, 1 << 16);
  section.retired("query_rank", "q_lora_rank");
  section.retired("key_rank", "kv_lora_rank");
  section.retired("rotary_size", "qk_rope_head_dim");
  section.retired("value_size", "v_head_dim");
}

void describe(config::Section<MixtureFile>& section) {
  section.meaning("a published mixture-of-experts model");
  section.field("name", &MixtureFile::name, "name of the model").required();
  section.section("model", &MixtureFile::model);
  section.section("experts", &MixtureFile::experts);
  section.section("mla", &MixtureFile::mla);
  section.retired("latent", "mla");
}

std::vector<config::Problem> find_problems(const MixtureFile& file) {
  std::vector<config::Problem> problems = spec::find_problems(file.model);
  const auto shape = spec::shape_of(file.model);
  const auto add = [&problems](const char* key, std::string reason, std::string hint) {
    problems.push_back({.key = key, .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  };
  if (!shape) add("model.family", "is not given", "set model.family = \"llama\"");
  if (file.experts.num_experts < 1)
    add("experts.num_experts", "there are no experts", "a dense model belongs into recipes/models");
  if (file.experts.top_k > file.experts.num_experts)
    add("experts.top_k", fmt::format("{} of {} experts", file.experts.top_k, file.experts.num_experts),
        fmt::format("set experts.top_k = {}", file.experts.num_experts));
  if (shape && file.experts.first_dense_layers >= shape->num_layers + shape->num_encoder_layers)
    add("experts.first_dense_layers",
        fmt::format("leaves no MoE layer of {} layers", shape->num_layers + shape->num_encoder_layers),
        "set experts.first_dense_layers = 0");
  if (file.mla.q_lora_rank > 0 && (file.mla.kv_lora_rank == 0 || file.mla.v_head_dim == 0))
    add("mla", "needs q_lora_rank, kv_lora_rank and v_head_dim together", "give all three");
  return problems;
}

std::int64_t expert_layers(const spec::ModelShape& shape, const Experts& experts) {
  if (experts.num_experts == 0) return 0;
  return std::max<std::int64_t>(0, shape.num_layers + shape.num_encoder_layers - experts.first_dense_layers) /
         experts.every;
}

std::int64_t expert_inner(const spec::ModelShape& shape, const Experts& experts) {
  return experts.ffn_size > 0 ? experts.ffn_size : shape.ffn_size;
}

MixtureCount count_parameters(const spec::ModelShape& shape, const Mixture& mixture) {
  const spec::ParameterCount plain = spec::count_parameters(shape);
  MixtureCount count;
  count.embedding = static_cast<double>(plain.embedding);
  count.head = static_cast<double>(plain.head);
  const auto layers = static_cast<double>(shape.num_layers + shape.num_encoder_layers);
  count.dense = static_cast<double>(plain.layers) + layers * latent_surplus(shape, mixture.mla);
  const auto mixed = static_cast<double>(expert_layers(shape, mixture.experts));
  if (mixed == 0) return count;
  const double bias =
      shape.mlp_bias ? static_cast<double>(shape.hidden_size + (shape.gated ? 2 : 1) * shape.ffn_size) : 0;
  const double expert = mlp_weights(shape, expert_inner(shape, mixture.experts)) + bias;
  count.dense -= mixed * (mlp_weights(shape, shape.ffn_size) + bias);
  count.dense += mixed * (static_cast<double>(mixture.experts.num_shared_experts) * expert +
                          static_cast<double>(shape.hidden_size * mixture.experts.num_experts));  // the router
  count.experts = mixed * expert * static_cast<double>(mixture.experts.num_experts);
  count.active_experts = mixed * expert * static_cast<double>(mixture.experts.top_k);
  return count;
}

MixtureFlops count_flops(const spec::ModelShape& shape, const Mixture& mixture, std::int64_t length) {
  const spec::FlopCount plain = spec::count_flops(shape, length, shape.num_encoder_layers > 0 ? length : 0);
  const auto tokens = static_cast<double>(length);
  const auto layers = static_cast<double>(shape.num_layers + shape.num_encoder_layers);
  MixtureFlops flops{.projections = plain.projections, .head = plain.head};
  double score = static_cast<double>(2 * shape.num_heads * shape.head_dim);  // of queries with keys, and of values
  if (mixture.mla.q_lora_rank > 0) {
    flops.projections += 2 * tokens * layers * (latent_weights(shape, mixture.mla) - plain_attention_weights(shape));
    score =
        static_cast<double>(shape.num_heads * (shape.head_dim + mixture.mla.qk_rope_head_dim + mixture.mla.v_head_dim));
  }
  flops.attention = 2 * score * tokens * tokens * layers;
  const auto mixed = static_cast<double>(expert_layers(shape, mixture.experts));
  if (mixed > 0) {
    const auto visited = static_cast<double>(mixture.experts.top_k + mixture.experts.num_shared_experts);
    flops.projections +=
        2 * tokens * mixed *
        (visited * mlp_weights(shape, expert_inner(shape, mixture.experts)) - mlp_weights(shape, shape.ffn_size) +
         static_cast<double>(shape.hidden_size * mixture.experts.num_experts));
  }
  return flops;
}

}  // namespace trireme::plan
