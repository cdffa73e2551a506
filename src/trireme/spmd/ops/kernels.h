// spmd/ops/kernels.h -- the kernels by kind of operator, for run_op() alone.
#pragma once

#include <ATen/TensorOperators.h>

#include "trireme/spmd/ops/kernel.h"

namespace trireme::spmd {

using Outputs = std::vector<at::Tensor>;

inline at::Tensor channels_last(const at::Tensor& image) {
  return image.defined() ? image.contiguous(at::MemoryFormat::ChannelsLast) : image;
}

/// A convolution of 1 x 1 by a GEMM where that is faster; everything else by the library.
at::Tensor one_by_one_convolution(const OpCall& call, const std::function<at::Tensor()>& by_library);

Outputs run_einsum(OpCall& call);
Outputs run_convolution(OpCall& call);
Outputs run_pooling(OpCall& call);
Outputs run_norm(OpCall& call);
Outputs run_elementwise(OpCall& call);
Outputs run_gather(OpCall& call);
Outputs run_lstm(OpCall& call);
Outputs run_attention(OpCall& call);
Outputs run_rotary(OpCall& call);
Outputs run_router(OpCall& call);
Outputs run_loss(OpCall& call);
Outputs run_concat(OpCall& call);
Outputs run_split(OpCall& call);
Outputs run_reshape(OpCall& call);

}  // namespace trireme::spmd
