// nn/head.h -- the end of a model: logits, or the loss over them.
//
// Logits are never held for all tokens at once: rows are taken in chunks, and while a chunk's logits are in memory both
// their loss and their gradients are computed, so the backward pass only hands on what is ready. Weight gradients of
// the head therefore arise in the forward pass of training.
// Depends on: base, kernels.
#pragma once

#include <optional>

#include "trireme/kernels/cross_entropy.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

struct HeadOptions {
  double label_smoothing = 0;
  double z_loss = 0;
  std::int64_t chunk_bytes = std::int64_t{128} << 20;  ///< of logits; at least one row
};

class Head final : public UnaryLayer {
 public:
  /// `weight` [vocabulary, width], perhaps the token embedding; `bias` [vocabulary] or null.
  Head(Param& weight, Param* bias, HeadOptions options);
  /// x [batch, sequence, width]. Without targets in the context: the logits [batch, sequence, vocabulary]. With them:
  /// the mean loss, a scalar in float (double), over what takes part; "loss" (and "z_loss") is added to the context's
  /// losses.
  at::Tensor run(at::Tensor x, Context& context, Tape* tape) override;
  /// `dy` may be undefined: the loss is the end, and the context's gradient_scale says how much it weighs.
  at::Tensor run_back(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  at::Tensor logits(const at::Tensor& rows, Context& context) const;

  Param& weight_;
  Param* bias_;
  HeadOptions options_;
};

}  // namespace trireme::nn
