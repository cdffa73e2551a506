// parallel/gradient_sum.h -- plain data parallelism: every rank has the whole model, gradients are summed over ranks.
//
// What is summed is the gradient of the loss already divided by the tokens of the whole batch, so the sum is the exact
// mean over tokens, however uneven the ranks' shares are.
// Depends on: base, comm, device, nn.
#pragma once

#include "trireme/comm/group.h"
#include "trireme/nn/param.h"

namespace trireme::parallel {

/// Sums the gradient of every trainable parameter over the group, in place, the same bits on every rank. A rank that
/// had no rows counts as zero.
void sum_gradients(nn::Params& params, comm::Group& group);

}  // namespace trireme::parallel
