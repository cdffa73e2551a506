// train/diagnose/non_finite.h -- where numbers stopped being numbers: the first layer of a step that made one that is
// none.
//
// Depends on: comm, data, models.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "trireme/comm/group.h"
#include "trireme/data/batch.h"
#include "trireme/models/model.h"

namespace trireme::train {

/// Runs the step's micro-batches again, layer by layer: weights first, then outputs, then gradients. The answer is the
/// same on every rank: "the output of layers.3 on rank 1". Leaves gradients behind that mean nothing.
std::string first_not_finite(models::Model& model, std::span<data::Batch> batches,
                             const std::function<nn::Context()>& make_context, comm::Group& world,
                             const nn::TokenSplit& tokens = {}, at::Device device = at::kCPU);

}  // namespace trireme::train
