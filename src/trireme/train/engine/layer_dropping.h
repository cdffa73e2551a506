// train/engine/layer_dropping.h -- progressive layer dropping of a recipe: which layers of a model are wrapped, and
// where.
//
// A layer is wrapped around what fetches its weights, so that one that is dropped fetches none. Where several blocks
// are one segment that is recomputed, each is wrapped inside of it, and the segment's weights are fetched whatever
// happens.
// Depends on: models, nn, spec.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/nn/layer_drop.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

class LayerDropping {
 public:
  LayerDropping(const spec::Recipe& recipe, const spec::ModelShape& shape);

  /// Whether the recipe drops layers at all.
  bool used() const { return drop_.has_value(); }
  /// Before a model is built.
  void prepare(models::BuildOptions& build) const;
  /// After what fetches weights is in place.
  void wrap(std::span<models::NamedLayer> entries);
  /// Of the entries that were wrapped, those that the step of this context drops.
  std::vector<bool> skipped(const nn::Context& context) const;
  /// Of each entry of a chain, the mean over the run's steps of the probability that it is computed; 1 for a segment of
  /// several blocks.
  std::vector<double> kept_shares(std::span<const std::string> entries) const;

 private:
  struct Place {
    nn::LayerDrop drop = {};
    std::int64_t number = 0;  ///< from 1; 0: never dropped
    const char* stack = "";
  };
  Place place_of(const std::string& name) const;

  std::optional<nn::LayerDrop> drop_;
  bool in_segments_;
  std::int64_t layers_, encoder_layers_;
  std::int64_t steps_ = 0;
  std::vector<Place> places_;  // by entry
};

}  // namespace trireme::train
