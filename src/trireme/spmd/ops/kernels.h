// spmd/ops/kernels.h -- the kernels by kind of operator, for run_op() alone.
#pragma once

#include <ATen/TensorOperators.h>

#include "trireme/spmd/ops/kernel.h"

namespace trireme::spmd {

using Outputs = std::vector<at::Tensor>;

Outputs run_einsum(OpCall& call);
Outputs run_convolution(OpCall& call);
Outputs run_pooling(OpCall& call);
Outputs run_norm(OpCall& call);
Outputs run_elementwise(OpCall& call);
Outputs run_gather(OpCall& call);
Outputs run_lstm(OpCall& call);
Outputs run_attention(OpCall& call);
Outputs run_router(OpCall& call);
Outputs run_loss(OpCall& call);
Outputs run_concat(OpCall& call);
Outputs run_split(OpCall& call);
Outputs run_reshape(OpCall& call);

}  // namespace trireme::spmd
