// dataflow/layer.h -- the functions of parameterised transforms, with their gradients written out.
//
// Depends on: message.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/dataflow/message.h"

namespace trireme::dataflow {

class Layer {
 public:
  virtual ~Layer() = default;
  /// A function of parameters and input alone; `saved` is what its backward needs.
  virtual Payload forward(const Payload& params, const State& state, const Payload& input, Payload& saved) const = 0;
  /// The gradient of the input; that of the parameters is added to `gradient`, of as many numbers.
  virtual Payload backward(const Payload& params, const State& state, const Payload& saved,
                           const Payload& output_gradient, Payload& gradient) const = 0;
  /// From a seed and a name, so that nobody's order of calls matters.
  virtual Payload initial(std::uint64_t seed, const std::string& name) const = 0;
  /// Multiplications and additions of a forward; a backward takes twice as many.
  virtual double flops() const = 0;
};

/// y = W x + b, through tanh or not.
std::unique_ptr<Layer> make_linear(int inputs, int outputs, bool tanh);
/// A row for each token; the input is the number of the token.
std::unique_ptr<Layer> make_embedding(int tokens, int size);
/// Of a binary tree LSTM (Tai et al. 2015): a word's vector, or the (h, c) of two children one after the other, to (h,
/// c).
std::unique_ptr<Layer> make_tree_leaf(int inputs, int hidden);
std::unique_ptr<Layer> make_tree_cell(int hidden);
/// A gated recurrent unit (Cho et al. 2014): the state h and what came in, one behind the other, to the next state.
std::unique_ptr<Layer> make_gru(int hidden);

}  // namespace trireme::dataflow
