// train/feed.h -- a batch of plain numbers as what the model takes: token tensors and the step's context.
//
// Depends on: base, data, nn.
#pragma once

#include "trireme/data/batch.h"
#include "trireme/nn/context.h"
#include "trireme/nn/tape.h"

namespace trireme::train {

/// The model's inputs; positions, documents, targets and sample numbers go into `context`. The tensors lie in the
/// batch's memory: it must outlive them.
nn::Tensors feed(data::Batch& batch, nn::Context& context);

/// The weights of a batch's targets, added up: what its loss is divided by.
double count_targets(const data::Batch& batch);

}  // namespace trireme::train
