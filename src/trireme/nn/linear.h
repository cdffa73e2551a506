// nn/linear.h -- y = x W^T + b, by one rank or split over the tensor-parallel ranks (team.h).
//
// Split by columns, a rank has some of the outputs and needs all of the inputs; split by rows, it has some of the
// inputs, and outputs are summed over ranks. Where sequences are split between pairs, a column's input and a row's
// output are parts of the tokens.
// Depends on: base, comm.
#pragma once

#include <memory>

#include "trireme/kernels/gemm.h"
#include "trireme/nn/fp8_gemm.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

enum class LinearSplit : std::uint8_t { kNone, kColumn, kRow };

class Linear final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `weight` [out, in] and `bias` [out] or null: this rank's parts. `team` is borrowed.
  Linear(Param& weight, Param* bias, LinearSplit split = LinearSplit::kNone, const ParallelContext& parallel = alone());
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

  // For layers that keep the input by themselves, or make it again:
  /// `kept`, where given, becomes what gradients() wants as its x: x itself, or what was gathered for it.
  at::Tensor product(const at::Tensor& x, Context& context, at::Tensor* kept = nullptr) const;
  /// `onto` + GEMM(x), which is rounded once where fuses_residual(); an undefined `onto` is nothing.
  at::Tensor product_onto(const at::Tensor& onto, const at::Tensor& x, Context& context) const;
  /// Whether the two below can be: with delayed 8-bit scales that are known, and no rank has a part.
  bool takes_gated() const;
  /// product_onto() of f(gate) * up, whose halves `inner` [.., 2 in] has: rounded to 8 bits as it is made.
  at::Tensor gated_product_onto(const at::Tensor& onto, const at::Tensor& inner, kernels::Activation kind,
                                Context& context) const;
  /// The way back through `out`'s gated_product_onto() and then this layer, which made `inner` of x: the gradient of x.
  /// Where both take_gated(), train and have no bias.
  at::Tensor gated_gradients(const Linear& out, const at::Tensor& dy, const at::Tensor& inner, const at::Tensor& x,
                             kernels::Activation kind, Context& context, Tape& tape) const;
  bool trains() const { return weight_.trainable; }
  bool has_bias() const { return bias_ != nullptr; }
  /// Whether product_onto() is a single pass: on a GPU, and no rank has a part of the sum.
  bool fuses_residual(const at::Tensor& x) const;
  /// Adds the weights' gradients (or defers that) and gives that of x. `row_sum`: of dy's rows, float (double), where
  /// it is known already.
  at::Tensor gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                       const at::Tensor& row_sum = {}) const;

  // The same in two calls, for a layer that makes x again together with what it makes of its gradient. Only where
  // gradients_apart(): nothing is exchanged with other ranks between the two.
  bool gradients_apart() const;
  /// dy rounded once for both of them; empty where nothing is.
  RoundedGradient round_gradient(const at::Tensor& dy) const;
  at::Tensor input_gradient(const at::Tensor& dy, Context& context, const RoundedGradient& rounded) const {
    return grad_input(dy, context, rounded.dy.rows.values.defined() ? &rounded : nullptr);
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                       const RoundedGradient& rounded = {}) const {
    add_weight_gradient(dy, x, context, tape, dy, {}, &rounded);
  }
  // GELU (by tanh) in the GEMM's own pass, on a GPU.
  /// Whether GELU of GEMM() can be had with it: nothing is exchanged with other ranks in between.
  bool takes_gelu(const at::Tensor& x) const;
  kernels::GeluLinear gelu_product(const at::Tensor& x, Context& context) const;
  /// Whether input_gradient() can be had times GELU's slope at `inner`, which this layer's input was made from.
  bool gives_gelu_back(const at::Tensor& dy) const;
  /// Where they are defined, `active` is recomputed, and `dbias` becomes the sum of the result's rows.
  at::Tensor gelu_gradient(const at::Tensor& dy, const at::Tensor& inner, at::Tensor& active, at::Tensor& dbias,
                           Context& context) const;
  /// Whether gradients() would add up dy's rows for the bias: whoever makes dy may give it their sum instead.
  bool wants_row_sum() const;

 private:
  at::Tensor multiply(const at::Tensor& x, bool with_bias, Context& context, const at::Tensor& onto = {}) const;
  at::Tensor multiply_rounded(const kernels::Fp8Matrix& x, at::ScalarType type, const at::Tensor& bias,
                              const at::Tensor& onto, Context& context) const;
  at::Tensor grad_input(const at::Tensor& dy, Context& context, const RoundedGradient* rounded = nullptr) const;
  at::Tensor grad_input_fp8(const kernels::Fp8Matrix& dy, at::ScalarType type, Context& context) const;
  /// Both sides rounded already, and turned.
  void add_rounded_gradient(const kernels::Fp8Matrix& dy, const kernels::Fp8Matrix& x, Context& context,
                            Tape& tape) const;
  void add_weight_gradient(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                           const at::Tensor& dy_of_bias, const at::Tensor& row_sum = {},
                           const RoundedGradient* rounded = nullptr) const;
  at::Tensor column_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                              const at::Tensor& row_sum) const;
  at::Tensor row_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const;

  Param& weight_;
  Param* bias_;
  LinearSplit split_;
  const ParallelContext* parallel_;
  std::shared_ptr<RoundedWeight> rounded_;  // shared by copies of the layer: one weight
};

}  // namespace trireme::nn
