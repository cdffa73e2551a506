// nn/multi_token.h -- multi-token prediction (MTP; DeepSeek-V3, 2412.19437, section 2.2).
//
// Module j of D predicts for token i the token i + j + 1: the embedding of token i + j and what module j - 1 gave (the
// model's last norm for j = 1), each normalised and joined by a projection, go through one block, a norm of the
// module's own, and the model's head. Positions are those of token i.
//
//   h_j = norm_j(block_j(W_j [norm(embedding(t_{i+j})); norm(h_{j-1})]))      loss_j = head(h_j) against t_{i+j+1}
//
// The total loss gets weight / D times the sum of their losses, each divided by the main loss's targets. What stands
// i + j tokens on is looked up before ranks share rows: token ids are shifted, activations never.
// Depends on: base, comm, kernels.
#pragma once

#include <memory>
#include <vector>

#include "trireme/nn/embedding.h"
#include "trireme/nn/head.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {

/// Fills the context's MtpTokens from whole rows: ids [batch, seq_len], targets and documents as the context has them.
/// A token that its own document does not have is 0, without a target; no other token sees it.
void shift_tokens(const at::Tensor& ids, Context& context, std::int64_t depth);

struct MtpModule {
  std::unique_ptr<UnaryLayer> embedding;  ///< the model's table
  Norm embedding_norm, hidden_norm;
  Linear projection;  ///< [hidden, 2 hidden]: of the embedding, then of what entered
  std::unique_ptr<Layer> block;
  Norm norm;
  Head head;  ///< the model's weight; its term is this module's loss
};

/// Between a model's last norm and its head: what entered goes on unchanged, and the modules' losses go to the
/// context. Does nothing where the context has no tokens for it, as in generation.
class MultiTokenPrediction final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  explicit MultiTokenPrediction(std::vector<MtpModule> modules) : modules_(std::move(modules)) {}
  at::Tensor forward(at::Tensor h, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dh, Context& context, Tape& tape) override;

  /// Inference: what a module makes of the hidden states [1, tokens, hidden] and the token behind each, ids [1,
  /// tokens]; as large, what its logits are computed from and what another module reads.
  at::Tensor next_hidden(std::size_t depth, const at::Tensor& ids, const at::Tensor& hidden, Context& context);
  /// Of what next_hidden() gave.
  at::Tensor logits(std::size_t depth, at::Tensor hidden, Context& context);

 private:
  /// Everything of a module but its head.
  at::Tensor body(MtpModule& module, const at::Tensor& ids, const at::Tensor& h, Context& context, Tape* tape);
  at::Tensor forward_module(MtpModule& module, std::int64_t depth, const at::Tensor& h, Context& context, Tape* tape);
  at::Tensor backward_module(MtpModule& module, std::int64_t depth, at::Tensor dh, Context& context, Tape& tape);

  std::vector<MtpModule> modules_;
};

}  // namespace trireme::nn
