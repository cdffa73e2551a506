#include "trireme/train/engine/dropped_layers.h"

#include <cmath>
#include <utility>

#include "trireme/train/engine/step_plan.h"

namespace trireme::train {

DroppedLayers::DroppedAs DroppedLayers::dropped_as(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                                   const std::string& entry) {
  const bool encoder = entry.starts_with("encoder.layers.");
  if (!encoder && !entry.starts_with("layers.")) return {};
  const auto steps = static_cast<double>(last_step(recipe));
  return {.drop = {.theta = recipe.train.layer_keep.value(),
                   .gamma = recipe.train.layer_keep_gamma.value_or(100 / steps),
                   .layers = encoder ? shape.num_encoder_layers : shape.num_layers},
          .number = std::stoll(entry.substr(entry.rfind('.') + 1)) + 1,
          .stack = encoder ? "encoder" : "decoder"};
}

DroppedLayers::DroppedLayers(const spec::Recipe& recipe, const spec::ModelShape& shape, models::Model& model) {
  for (models::NamedLayer& entry : model.layers) {
    const DroppedAs& as = entries_.emplace_back(dropped_as(recipe, shape, entry.name));
    if (as.number > 0)
      entry.layer = nn::with_layer_drop(std::move(entry.layer), as.drop, as.number, as.stack, entry.params);
  }
}

std::vector<bool> DroppedLayers::skipped(const nn::Context& context) const {
  std::vector<bool> skipped;
  for (const DroppedAs& as : entries_) {
    skipped.push_back(as.number > 0 && context.training &&
                      !nn::is_kept(as.drop, context.seed, context.step, as.number, as.stack));
  }
  return skipped;
}

std::vector<double> DroppedLayers::kept_shares(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                               const std::vector<std::string>& entries) {
  std::vector<double> shares(entries.size(), 1.0);
  const std::int64_t steps = last_step(recipe);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const DroppedAs as = dropped_as(recipe, shape, entries[i]);
    if (as.number == 0) continue;
    // theta(t) decays exponentially, and the probability is linear in it: the mean is a closed form.
    const double way = as.drop.gamma * static_cast<double>(steps);
    const double decayed = way > 0 ? -std::expm1(-way) / way : 1;
    const double theta = (1 - as.drop.theta) * decayed + as.drop.theta;
    shares[i] = 1 - static_cast<double>(as.number) / static_cast<double>(as.drop.layers) * (1 - theta);
  }
  return shares;
}

}  // namespace trireme::train
