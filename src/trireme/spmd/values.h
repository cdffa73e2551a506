// spmd/values.h -- what a graph starts from: parameters and inputs, as functions of seed, tensor name and index.
//
// Depends on: block.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/spmd/block.h"

namespace trireme::spmd {

using Values = std::vector<at::Tensor>;  ///< [tensor of the graph] whole; undefined where it is not there

/// Running statistics of a batch norm's channels, as PyTorch keeps them: [mean and variance, channels of this rank].
struct ChannelStatistics {
  at::Tensor moments;  ///< fp64
  Index origin = 0;    ///< the first channel
};
using RunningStatistics = std::map<std::string, ChannelStatistics>;  ///< by the operator's name

at::ScalarType scalar_type(pg::DType dtype);

/// Parameters: normal, with a variance that keeps activations near one; norms begin near the identity. Inputs: normal;
/// indices: any that their table or their classes have.
Values start_values(const pg::Graph& graph, std::uint64_t seed);
/// With scales of zero for the batch norm that ends the way through a residual block: the block begins as the identity
/// (Goyal et al. 2017, section 5.1). Of the inputs of an addition that is the first.
Values with_zero_gammas(const pg::Graph& graph, Values values);
/// Images, and kernels over them, of fp32 and bf16 channels last, as convolutions on CPUs and GPUs want them; the rest
/// as it is.
at::Tensor in_channels_last(const at::Tensor& value);
Values in_channels_last(Values values);

}  // namespace trireme::spmd
