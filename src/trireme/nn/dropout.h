// nn/dropout.h -- dropout of a residual branch or an embedding: what falls depends on the layer's name, the step and
// the token's global number, so recomputation and any split drop the same.
//
// Depends on: base, kernels.
#pragma once

#include <string>

#include "trireme/nn/context.h"

namespace trireme::nn {

/// Which part of a sequence's tokens, cut evenly, a layer sees: between matrices that a parallel context splits.
struct SequencePart {
  int index = 0, count = 1;
};

/// What the draws of a step's dropouts are made of, in a GPU's memory: a captured step reads them there, and each
/// step's are put there before it starts. The same draws as without.
class DropoutRngState {
 public:
  explicit DropoutRngState(at::Device device);
  /// The place of this layer's, given out when it is first asked for.
  at::Tensor place(const std::string& name);
  /// Every place gets what the layer would draw in this step; the host does not wait.
  void fill(std::uint64_t seed, std::int64_t step);

 private:
  static constexpr std::int64_t kMost = 4096;
  at::Tensor words_;  // int32 [kMost, 4]
  std::vector<std::string> names_;
};

class Dropout {
 public:
  Dropout(std::string name, double p, SequencePart part = {});
  /// x [batch, seq_len, hidden_size] in place; nothing outside training. Also the backward pass, on the gradient.
  void apply(at::Tensor& x, const Sequence& sequence, const Context& context) const;
  bool active(const Context& context) const { return context.training && p_ > 0; }

 private:
  std::string name_;
  double p_;
  SequencePart part_;
};

/// Each token's global number, int64 [batch * length]: its sample's times 2^32, plus its column in the row. Tokens
/// first .. first + length of the sequence.
at::Tensor token_numbers(const Sequence& sequence, const Context& context, std::int64_t batch, std::int64_t length,
                         std::int64_t first = 0);

}  // namespace trireme::nn
