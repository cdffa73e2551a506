// nn/linear.h -- y = x W^T + b, by one rank or split over the tensor-parallel ranks (parallel_context.h).
//
// Split by columns, a rank has some of the outputs and needs all of the inputs; split by rows, it has some of the
// inputs, and outputs are summed over ranks. Where sequences are split between pairs, a column's input and a row's
// output are parts of the tokens.
//
// A layer around it says what it wants of a call as values: LinearInput, LinearEpilogue, LinearGrad. Which of it one
// GEMM does, and what is then saved, follows here and in the planner behind kernels/gemm.h; nobody asks beforehand.
// Depends on: base, comm, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/kernels/activation.h"
#include "trireme/kernels/gemm.h"
#include "trireme/nn/fp8.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

/// What enters a linear layer: a tensor, or an activation of one that need not be in memory.
class Linear;

struct LinearInput {
  at::Tensor x = {};  ///< [.., in]; undefined: f(pre_activation)
  /// [.., in]; gated: [.., 2 in], x = f(gate) * up with the gate's half first. In backward the gradient is that of
  /// this, where it is defined.
  at::Tensor pre_activation = {};
  kernels::Activation activation = kernels::Activation::kRelu;  ///< f
  bool gated = false;
  /// In backward: the layer that gave the pre-activation. It gets its gradient in the form that it computes with.
  const Linear* producer = nullptr;
};

/// x, computed where it is not there.
at::Tensor activated(const LinearInput& input);
/// From the gradient of x to that of its pre-activation, in one pass that also writes x again where `recompute` is
/// defined, and the sum of the gradient's rows where `row_sum` is. `dx` may be overwritten.
at::Tensor activation_grad(at::Tensor dx, const LinearInput& input, at::Tensor recompute, at::Tensor& row_sum);

struct GateUp {
  at::Tensor gate, up;
};
/// Of a fused projection's output [n, 2 m]: views [n, m].
GateUp split_gate_up(const at::Tensor& rows);
/// x's sizes with another last one.
std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width);

enum class LinearSplit : std::uint8_t { kNone, kColumn, kRow };

/// What becomes of x W^T + b; one of the two.
struct LinearEpilogue {
  std::optional<kernels::Activation> activation = {};
  at::Tensor residual = {};  ///< as large as y, only read: see ResidualSum
};

struct LinearOutput {
  at::Tensor y = {};               ///< with the activation
  at::Tensor pre_activation = {};  ///< where there is one
  at::Tensor saved_input = {};     ///< what backward wants as its input's x: x itself, or what was gathered for it
  bool residual_added = false;     ///< y is the sum with the residual
};
ResidualSum residual_sum(const at::Tensor& residual, LinearOutput&& output);

/// A gradient on its way from one layer to the one before.
struct LinearGrad {
  at::Tensor grad = {};             ///< undefined: it exists quantised only
  kernels::Fp8Pair quantised = {};  ///< for both GEMMs of the layer that gets it
  at::Tensor row_sum = {};          ///< float (double): of its rows, where the bias of the layer that gets it wants it
};

class Linear final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `weight` [out, in] and `bias` [out] or null: this rank's parts. `parallel` is borrowed.
  Linear(Param& weight, Param* bias, LinearSplit split = LinearSplit::kNone,
         const ParallelContext& parallel = single_rank());
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

  const Param& weight() const { return weight_; }

  // For layers that save the input by themselves, or recompute it:
  LinearOutput forward(const LinearInput& input, const LinearEpilogue& epilogue, Context& context) const;
  /// Adds the weight's and the bias's gradients (or defers that) and gives that of the input, or of its pre-activation.
  LinearGrad backward(const LinearGrad& dy, const LinearInput& input, Context& context, Tape& tape) const;

 private:
  /// What the weight's and the bias's gradients are made of.
  struct WeightGrad {
    at::Tensor dy = {}, x = {};            // as rows; undefined where only the quantised one is left
    at::Tensor dy_of_bias = {};            // the rows that this rank's bias counts
    at::Tensor row_sum = {};               // of those, where it is known already
    kernels::Fp8Matrix dy8 = {}, x8 = {};  // quantised and transposed, where that is done already
  };

  /// In backward nothing is exchanged with other ranks.
  bool local() const;
  /// Whoever makes dy may sum up its rows for the bias.
  bool wants_row_sum() const;
  bool quantises_gated_input(const LinearInput& input) const;
  bool quantises_gated_grad(const LinearInput& input) const;
  const kernels::Fp8Pair& quantised_weight(Context& context, bool forward) const;
  kernels::Fp8Pair quantise_grad(const at::Tensor& dy) const;
  /// Room for the sum of the gradient's rows, where the layer before wants it.
  at::Tensor row_sum_for(const LinearInput& input) const;

  /// This rank's GEMM of an input's rows, with what the epilogue says.
  kernels::GemmResult multiply(const LinearInput& input, const kernels::Epilogue& epilogue, Context& context) const;
  at::Tensor multiply(const at::Tensor& x, bool with_bias, Context& context) const;
  /// The sum over ranks, where a rank has a part of it; `saved` becomes what backward wants.
  at::Tensor exchange_forward(const at::Tensor& x, Context& context, at::Tensor& saved) const;

  /// [rows, in], of `type`.
  at::Tensor grad_input(const LinearGrad& dy, at::ScalarType type, const kernels::Epilogue& epilogue,
                        Context& context) const;
  at::Tensor grad_input(const at::Tensor& dy, Context& context) const;
  void add_weight_grad(WeightGrad of, Context& context, Tape& tape) const;
  at::Tensor column_backward(const LinearGrad& dy, const at::Tensor& x, Context& context, Tape& tape) const;
  at::Tensor row_backward(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const;
  LinearGrad local_backward(const LinearGrad& dy, const LinearInput& input, Context& context, Tape& tape) const;
  LinearGrad gated_fp8_backward(const at::Tensor& dy, const LinearInput& input, Context& context, Tape& tape) const;

  Param& weight_;
  Param* bias_;
  LinearSplit split_;
  const ParallelContext* parallel_;
  std::shared_ptr<Fp8WeightCache> quantised_;  // shared by copies of the layer: one weight
};

}  // namespace trireme::nn
