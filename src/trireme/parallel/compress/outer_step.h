// parallel/compress/outer_step.h -- DiLoCo's outer optimizer and its fragments, as functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/spec/compress.h"

namespace trireme::parallel {

/// SGD by the pseudo-gradient, with momentum as PyTorch's: b <- mu b + delta, weights -= rate (delta + mu b), without
/// Nesterov weights -= rate b.
void outer_step(at::Tensor& weights, at::Tensor& momentum, const at::Tensor& delta, const spec::CompressConfig& config);
/// Which fragment a parameter belongs to: layers in turn (strided), embeddings to the first, the rest to the last.
int fragment_of(const std::string& name, int fragments);

}  // namespace trireme::parallel
