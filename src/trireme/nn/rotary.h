// nn/rotary.h -- the angles of rotary positions, with the published ways of stretching them to longer contexts.
//
// Depends on: base, spec, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/kernels/rotary.h"
#include "trireme/nn/context.h"
#include "trireme/spec/model_shape.h"

namespace trireme::nn {

/// Turns per position of each pair of numbers, after scaling; and what the cosines and sines are multiplied by (YaRN).
struct RotaryFrequencies {
  std::vector<double> inverse;  ///< rotated / 2 of them
  double magnitude = 1;
};
/// `max_seq_len`: of the model, which dynamic scaling stretches the context to.
RotaryFrequencies rotary_frequencies(const spec::Rotary& rotary, std::int64_t rotated, std::int64_t max_seq_len);

/// Cosines and sines for positions 0 .. positions - 1, grown when a longer sequence comes. Shared by a model's layers.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const spec::Rotary& rotary, std::int64_t rotated, std::int64_t max_seq_len = 0);
  struct Tables {
    at::Tensor cosines, sines;  ///< [positions, rotated / 2]
  };
  /// Float, or double for double.
  const Tables& tables(std::int64_t positions, const at::TensorOptions& options);
  /// x [batch, tokens, heads, rotated] of the sequence's tokens, in place, any strides but a contiguous last dimension.
  /// `inverse`: back, or the gradient.
  void rotate_(at::Tensor& x, const Sequence& sequence, kernels::RotaryPairs pairs, bool inverse);

 private:
  RotaryFrequencies frequencies_;
  Tables tables_;
};

}  // namespace trireme::nn
