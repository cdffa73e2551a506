// train/engine/dropped_layers.h -- progressive layer dropping of a rank's part of a model (nn/layer_drop.h).
//
// Depends on: models, nn, spec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/nn/layer_drop.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

class DroppedLayers {
 public:
  /// Puts itself around the blocks among the model's entries, of whatever part of the chain: around what fetches
  /// weights, so that a layer that is dropped fetches none. For recipes with train.layer_keep.
  DroppedLayers(const spec::Recipe& recipe, const spec::ModelShape& shape, models::Model& model);

  /// Of each entry, whether a step with this context leaves it out.
  std::vector<bool> skipped(const nn::Context& context) const;

  /// Of each entry of a chain, the mean over the run's steps of the probability that it is computed.
  static std::vector<double> kept_shares(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                         const std::vector<std::string>& entries);

 private:
  struct DroppedAs {
    nn::LayerDrop drop = {};
    std::int64_t number = 0;  // 0: never dropped
    const char* stack = "";
  };
  static DroppedAs dropped_as(const spec::Recipe& recipe, const spec::ModelShape& shape, const std::string& entry);

  std::vector<DroppedAs> entries_;
};

}  // namespace trireme::train
