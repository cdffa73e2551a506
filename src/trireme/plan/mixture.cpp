#include "trireme/plan/mixture.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::plan {
namespace {

double mlp_weights(const spec::ModelShape& shape, std::int64_t inner) {
  return static_cast<double>(shape.width * inner) * (shape.gated ? 3 : 2);
}

/// Of the matrices of latent attention.
double latent_weights(const spec::ModelShape& shape, const Latent& latent) {
  const std::int64_t queries = shape.heads * (shape.head_size + latent.rotary_size);
  const std::int64_t keys_values = shape.heads * (shape.head_size + latent.value_size);
  return static_cast<double>(shape.width * latent.query_rank + latent.query_rank * queries +
                             shape.width * (latent.key_rank + latent.rotary_size) + latent.key_rank * keys_values +
                             shape.heads * latent.value_size * shape.width);
}

double plain_attention_weights(const spec::ModelShape& shape) {
  const std::int64_t queries = shape.heads * shape.head_size, keys = shape.kv_heads * shape.head_size;
  return static_cast<double>(shape.width * (2 * queries + 2 * keys));
}

/// What latent attention has more than the plain one that spec counts, of one layer.
double latent_surplus(const spec::ModelShape& shape, const Latent& latent) {
  if (latent.query_rank == 0) return 0;
  return latent_weights(shape, latent) - plain_attention_weights(shape) +
         static_cast<double>(latent.query_rank + latent.key_rank);  // norms of the latents
}

}  // namespace

void describe(config::Section<Experts>& section) {
  section.meaning("MLPs of which a router chooses a few for each token");
  section.field("count", &Experts::count, "of each layer that has them").range(1, 1 << 20);
  section.field("active", &Experts::active, "of them, those that a token visits").range(1, 1 << 20);
  section.field("inner", &Experts::inner, "width of an expert's middle; 0: the model's").range(0, 1 << 20);
  section.field("shared", &Experts::shared, "beside them, visited by all tokens").range(0, 1 << 10);
  section.field("every", &Experts::every, "one layer in so many has them").range(1, 1 << 10);
  section.field("dense_layers", &Experts::dense_layers, "the first ones, which have none").range(0, 1 << 16);
  section.field("capacity", &Experts::capacity, "padded to so much of an even share; 0: as many tokens as come")
      .at_least(0);
}

void describe(config::Section<Latent>& section) {
  section.meaning("attention from narrow latents (2405.04434)");
  section.field("query_rank", &Latent::query_rank, "width of the queries' latent; 0: plain attention")
      .range(0, 1 << 20);
  section.field("key_rank", &Latent::key_rank, "width of the latent of keys and values").range(0, 1 << 20);
  section.field("rotary_size", &Latent::rotary_size, "turned part of a query head, beside head_size").range(0, 1 << 16);
  section.field("value_size", &Latent::value_size, "of a value head").range(0, 1 << 16);
}

void describe(config::Section<MixtureFile>& section) {
  section.meaning("a published mixture of experts");
  section.field("name", &MixtureFile::name, "as people call it").required();
  section.section("model", &MixtureFile::model);
  section.section("experts", &MixtureFile::experts);
  section.section("latent", &MixtureFile::latent);
}

std::vector<config::Problem> find_problems(const MixtureFile& file) {
  std::vector<config::Problem> problems = spec::find_problems(file.model);
  const auto shape = spec::shape_of(file.model);
  const auto add = [&problems](const char* key, std::string reason, std::string hint) {
    problems.push_back({.key = key, .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  };
  if (!shape) add("model.family", "there is no model", "set model.family = \"llama\"");
  if (file.experts.count < 1) add("experts.count", "there are no experts", "put a dense model into recipes/models");
  if (file.experts.active > file.experts.count)
    add("experts.active", fmt::format("{} of {} experts", file.experts.active, file.experts.count),
        fmt::format("set experts.active = {}", file.experts.count));
  if (shape && file.experts.dense_layers >= shape->layers + shape->encoder_layers)
    add("experts.dense_layers", fmt::format("leaves none of {} layers", shape->layers + shape->encoder_layers),
        "set experts.dense_layers = 0");
  if (file.latent.query_rank > 0 && (file.latent.key_rank == 0 || file.latent.value_size == 0))
    add("latent", "needs query_rank, key_rank and value_size together", "give all three");
  return problems;
}

std::int64_t expert_layers(const spec::ModelShape& shape, const Experts& experts) {
  if (experts.count == 0) return 0;
  return std::max<std::int64_t>(0, shape.layers + shape.encoder_layers - experts.dense_layers) / experts.every;
}

std::int64_t expert_inner(const spec::ModelShape& shape, const Experts& experts) {
  return experts.inner > 0 ? experts.inner : shape.inner;
}

MixtureCount count_parameters(const spec::ModelShape& shape, const Mixture& mixture) {
  const spec::ParameterCount plain = spec::count_parameters(shape);
  MixtureCount count;
  count.embedding = static_cast<double>(plain.embedding);
  count.head = static_cast<double>(plain.head);
  const auto layers = static_cast<double>(shape.layers + shape.encoder_layers);
  count.dense = static_cast<double>(plain.layers) + layers * latent_surplus(shape, mixture.latent);
  const auto mixed = static_cast<double>(expert_layers(shape, mixture.experts));
  if (mixed == 0) return count;
  const double bias = shape.mlp_bias ? static_cast<double>(shape.width + (shape.gated ? 2 : 1) * shape.inner) : 0;
  const double expert = mlp_weights(shape, expert_inner(shape, mixture.experts)) + bias;
  count.dense -= mixed * (mlp_weights(shape, shape.inner) + bias);
  count.dense += mixed * (static_cast<double>(mixture.experts.shared) * expert +
                          static_cast<double>(shape.width * mixture.experts.count));  // the router
  count.experts = mixed * expert * static_cast<double>(mixture.experts.count);
  count.active_experts = mixed * expert * static_cast<double>(mixture.experts.active);
  return count;
}

MixtureFlops count_flops(const spec::ModelShape& shape, const Mixture& mixture, std::int64_t length) {
  const spec::FlopCount plain = spec::count_flops(shape, length, shape.encoder_layers > 0 ? length : 0);
  const auto tokens = static_cast<double>(length);
  const auto layers = static_cast<double>(shape.layers + shape.encoder_layers);
  MixtureFlops flops{.projections = plain.projections, .head = plain.head};
  double score = static_cast<double>(2 * shape.heads * shape.head_size);  // of queries with keys, and of values
  if (mixture.latent.query_rank > 0) {
    flops.projections += 2 * tokens * layers * (latent_weights(shape, mixture.latent) - plain_attention_weights(shape));
    score =
        static_cast<double>(shape.heads * (shape.head_size + mixture.latent.rotary_size + mixture.latent.value_size));
  }
  flops.attention = 2 * score * tokens * tokens * layers;
  const auto mixed = static_cast<double>(expert_layers(shape, mixture.experts));
  if (mixed > 0) {
    const auto visited = static_cast<double>(mixture.experts.active + mixture.experts.shared);
    flops.projections += 2 * tokens * mixed *
                         (visited * mlp_weights(shape, expert_inner(shape, mixture.experts)) -
                          mlp_weights(shape, shape.inner) + static_cast<double>(shape.width * mixture.experts.count));
  }
  return flops;
}

}  // namespace trireme::plan
