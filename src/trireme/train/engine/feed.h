// train/engine/feed.h -- a batch of plain numbers as what the model takes: token tensors and the step's context.
//
// Depends on: base, data, nn.
#pragma once

#include "trireme/data/batch.h"
#include "trireme/nn/context.h"
#include "trireme/nn/tape.h"
#include "trireme/spec/model_shape.h"

namespace trireme::train {

/// The model's inputs; positions, documents, targets, sample numbers and the tokens of multi-token prediction go into
/// `context`. The tensors lie in the batch's memory: it must outlive them.
nn::Tensors feed(data::Batch& batch, nn::Context& context, const spec::ModelShape& shape);
/// Inputs and context to where the model computes. Before numbers go to a GPU they are looked at here: a ConfigError
/// for tokens, targets and positions that the model has not.
void move_to(at::Device device, nn::Tensors& ids, nn::Context& context, const spec::ModelShape& shape);

/// The weights of a batch's targets, added up: what its loss is divided by.
double count_targets(const data::Batch& batch);

}  // namespace trireme::train
