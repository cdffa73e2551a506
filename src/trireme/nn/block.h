// nn/block.h -- residual branches one after the other: x + f(norm(x)) (pre-norm) or norm(x + f(x)) (post-norm).
//
// The sum of a residual is one pass over memory with the norm after it, or with the GEMM before it where the body
// does that and nothing is dropped in between. A block passes on tensors beyond the first (an encoder's output), to
// branches that want them.
// Depends on: base, kernels.
#pragma once

#include <memory>
#include <vector>

#include "trireme/nn/dropout.h"
#include "trireme/nn/norm.h"

namespace trireme::nn {

struct Branch {
  Norm norm;
  std::unique_ptr<Layer> body;
  Dropout dropout;
  bool takes_memory = false;  ///< body's inputs are (x, memory)
};

class Block final : public Layer {
 public:
  /// `recompute_norms`: what norms give is let go after the branch has run, and recomputed when it goes back (pre-norm
  /// only, where norms' inputs are kept anyway).
  Block(std::vector<Branch> branches, bool norm_first, Stream stream, bool recompute_norms = false);
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  at::Tensor forward_body(Branch& branch, at::Tensor x, const Tensors& inputs, Context& context, Tape* tape);
  /// residual + body(x), dropout included.
  ResidualSum forward_branch(Branch& branch, const at::Tensor& residual, at::Tensor x, const Tensors& inputs,
                             Context& context, Tape* tape);
  /// The gradient of the body's x; that of the memory is added to `dmemory`.
  at::Tensor backward_body(Branch& branch, at::Tensor dy, at::Tensor& dmemory, Context& context, Tape& tape);

  std::vector<Branch> branches_;
  bool norm_first_, recompute_norms_;
  Stream stream_;
};

}  // namespace trireme::nn
