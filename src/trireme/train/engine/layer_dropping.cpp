#include "trireme/train/engine/layer_dropping.h"

#include <cmath>
#include <utility>

#include "trireme/train/engine/step_plan.h"

namespace trireme::train {
namespace {

/// Whether an entry of the chain may be several blocks that run again as one.
bool has_segments(spec::RecomputeKind kind) { return kind == spec::RecomputeKind::kSqrt || nn::plans_chains(kind); }

}  // namespace

LayerDropping::LayerDropping(const spec::Recipe& recipe, const spec::ModelShape& shape)
    : in_segments_(has_segments(recipe.train.recompute)),
      layers_(shape.num_layers),
      encoder_layers_(shape.num_encoder_layers) {
  if (!recipe.train.layer_keep) return;
  steps_ = last_step(recipe);
  drop_ = nn::LayerDrop{.theta = *recipe.train.layer_keep,
                        .gamma = recipe.train.layer_keep_gamma.value_or(100 / static_cast<double>(steps_))};
}

LayerDropping::Place LayerDropping::place_of(const std::string& name) const {
  const bool encoder = name.starts_with("encoder.layers.");
  if (!encoder && !name.starts_with("layers.")) return {};
  Place place{.drop = *drop_,
              .number = std::stoll(name.substr(name.rfind('.') + 1)) + 1,
              .stack = encoder ? "encoder" : "decoder"};
  place.drop.layers = encoder ? encoder_layers_ : layers_;
  return place;
}

void LayerDropping::prepare(models::BuildOptions& build) const {
  if (!used() || !in_segments_) return;
  build.adapt_block = [this](const std::string& name, std::unique_ptr<nn::Layer> block,
                             const std::vector<nn::Param*>& params) {
    const Place place = place_of(name);
    return nn::with_layer_drop(std::move(block), place.drop, place.number, place.stack, params);
  };
}

void LayerDropping::wrap(std::span<models::NamedLayer> entries) {
  if (!used()) return;
  places_.clear();
  for (models::NamedLayer& entry : entries) {
    const Place& place = places_.emplace_back(in_segments_ ? Place{} : place_of(entry.name));
    if (place.number == 0) continue;
    entry.layer = nn::with_layer_drop(std::move(entry.layer), place.drop, place.number, place.stack, entry.params);
  }
}

std::vector<bool> LayerDropping::skipped(const nn::Context& context) const {
  std::vector<bool> skipped;
  for (const Place& place : places_) {
    skipped.push_back(place.number > 0 && context.training &&
                      !nn::is_kept(place.drop, context.seed, context.step, place.number, place.stack));
  }
  return skipped;
}

std::vector<double> LayerDropping::kept_shares(std::span<const std::string> entries) const {
  std::vector<double> shares(entries.size(), 1.0);
  for (std::size_t i = 0; i < entries.size() && used() && !in_segments_; ++i) {
    const Place place = place_of(entries[i]);
    if (place.number == 0) continue;
    // theta(t) decays exponentially, and the probability is linear in it: the mean is a closed form.
    const double way = place.drop.gamma * static_cast<double>(steps_);
    const double decayed = way > 0 ? -std::expm1(-way) / way : 1;
    const double theta = (1 - place.drop.theta) * decayed + place.drop.theta;
    shares[i] = 1 - static_cast<double>(place.number) / static_cast<double>(place.drop.layers) * (1 - theta);
  }
  return shares;
}

}  // namespace trireme::train
