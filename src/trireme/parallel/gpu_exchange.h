// parallel/gpu_exchange.h -- lets ranks that are threads pass each other memory of the GPU that they share.
//
// Depends on: comm, kernels.
#pragma once

namespace trireme::parallel {

/// Gives the comm room the kernels it needs (comm/gpu_memory.h); again: nothing changes. Every rank must leave its
/// tensors on the GPU's default stream. A ConfigError where libtrireme_cuda is missing or does not run on the GPU.
void use_gpu_exchange();

}  // namespace trireme::parallel
