// train/engine/freeze.h -- which parameters the patterns of train.freeze mean, by our names or by published ones.
//
// Depends on: models, spec.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trireme/spec/model_shape.h"

namespace trireme::train {

/// Those of `all`, the names of the whole model's parameters. A pattern that matches none of ours is one of published
/// (Hugging Face) names, "model.layers.0.*". ConfigError where a pattern matches nothing, listing what there is; where
/// published tensors are only a part of a fused parameter; and where everything is frozen.
std::set<std::string> frozen_params(const std::vector<std::string>& patterns, const spec::ModelShape& shape,
                                    const std::vector<std::string>& all);

}  // namespace trireme::train
