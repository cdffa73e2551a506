// serve/quantise_model.h -- a model's matrices in fewer bits, for inference.
//
// The matrices of attention and MLPs, which are nearly all of a dense model; embeddings, the head, norms, routers,
// experts and what latent attention absorbs stay as they are. The parameters' own values are let go: such a model is
// for inference alone. Training never sees it.
// Depends on: models, nn, kernels.
#pragma once

#include "trireme/kernels/quantised_weight.h"
#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::serve {

/// Whether a parameter is one of them.
bool is_quantised(const nn::Param& param);
/// Each of them, quantised where it lies. ConfigError where a group of int4 does not divide a matrix.
nn::QuantisedWeights quantise_model(models::Model& model, const kernels::QuantiseWeight& how);

}  // namespace trireme::serve
