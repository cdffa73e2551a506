// nn/moe/moe_layer.h -- a mixture of experts in place of an MLP: route, dispatch, grouped GEMMs, combine.
//
//   logits   x W^T, in float (double)                     routing  router.h, by balance group
//   home     kept choices, sorted by (expert, token)      rows     dispatch.h: to the ranks that have the experts
//   experts  experts.h: gate * act(in x), then out        combine  each token's rows, by falling gate, one rounding
//
// plus shared experts that every token visits, with or without a sigmoid gate of their own. A token whose choices were
// all dropped gets 0 from the routed experts: the residual passes it on.
//
// Backward calls the router again on the saved logits: it is a pure function, so nothing else of it is saved. Where
// rows fit in one pass, what experts saved is on the tape; where they take several, each pass is dispatched and
// computed again, so that memory stays within the arena. Passes change results by rounding at most, and only where they
// cut the rows of one expert.
//
// On a GPU whose ranks have whole samples and all experts, dropless routers of softmax and sigmoid run there
// (kernels/expert_ops.h, moe_layer_gpu.cpp): counts and choices never leave it, and gradients of gates, biases and
// losses are those of the routers here. Everything else on a GPU lets the host route: logits go there, choices come
// back.
//
// Tokens that all tensor-parallel ranks have (no sequence parallelism) are computed by each of them, or, with
// slice_over_tp, dispatched in equal slices, one a rank, whose outputs are gathered (DeepSpeed's
// parallelism-coordinated form, Singh et al. 2023); with sequence parallelism each computes its own. Losses are told as
// terms of loss_terms.h, seeded with the step's sample scale.
// In inference they may instead have a slice of each expert's matrices: every rank computes its part of all rows, and
// the parts are added up after the combine (expert slicing).
// Depends on: base, comm, spec, kernels.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/expert_ops.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/mlp.h"
#include "trireme/nn/moe/balance.h"
#include "trireme/nn/moe/dispatch.h"
#include "trireme/nn/moe/expert_copies.h"
#include "trireme/nn/moe/experts.h"
#include "trireme/nn/moe/router.h"
#include "trireme/nn/moe/token_groups.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn::moe {

struct SharedExperts {
  std::unique_ptr<Mlp> mlp;  ///< null: none
  Param* gate = nullptr;     ///< [1, hidden]: the output times sigmoid(x w^T); null: as it is
};

struct MoeParts {
  std::string name;
  std::unique_ptr<Router> router;
  Param* router_weight = nullptr;  ///< [outputs, hidden]
  Param* thresholds = nullptr;     ///< [experts]: of a router with a learned bias
  ExpertLoads* loads = nullptr;    ///< with a bias where the router has one; borrowed
  Experts experts;
  SharedExperts shared = {};
  std::unique_ptr<RowExchange> exchange;
  bool sliced = false;  ///< inference: tensor-parallel ranks have a slice of each expert, whose outputs are added up
  Stream stream = Stream::kSequence;
};

class MoeLayer final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `parallel` is borrowed.
  explicit MoeLayer(MoeParts parts, const ParallelContext& parallel = single_rank());
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

  /// Passes that the last forward took.
  std::size_t passes() const { return passes_; }

 private:
  /// What forward and backward both derive from the logits of all tokens.
  struct Routed {
    TokenGroups groups;
    std::vector<double> logits;     // [tokens, outputs]
    std::vector<double> bias;       // empty: none
    std::vector<Routing> routings;  // by group
    HomeRows home;
  };
  /// Those of experts in one pass.
  struct Saved {
    at::Tensor x, pre_activation;
  };

  /// Whether forward and backward of these tokens are those of moe_layer_gpu.cpp.
  bool routes_there(const at::Tensor& x, const Context& context) const;
  kernels::ExpertRouter router_of(const at::Tensor& x, const Context& context) const;
  at::Tensor forward_on_gpu(at::Tensor x, Context& context, Tape* tape);
  at::Tensor backward_on_gpu(at::Tensor dy, Context& context, Tape& tape);
  void tell_losses_on_gpu(const at::Tensor& terms, Context& context) const;

  at::Tensor router_input(const at::Tensor& rows, const TokenGroups& groups, const Context& context) const;
  at::Tensor jitter(const TokenGroups& groups, std::int64_t width, const Context& context) const;
  at::Tensor router_bias(Context& context) const;
  RouterInput input_of(const Routed& routed, std::int64_t group, const Context& context) const;
  Routed route(TokenGroups groups, const at::Tensor& logits, const at::Tensor& bias, const Context& context,
               bool wants_losses);
  /// Rows that all experts of a token get alike, on their way to expert order: in eight bits where the recipe says so.
  PendingRows begin_dispatch(const Dispatch& dispatch, const at::Tensor& tokens) const;
  at::Tensor dispatched(const Dispatch& dispatch, PendingRows pending, at::ScalarType type) const;
  /// Of hot experts in this step; null: none, or not in training.
  const ExpertCopies* copies(const Context& context);
  void tell_losses(const Routed& routed, Context& context) const;
  /// Of this rank's tokens, those that it dispatches: a slice where tensor-parallel ranks share them out.
  bool slices() const;
  TokenRange slice_of(std::int64_t tokens, int rank) const;
  /// [tokens, ..] with this rank's slice becomes whole.
  void gather_slices(at::Tensor& rows) const;

  /// What a layer has to do beside its routed experts, done while their first rows are on their way.
  using Meanwhile = std::function<void()>;
  /// Of the rows in home order.
  at::Tensor forward_experts(const at::Tensor& x, const Routed& routed, const DispatchPlan& plan, Context& context,
                             Saved* saved, const Meanwhile& meanwhile);
  struct HomeGrad {
    at::Tensor x, gates;
  };
  HomeGrad backward_experts(const at::Tensor& dy, const at::Tensor& x, const Routed& routed, const DispatchPlan& plan,
                            const Saved& saved, Context& context, Tape& tape, const Meanwhile& meanwhile);
  at::Tensor forward_shared(const at::Tensor& x, Context& context, Tape* tape, at::Tensor& ungated);
  /// `dy` may be overwritten.
  at::Tensor backward_shared(at::Tensor dy, const at::Tensor& x, const at::Tensor& ungated, Context& context,
                             Tape& tape);
  at::Tensor shared_gate(const at::Tensor& rows, Context& context) const;
  /// The gradient of the router's input rows; adds the weight's.
  at::Tensor backward_router(const at::Tensor& rows, const Routed& routed, const at::Tensor& grad_gates,
                             Context& context, Tape& tape) const;

  MoeParts parts_;
  const ParallelContext* parallel_;
  std::size_t passes_ = 0;
  std::unique_ptr<ExpertCopies> copies_;  // of the last decision that it met
};

}  // namespace trireme::nn::moe
