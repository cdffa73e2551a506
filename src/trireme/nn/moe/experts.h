// nn/moe/experts.h -- the experts of a rank as grouped GEMMs: rows times gate, out((gate) * act(in(x))).
//
// Rows stand by expert (dispatch.h). The gate weight is multiplied into the activation, before the second GEMM: the
// same numbers, and neither forward nor backward keeps an expert's output. Weights of all experts are one parameter
// each, in [experts, inner or 2 inner, hidden] (gate projections first) and out [experts, hidden, inner], sharded along
// dimension 0 over the expert-parallel ranks. No biases, as in all published mixtures but GPT-OSS.
// Where experts have copies (expert_copies.h) the same GEMMs have more groups, and the copies' part of a weight
// gradient goes to the owners as soon as it is computed. Saved for backward are rows, pre-activations and gates;
// activations are recomputed. With FP8 GEMMs each expert's operands are quantised (fp8_experts.h). On a GPU whose
// routing stays there (ExpertRows::ends) gates go into the activation's kernel, and its backward gives the gates'
// gradient in the same pass.
// Depends on: base, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "trireme/kernels/activation.h"
#include "trireme/nn/context.h"
#include "trireme/nn/moe/expert_copies.h"
#include "trireme/nn/tape.h"

namespace trireme::nn::moe {

struct ExpertsShape {
  std::string name;  ///< of the layer: of dropout's streams
  kernels::Activation activation = kernels::Activation::kSilu;
  bool gated = true;
  double dropout = 0;             ///< of activations (Switch: expert dropout)
  std::int64_t first_expert = 0;  ///< global number of this rank's first
};

/// The weights of a rank's own experts and of its copies of others', one below the other.
struct CopiedWeights {
  const ExpertCopies& copies;
  at::Tensor in, out;
};

/// Rows in expert order.
struct ExpertRows {
  at::Tensor x;                           ///< [rows, hidden]
  at::Tensor gates;                       ///< float (double) [rows]
  at::Tensor token_numbers;               ///< int64 [rows]: dropout draws by them
  std::span<const std::int64_t> offsets;  ///< [local experts + 1]
  at::Tensor ends = {};                   ///< in place of offsets: int32 [local experts] on the GPU
  /// In backward_on_gpu x has tokens; their rows stand where this says (expert_ops.h).
  at::Tensor row_of = {};
  const CopiedWeights* copied = nullptr;  ///< where experts have copies: offsets are then of all slots
};

class Experts {
 public:
  Experts(ExpertsShape shape, Param& in, Param& out);

  std::int64_t local_experts() const;
  /// On all ranks that share the experts together.
  CopiedWeights with_copies(const ExpertCopies& copies, Context& context) const;
  at::Tensor pre_activation(const ExpertRows& rows, Context& context) const;
  /// [rows, hidden]: of each row its expert's output, times its gate.
  at::Tensor forward(const ExpertRows& rows, const at::Tensor& pre_activation, Context& context) const;

  struct Grad {
    at::Tensor x, gates;
  };
  /// Of one pass over rows of this micro-batch; `offsets` are copied where weight gradients are deferred.
  Grad backward(at::Tensor dy, const ExpertRows& rows, const at::Tensor& pre_activation, Context& context,
                Tape& tape) const;
  /// After the last of these passes: the weights have their gradients of this micro-batch.
  void end_backward(Context& context, Tape& tape) const;
  /// The same with `ends`, in one pass that is the last. The pre-activation's memory is used again where nobody else
  /// has it.
  Grad backward_on_gpu(at::Tensor dy, const ExpertRows& rows, at::Tensor pre_activation, Context& context,
                       Tape& tape) const;

 private:
  /// Of this rank's own experts, [experts, rows, hidden].
  at::Tensor own_in(Context& context) const;
  at::Tensor in_weight(const ExpertRows& rows, Context& context) const;
  at::Tensor out_weight(const ExpertRows& rows, Context& context) const;
  /// [rows, n] of x [rows, k] with matrices [groups, n, k], those of `weight` or copies; and back. FP8 where it says
  /// so.
  at::Tensor multiply(const Param& weight, const at::Tensor& x, const at::Tensor& matrices, const ExpertRows& rows,
                      Context& context) const;
  at::Tensor grad_input(const Param& weight, const at::Tensor& dy, const at::Tensor& matrices, const ExpertRows& rows,
                        Context& context) const;
  /// On the CPU without dropout between them: an activation and its gate are one pass, as on a GPU that routes.
  bool times_gates_at_once(const at::Tensor& pre_activation, const Context& context) const;
  at::Tensor activations(const at::Tensor& pre_activation) const;
  /// In place; the same in backward, on the gradient.
  void drop(at::Tensor& inner, const ExpertRows& rows, const Context& context) const;
  void add_weight_grad(Param& weight, const at::Tensor& dy, const at::Tensor& x, const ExpertRows& rows,
                       Context& context, Tape& tape) const;

  ExpertsShape shape_;
  Param &in_, &out_;
};

}  // namespace trireme::nn::moe
