// nn/head.h -- the end of a model: logits, or the loss over them.
//
// Logits are never held for all tokens at once: rows are taken in chunks, and while a chunk's logits are in memory both
// their loss and their gradients are computed, so the backward pass only hands on what is ready. Weight gradients of
// the head therefore arise in the forward pass of training. Ranks of a parallel context have a slice of the vocabulary
// each; what they exchange is three floats per token, never logits.
// Where the context has a teacher, the main loss is mixed with the one against the teacher's probabilities:
// distillation.h.
// Depends on: base, comm, kernels.
#pragma once

#include <string>

#include "trireme/kernels/cross_entropy.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

struct HeadOptions {
  double label_smoothing = 0;
  double z_loss = 0;
  std::int64_t chunk_bytes = std::int64_t{128} << 20;  ///< of logits; at least one row
  std::string term = std::string(kMainLoss);           ///< name of the loss term
  double weight = 1;                                   ///< in the total loss
  double input_scale = 1;                              ///< of what the logits are computed from: muP's 1 / width
};

class Head final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `weight` [vocabulary, width], perhaps the token embedding; `bias` [vocabulary] or null: this rank's slices.
  Head(Param& weight, Param* bias, HeadOptions options, const ParallelContext& parallel = single_rank());
  /// x [batch, sequence, width]. Without targets in the context: the logits [batch, sequence, vocabulary]. With them:
  /// the mean loss, a scalar in float (double), over what takes part. The context's losses get the head's term ("loss")
  /// and, with its weight, "z_loss": the mean of the squared log-partition; with a teacher "distillation_loss".
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) override;
  /// `dy` may be undefined: the loss is the end, and the context's gradient_scale says how much it weighs.
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

  /// The rows [tokens, width] that logits are computed from, of whole sequences: `x` as it enters.
  at::Tensor entered_rows(const at::Tensor& x) const;
  /// Logits [rows, classes] of this rank's classes, padding included.
  at::Tensor logits(const at::Tensor& rows, Context& context) const;

 private:
  /// Numbers of a chunk's tokens.
  struct Values {
    at::Tensor losses, z_losses;
  };
  /// Logits of this rank's classes become their gradients, where scales are defined.
  Values cross_entropy(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& scales, double z_loss) const;
  Values cross_entropy_over_slices(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& scales,
                                   double z_loss) const;
  at::Tensor all_logits(const at::Tensor& rows, Context& context) const;

  Param& weight_;
  Param* bias_;
  HeadOptions options_;
  const ParallelContext* parallel_;
  bool slices_;                         // this rank has some of the classes only:
  std::int64_t first_class_, classes_;  // these; padding follows
};

}  // namespace trireme::nn
