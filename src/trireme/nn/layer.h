// nn/layer.h -- a piece of a network: forward leaves on the tape what backward takes from it.
//
// Inputs and outputs are short lists of tensors: one for most layers, two where a decoder reads an encoder's output. A
// layer owns the gradients it is given and may overwrite them, unless the tape is deferring. Gradients of parameters
// are added up in Param::gradient.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/nn/context.h"
#include "trireme/nn/tape.h"

namespace trireme::nn {

class Layer {
 public:
  virtual ~Layer() = default;
  /// `tape` is null where no backward pass follows.
  virtual Tensors forward(Tensors inputs, Context& context, Tape* tape) = 0;
  /// Gradients of the inputs from those of the outputs; undefined ones for inputs that have none (token ids).
  virtual Tensors backward(Tensors gradients, Context& context, Tape& tape) = 0;
};

/// A layer from one tensor to one tensor.
class UnaryLayer : public Layer {
 public:
  Tensors forward(Tensors inputs, Context& context, Tape* tape) final;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) final;

  virtual at::Tensor forward(at::Tensor x, Context& context, Tape* tape) = 0;
  virtual at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) = 0;
};

/// residual + delta. Where the GEMM that gave delta has added it in its epilogue, there is no delta left.
struct ResidualSum {
  at::Tensor residual = {}, delta = {};
};

/// One whose output a block adds to what entered it.
class ResidualLayer : public UnaryLayer {
 public:
  using UnaryLayer::forward;
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) final {
    return forward_add(at::Tensor(), x, context, tape).delta;
  }
  /// residual + forward(x). A residual is read only; an undefined one is never added.
  virtual ResidualSum forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) = 0;
};

/// x [.., hidden] as [rows, hidden], without a copy; an InternalError where that is not possible.
at::Tensor as_rows(const at::Tensor& x);

/// Whether this is the only tensor, view or deferred work that holds the memory.
bool may_overwrite(const at::Tensor& tensor);

/// Tensors that one layer hands straight to a later one, past those between: the long arms of U-shaped networks.
///
/// A SkipLayer names what it hands on in gives() and what it takes in takes(). Whoever runs it says with use() where
/// the tensors of the micro are: forward gives and takes, backward gives gradients back and takes them back. On one
/// rank that is all; a pipeline carries them from rank to rank without touching the stages between.
class Skips {
 public:
  void give(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }
  /// Stays until the micro is over: a layer that is computed again takes it again. An InternalError where nobody gave.
  at::Tensor take(const std::string& name) const { return find(tensors_, name, "tensor"); }
  void give_back(const std::string& name, at::Tensor gradient) { gradients_[name] = std::move(gradient); }
  at::Tensor take_back(const std::string& name) const { return find(gradients_, name, "gradient"); }

 private:
  using Named = std::map<std::string, at::Tensor>;
  static at::Tensor find(const Named& named, const std::string& name, const char* what);
  Named tensors_, gradients_;
};

class SkipLayer : public Layer {
 public:
  virtual std::vector<std::string> gives() const { return {}; }
  virtual std::vector<std::string> takes() const { return {}; }
  /// Before each pass; borrowed until the next.
  void use(Skips& skips) { skips_ = &skips; }

 protected:
  /// An InternalError where nobody said.
  Skips& skips() const;

 private:
  Skips* skips_ = nullptr;
};

}  // namespace trireme::nn
