// nn/distillation.h -- knowledge distillation: the main loss of a model that has a teacher.
//
//   q = softmax(teacher's logits / T)    p = softmax(logits / T)
//   loss = (1 - weight) * cross-entropy(targets) + weight * T^2 * sum over classes of -q log p
//
// Hinton, Vinyals, Dean (1503.02531, section 2); Switch Transformer (2101.03961, section 4.1) has weight 1/4 and T 1.
// What takes part, and how much, is as for the targets. Like the logits of the model, the teacher's are never there for
// all tokens at once: the head asks for those of its chunk. Ranks with slices of the classes exchange three numbers a
// token.
// Depends on: base, comm.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "trireme/comm/group.h"

namespace trireme::nn {

class Head;

/// A micro-batch's teacher.
struct Distillation {
  const Head& head;      ///< the teacher's, of as many classes, on the same ranks
  double weight = 0.25;  ///< of its loss; the targets' has the rest
  double temperature = 1;
  /// Runs the teacher up to its head: what enters that for the micro-batch's tokens.
  std::function<at::Tensor()> head_input;
};

/// Of each row: T^2 times the cross-entropy against the teacher's probabilities, in float (double of double); and its
/// gradient by the logits.
struct SoftLoss {
  at::Tensor losses, gradients;
};
/// `logits` and `teacher` [rows, classes here]; `slices`: the ranks that have the other classes, null: there are none.
SoftLoss soft_cross_entropy(const at::Tensor& logits, const at::Tensor& teacher, double temperature,
                            comm::Group* slices);

}  // namespace trireme::nn
