// serve/quantise_model.h -- a model's matrices in fewer bits, for inference.
//
// Those of models::is_quantisable(). The parameters' own values are let go: such a model is for inference alone.
// Training never sees it.
// Depends on: checkpoint, models, nn, kernels.
#pragma once

#include <optional>

#include "trireme/checkpoint/stored_weights.h"
#include "trireme/kernels/quantised_weight.h"
#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::serve {

/// Each of them, quantised where it lies. ConfigError where a group of int4 does not divide a matrix.
nn::QuantisedWeights quantise_model(models::Model& model, const kernels::QuantiseWeight& how);

/// Each of them, read from where the model was opened without them (OpenOptions::left_out), one at a time: as it is
/// stored there, or, with `how`, quantised here. A stored matrix whose groups are not neighbours (GPTQ's act-order)
/// becomes a plain one, and the log says so.
nn::QuantisedWeights load_quantised(models::Model& model, const checkpoint::StoredWeights& weights, at::Device device,
                                    nn::Precision precision, const std::optional<kernels::QuantiseWeight>& how);

/// The matrix that logits are computed with, added to `out` where the model (or this stage of it) has it. What is tied
/// to it keeps its own values.
void quantise_head(models::Model& model, const kernels::QuantiseWeight& how, nn::QuantisedWeights& out);

}  // namespace trireme::serve
