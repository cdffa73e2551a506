#include "trireme/nn/block.h"

#include <ATen/ops/add.h>

#include "trireme/base/error.h"

namespace trireme::nn {

Block::Block(std::vector<Branch> branches, bool norm_first, Stream stream, bool recompute_norms)
    : branches_(std::move(branches)),
      norm_first_(norm_first),
      recompute_norms_(recompute_norms && norm_first),
      stream_(stream) {
  TRIREME_CHECK(!branches_.empty(), "a block without branches");
}

at::Tensor Block::forward_body(Branch& branch, at::Tensor x, const Tensors& inputs, Context& context, Tape* tape) {
  Tensors of_body{std::move(x)};
  if (branch.takes_memory) of_body.push_back(inputs.at(1));
  at::Tensor y = std::move(branch.body->forward(std::move(of_body), context, tape)[0]);
  branch.dropout.apply(y, sequence_of(context, stream_), context);
  return y;
}

at::Tensor Block::backward_body(Branch& branch, at::Tensor dy, at::Tensor& dmemory, Context& context, Tape& tape) {
  if (branch.dropout.active(context)) {
    dy = dy.clone();  // the residual's gradient is the same tensor, and nothing falls there
    branch.dropout.apply(dy, sequence_of(context, stream_), context);
  }
  Tensors gradients = branch.body->backward({std::move(dy)}, context, tape);
  if (branch.takes_memory) {
    if (dmemory.defined()) {
      dmemory.add_(gradients.at(1));
    } else {
      dmemory = std::move(gradients.at(1));
    }
  }
  return std::move(gradients[0]);
}

ResidualSum Block::forward_branch(Branch& branch, const at::Tensor& residual, at::Tensor x, const Tensors& inputs,
                                  Context& context, Tape* tape) {
  auto* body = dynamic_cast<ResidualLayer*>(branch.body.get());
  if (body != nullptr && !branch.takes_memory && !branch.dropout.active(context)) {
    return body->forward_add(residual, std::move(x), context, tape);
  }
  return {.residual = residual, .delta = forward_body(branch, std::move(x), inputs, context, tape)};
}

Tensors Block::forward(Tensors inputs, Context& context, Tape* tape) {
  at::Tensor residual = std::move(inputs[0]), delta;
  for (Branch& branch : branches_) {
    if (!norm_first_) {
      delta = forward_body(branch, residual, inputs, context, tape);
      residual = branch.norm.forward_sum(residual, delta, context, tape).y;
      delta = at::Tensor();
      continue;
    }
    at::Tensor y;
    if (delta.defined()) {
      auto both = branch.norm.forward_sum(residual, delta, context, tape);
      residual = std::move(both.sum);
      y = std::move(both.y);
    } else {
      y = branch.norm.forward(residual, context, tape);
    }
    const bool discards = recompute_norms_ && tape != nullptr;
    const std::size_t mark = discards ? tape->height() : 0;
    const at::Tensor normalised = discards ? y : at::Tensor();
    ResidualSum sum = forward_branch(branch, residual, std::move(y), inputs, context, tape);
    residual = std::move(sum.residual);
    delta = std::move(sum.delta);
    if (discards) tape->discard(normalised, mark);
  }
  inputs[0] = delta.defined() ? delta.add_(residual) : residual;
  return inputs;
}

Tensors Block::backward(Tensors gradients, Context& context, Tape& tape) {
  at::Tensor dresidual = std::move(gradients[0]);
  at::Tensor dmemory = gradients.size() > 1 ? std::move(gradients[1]) : at::Tensor();
  for (auto branch = branches_.rbegin(); branch != branches_.rend(); ++branch) {
    if (norm_first_) {
      if (recompute_norms_) {
        tape.recompute([&](const Tensors& kept) { return branch->norm.recompute(kept, context); });
      }
      const at::Tensor dy = backward_body(*branch, dresidual, dmemory, context, tape);
      dresidual = branch->norm.backward_sum(dy, std::move(dresidual), context, tape);
    } else {
      const at::Tensor dsum = branch->norm.backward(std::move(dresidual), context, tape);
      // The body may not write into what the residual path still needs.
      dresidual = at::add(backward_body(*branch, dsum, dmemory, context, tape), dsum);
    }
  }
  gradients[0] = std::move(dresidual);
  if (gradients.size() > 1) gradients[1] = std::move(dmemory);
  return gradients;
}

}  // namespace trireme::nn
