// nn/dropout.h -- dropout of a residual branch or an embedding: what falls depends on the layer's name, the step and
// the token's global number, so recomputation and any split drop the same.
//
// Depends on: base, kernels.
#pragma once

#include <string>

#include "trireme/nn/context.h"

namespace trireme::nn {

class Dropout {
 public:
  Dropout(std::string name, double p);
  /// x [batch, sequence, width] in place; nothing outside training. Also the backward pass, on the gradient.
  void apply(at::Tensor& x, const Sequence& sequence, const Context& context) const;
  bool active(const Context& context) const { return context.training && p_ > 0; }

 private:
  std::string name_;
  double p_;
};

/// Each token's global number, int64 [batch * sequence]: its sample's times 2^32, plus its column in the row.
at::Tensor token_numbers(const Sequence& sequence, const Context& context, std::int64_t batch, std::int64_t length);

}  // namespace trireme::nn
