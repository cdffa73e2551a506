#include "trireme/plan/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace trireme::plan {
namespace {

double mlp_weights(const spec::ModelShape& shape, std::int64_t inner) {
  return static_cast<double>(shape.hidden_size * inner) * (shape.gated ? 3 : 2);
}

}  // namespace

void describe(config::Section<MixtureFile>& section) {
  section.meaning("a published mixture-of-experts model");
  section.field("name", &MixtureFile::name, "name of the model").required();
  section.section("model", &MixtureFile::model);
  section.section("experts", &MixtureFile::experts);
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
  std::ranges::move(spec::find_problems(file.experts), std::back_inserter(problems));
  if (shape && file.experts.first_dense_layers >= shape->num_layers + shape->num_encoder_layers)
    add("experts.first_dense_layers",
        fmt::format("leaves no MoE layer of {} layers", shape->num_layers + shape->num_encoder_layers),
        "set experts.first_dense_layers = 0");
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
  count.mtp = static_cast<double>(plain.mtp);
  count.dense = static_cast<double>(plain.layers);
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
  MixtureFlops flops{.projections = plain.projections, .head = plain.head, .mtp = plain.mtp};
  const spec::AttentionWidths widths = spec::attention_widths(shape);
  // Queries with keys, and probabilities with values.
  flops.attention = 2 * static_cast<double>(widths.queries + widths.attended) * tokens * tokens * layers;
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
