// nn/norm.h -- LayerNorm and RMSNorm, alone or together with the residual sum before them.
//
// Depends on: base, kernels.
#pragma once

#include "trireme/kernels/norm.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

class Norm final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `weight` and `bias` [width]; bias null for RMSNorm and where a model has none.
  Norm(kernels::Norm norm, Param* weight, Param* bias);
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

  struct Sum {
    at::Tensor sum, y;
  };
  /// sum = x + delta, y = norm(sum), in one pass over memory.
  Sum forward_sum(const at::Tensor& x, const at::Tensor& delta, Context& context, Tape* tape);
  /// What forward() or forward_sum() gave, to the bit, as rows: from the frame that it left on the tape.
  at::Tensor recompute(const Tensors& kept, Context& context);
  /// The gradient of what was normalised; plus `dsum`, which may be undefined, in the same pass. Takes dsum's memory
  /// unless the tape is deferring.
  at::Tensor backward_sum(const at::Tensor& dy, at::Tensor dsum, Context& context, Tape& tape);

 private:
  at::Tensor normalise(const at::Tensor& x, const at::Tensor& residual, at::Tensor& sum, Context& context, Tape* tape);

  kernels::Norm norm_;
  Param* weight_;
  Param* bias_;
};

}  // namespace trireme::nn
