// spec/size_model.h -- a model of a family with about so many parameters.
//
// Depends on: base, model_shape.
#pragma once

#include <cstdint>

#include "trireme/spec/model_config.h"

namespace trireme::spec {

/// The section of the model of this vocabulary and context (learned positions count) whose parameters come nearest to
/// `parameters`: heads of 64 (fewer in the smallest), hidden_size 48 to 128 times num_layers, as published models have
/// it. ConfigError when no model of the family and this vocabulary is within a factor of two.
ModelConfig sized_model(Family family, std::int64_t parameters, std::int64_t vocab_size, std::int64_t max_seq_len);

}  // namespace trireme::spec
