// kernels/expert_ops.h -- a mixture of experts on a GPU: routing, permute, combine and activations times gates, with
// counts of tokens that stay there.
//
// Dropless routing has tokens x top_k rows, whoever they go to: sizes are known without asking the GPU, so nothing here
// waits, and all of it can be captured in a CUDA graph. Rows stand by (expert, token). The order of summation follows
// from shapes and choices: the same bits every time. Activations times gates run on the CPU too; the rest nn/moe does
// there by itself (expert_rows.h).
// Depends on: base, device, cuda_moe_table.h, expert_rows.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/kernels/activation.h"

namespace trireme::kernels {

/// How experts are chosen: softmax or sigmoid of the logits, the k best, their gates.
struct ExpertRouter {
  bool sigmoid = false;
  bool normalised = true;  ///< gates of a token add up to `scaling`
  double scaling = 1;
  std::int64_t top_k = 1;
  std::int64_t groups = 1, top_k_groups = 1, group_best = 2;  ///< of experts; a group's score is the sum of so many
  std::int64_t group_tokens = 1, sample_tokens = 1;           ///< of a balance group and of a sample
};
/// Whether there are kernels for so many.
bool routes_on_gpu(std::int64_t experts, std::int64_t top_k);

struct ExpertRouting {
  at::Tensor chosen;     ///< int32 [tokens, top_k]: experts by falling gate, then by number
  at::Tensor counts;     ///< int32 [balance groups, experts]
  at::Tensor row_of;     ///< int32 [tokens, top_k]: where the row of each choice stands
  at::Tensor row_gates;  ///< float (double) [rows]
  at::Tensor ends;       ///< int32 [experts]: where the rows of each end
  at::Tensor terms;      ///< double [3, 2]: sums and counts over samples of auxiliary loss, z-loss and largest load
};
/// `logits` float (double) [tokens, experts]; `bias` float [experts], added to what is chosen by, or undefined.
ExpertRouting route_experts(const at::Tensor& logits, const at::Tensor& bias, const ExpertRouter& router);

struct ExpertLossScale {
  double aux_weight = 0, z_weight = 0;
  double sample = 1;            ///< of a sample's losses
  at::Tensor sample_here = {};  ///< the same as a number on the GPU, of the logits' type; undefined: as given
};
/// The gradient of the logits from that of the gates [rows] and the losses.
at::Tensor route_experts_backward(const at::Tensor& grad_gates, const at::Tensor& logits, const ExpertRouting& routing,
                                  const ExpertRouter& router, const ExpertLossScale& losses);
/// The same as bfloat16 [tokens, 2 experts], rounded and beside them what that lost, so that GEMMs of bfloat16 with
/// sums in float take 16 bits of each number.
at::Tensor route_experts_backward_in_pairs(const at::Tensor& grad_gates, const at::Tensor& logits,
                                           const ExpertRouting& routing, const ExpertRouter& router,
                                           const ExpertLossScale& losses);

/// [tokens x top_k, width] from x [tokens, width].
at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& row_of);
/// [tokens, width]: each token's rows in the order of row_of, where -1 is none, + add [tokens, width] of the rows' type
/// + add_wide in float (double); one rounding.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& add = {},
                        const at::Tensor& add_wide = {});

/// [rows, width] = gate * f(pre), or of pre [rows, 2 width] gate * f(first half) * second half.
at::Tensor expert_activation(const at::Tensor& pre, const at::Tensor& gates, Activation kind, bool gated);
struct ExpertActivationGrad {
  at::Tensor pre, gates;
  at::Tensor y;  ///< the activation times its gate again, as the second GEMM's weight wants it
};
/// `dy` is overwritten; `pre` too where `reuse` says that nobody else reads it.
ExpertActivationGrad expert_activation_backward(at::Tensor dy, const at::Tensor& pre, const at::Tensor& gates,
                                                Activation kind, bool gated, bool reuse);

/// out [groups, ..] (+)= from, bfloat16, of groups that have rows; of others the gradient is 0.
void add_groups(at::Tensor& out, const at::Tensor& from, const at::Tensor& ends, bool accumulate);

}  // namespace trireme::kernels
