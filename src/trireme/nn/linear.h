// nn/linear.h -- y = x W^T + b.
//
// Depends on: base.
#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

class Linear final : public UnaryLayer {
 public:
  /// `weight` [out, in]; `bias` [out] or null.
  Linear(Param& weight, Param* bias);
  at::Tensor run(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor run_back(at::Tensor dy, Context& context, Tape& tape) override;

  // For layers that keep the input by themselves, or make it again:
  at::Tensor product(const at::Tensor& x, Context& context) const;
  /// Adds the weights' gradients (or puts that off) and gives that of x.
  at::Tensor gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const;

 private:
  Param& weight_;
  Param* bias_;
};

}  // namespace trireme::nn
