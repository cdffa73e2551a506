#include "trireme/spmd/reference.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/lstm_cell.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/plan/graph/staged.h"
#include "trireme/spmd/ops/kernel.h"

namespace trireme::spmd {
namespace {

std::vector<std::int64_t> member_of_windows(const pg::Op& op, Index pg::Window::*member) {
  std::vector<std::int64_t> values;
  for (const pg::Window& window : op.windows) values.push_back(window.*member);
  return values;
}

class ReferenceRun {
 public:
  ReferenceRun(const pg::Graph& graph, const Values& start, std::uint64_t seed, std::int64_t step,
               const MicroBatch& micro)
      : graph_(graph), values_(start), seed_(seed), step_(step), micro_(micro) {}

  Reference run() {
    const c10::AutoGradMode with_gradients(true);
    std::vector<at::Tensor> leaves;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (graph_.tensors[i].role != pg::Role::kParameter || !values_[i].defined()) continue;
      values_[i] = values_[i].detach().clone().requires_grad_(true);
      leaves.push_back(values_[i]);
      which.push_back(i);
    }
    at::Tensor loss;
    for (const pg::Op& op : graph_.ops) {
      if (op.forward >= 0) continue;
      run_forward(op);
      if (op.kind != pg::OpKind::kSoftmaxLoss) continue;
      const at::Tensor& one = value(op.outputs[0]);
      loss = loss.defined() ? loss + one : one;
    }
    Reference reference{.loss = loss.item<double>(), .gradients = Values(values_.size())};
    const auto gradients = torch::autograd::grad({loss}, leaves, {}, c10::nullopt, false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < which.size(); ++i) reference.gradients[which[i]] = gradients[i];
    return reference;
  }

  ReferenceRun& with_library_norms() {
    library_norms_ = true;
    return *this;
  }

  at::Tensor logits(const RunningStatistics& running) {
    const c10::NoGradGuard no_gradients;
    running_ = &running;
    at::Tensor last;  // auxiliary losses come before
    for (const pg::Op& op : graph_.ops) {
      if (op.kind == pg::OpKind::kSoftmaxLoss) {
        last = value(op.inputs[0]);
      } else {
        run_forward(op);
      }
    }
    return last;
  }

 private:
  at::Tensor& value(int tensor) { return values_[static_cast<std::size_t>(tensor)]; }
  const std::vector<int>& dims(int tensor) const { return graph_.tensor(tensor).dims; }
  std::vector<Index> sizes(int tensor) const {
    std::vector<Index> result;
    for (const int dim : dims(tensor)) result.push_back(graph_.size(dim));
    return result;
  }

  void run_forward(const pg::Op& op) {
    switch (op.kind) {
      case pg::OpKind::kEinsum:
        return einsum(op);
      case pg::OpKind::kConvolution: {
        const c10::optional<at::Tensor> bias = op.bias ? c10::optional<at::Tensor>(value(op.inputs[2])) : c10::nullopt;
        const std::vector<std::int64_t> none(op.windows.size(), 0);
        value(op.outputs[0]) =
            at::convolution(value(op.inputs[0]), value(op.inputs[1]), bias, member_of_windows(op, &pg::Window::stride),
                            member_of_windows(op, &pg::Window::padding), member_of_windows(op, &pg::Window::dilation),
                            op.part == pg::Part::kBackwardData, none, 1);
        return;
      }
      case pg::OpKind::kPooling:
        value(op.outputs[0]) = pooled(op);
        return;
      case pg::OpKind::kNorm:
        return norm(op);
      case pg::OpKind::kElementwise:
        value(op.outputs[0]) = elementwise(op);
        return;
      case pg::OpKind::kGather:
        value(op.outputs[0]) = at::embedding(value(op.inputs[0]), value(op.inputs[1]));
        return;
      case pg::OpKind::kLstmCell:
        return lstm(op);
      case pg::OpKind::kAttention:
        value(op.outputs[0]) = attended(op);
        return;
      case pg::OpKind::kRotary:
        value(op.outputs[0]) = turned(op);
        return;
      case pg::OpKind::kRouter:
        return router(op);
      case pg::OpKind::kSoftmaxLoss:
        return loss(op);
      case pg::OpKind::kConcat: {
        std::vector<at::Tensor> parts;
        for (const int input : op.inputs) parts.push_back(value(input));
        value(op.outputs[0]) = at::cat(parts, position(dims(op.outputs[0]), op.dims[0]));
        return;
      }
      case pg::OpKind::kSplit: {
        const int axis = position(dims(op.inputs[0]), op.dims[0]);
        std::vector<std::int64_t> parts;
        for (const int output : op.outputs) parts.push_back(sizes(output)[static_cast<std::size_t>(axis)]);
        const std::vector<at::Tensor> made = at::split_with_sizes(value(op.inputs[0]), parts, axis);
        for (std::size_t i = 0; i < made.size(); ++i) value(op.outputs[i]) = made[i];
        return;
      }
      case pg::OpKind::kReshape:
        value(op.outputs[0]) = value(op.inputs[0]).reshape(sizes(op.outputs[0]));
        return;
    }
  }

  /// Broadcast to the shape of all dimensions, multiplied, summed: no einsum in it.
  void einsum(const pg::Op& op) {
    std::vector<int> all = dims(op.outputs[0]);
    const std::size_t factors = op.inputs.size() - (op.bias ? 1 : 0), kept = all.size();
    for (std::size_t i = 0; i < factors; ++i) {
      for (const int dim : dims(op.inputs[i])) {
        if (position(all, dim) < 0) all.push_back(dim);
      }
    }
    std::vector<std::int64_t> reduced;
    for (std::size_t i = kept; i < all.size(); ++i) reduced.push_back(static_cast<std::int64_t>(i));
    at::Tensor y;
    if (factors == 2 && reduced.size() == 1) {
      y = matmul(op, all);
    } else {
      for (std::size_t i = 0; i < factors; ++i) {
        const at::Tensor next = aligned(value(op.inputs[i]), dims(op.inputs[i]), all);
        y = y.defined() ? y * next : next;
      }
      if (!reduced.empty()) y = y.sum(reduced);
    }
    if (op.function == "mean") {
      for (std::size_t i = kept; i < all.size(); ++i) y = y / static_cast<double>(graph_.size(all[i]));
    }
    if (op.bias) y = y + aligned(value(op.inputs.back()), dims(op.inputs.back()), dims(op.outputs[0]));
    value(op.outputs[0]) = y;
  }

  /// One sum over two factors: [batch, rows, inner] x [batch, inner, columns], which takes far less memory.
  at::Tensor matmul(const pg::Op& op, const std::vector<int>& all) {
    const auto &a = dims(op.inputs[0]), &b = dims(op.inputs[1]);
    std::vector<int> batch, rows, columns;
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      const bool in_a = position(a, all[i]) >= 0, in_b = position(b, all[i]) >= 0;
      (in_a && in_b ? batch : in_a ? rows : columns).push_back(all[i]);
    }
    const int inner = all.back();
    if (position(a, inner) < 0 || position(b, inner) < 0)
      return at::einsum(equation(op), {value(op.inputs[0]), value(op.inputs[1])});
    const auto count = [&](const std::vector<int>& of) {
      Index product = 1;
      for (const int dim : of) product *= graph_.size(dim);
      return product;
    };
    const auto join = [](std::vector<int> x, const std::vector<int>& y) {
      x.insert(x.end(), y.begin(), y.end());
      return x;
    };
    const Index k = graph_.size(inner);
    const at::Tensor left = aligned(value(op.inputs[0]), a, join(join(batch, rows), {inner})),
                     right = aligned(value(op.inputs[1]), b, join(join(batch, {inner}), columns));
    const at::Tensor made =
        at::bmm(left.reshape({count(batch), count(rows), k}), right.reshape({count(batch), k, count(columns)}));
    const std::vector<int> order = join(join(batch, rows), columns);
    std::vector<std::int64_t> shape;
    for (const int dim : order) shape.push_back(graph_.size(dim));
    return aligned(made.reshape(shape), order, dims(op.outputs[0]));
  }

  std::string equation(const pg::Op& op) const {
    std::vector<int> letters;
    std::string text;
    const auto letter = [&](int dim) {
      if (position(letters, dim) < 0) letters.push_back(dim);
      return static_cast<char>('a' + position(letters, dim));
    };
    for (std::size_t i = 0; i < 2; ++i) {
      if (i > 0) text += ',';
      for (const int dim : dims(op.inputs[i])) text += letter(dim);
    }
    text += "->";
    for (const int dim : dims(op.outputs[0])) text += letter(dim);
    return text;
  }

  /// By the library, keys and values repeated for the queries of a group.
  at::Tensor attended(const pg::Op& op) {
    const at::Tensor& x = value(op.inputs[0]);
    at::Tensor q = x, k = value(op.inputs[1]), v = value(op.inputs[2]);
    if (x.dim() == 5) {
      q = x.flatten(2, 3);
      k = k.repeat_interleave(x.size(3), 2);
      v = v.repeat_interleave(x.size(3), 2);
    }
    c10::optional<at::Tensor> bias;
    if (op.reach > 0) {
      const at::Tensor seen = at::ones({q.size(1), k.size(1)}, at::kBool).tril().triu(1 - op.reach);
      bias = at::zeros(seen.sizes(), q.options()).masked_fill(seen.logical_not(), -INFINITY);
    }
    return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias, 0,
                                            op.function == "causal" && !bias)
        .transpose(1, 2)
        .reshape(x.sizes());
  }

  /// Pairs as complex numbers, times e^(i angle).
  at::Tensor turned(const pg::Op& op) {
    const at::Tensor x = value(op.inputs[0]).movedim(position(dims(op.inputs[0]), op.dims[0]), -2);
    const Index half = x.size(-1) / 2;
    const at::Tensor rates = at::exp(at::arange(half, at::kDouble) * (-std::log(op.base) / static_cast<double>(half)));
    const at::Tensor angles = at::outer(at::arange(x.size(-2), at::kDouble), rates).to(x.scalar_type());
    const at::Tensor pairs = at::complex(x.narrow(-1, 0, half).contiguous(), x.narrow(-1, half, half).contiguous()) *
                             at::polar(at::ones_like(angles), angles);
    return at::cat({at::real(pairs), at::imag(pairs)}, -1).movedim(-2, position(dims(op.inputs[0]), op.dims[0]));
  }

  at::Tensor pooled(const pg::Op& op) {
    const auto kernel = member_of_windows(op, &pg::Window::kernel), stride = member_of_windows(op, &pg::Window::stride),
               padding = member_of_windows(op, &pg::Window::padding);
    const at::Tensor& x = value(op.inputs[0]);
    if (op.function == "average") return at::avg_pool2d(x, kernel, stride, padding);
    return at::max_pool2d(x, kernel, stride, padding, member_of_windows(op, &pg::Window::dilation));
  }

  void norm(const pg::Op& op) {
    const at::Tensor& x = value(op.inputs[0]);
    std::vector<std::int64_t> axes;
    for (const int dim : op.dims) axes.push_back(position(dims(op.inputs[0]), dim));
    if (library_norms_ && is_batch_norm(op)) {
      value(op.outputs[0]) =
          at::batch_norm(x, value(op.inputs[1]), value(op.inputs[2]), {}, {}, true, 0.1, kNormEps, false);
      return;
    }
    if (op.function == "rms") {
      const at::Tensor root = (x.square().mean(axes, true) + kNormEps).sqrt();
      value(op.outputs[0]) = x / root * aligned(value(op.inputs[1]), dims(op.inputs[1]), dims(op.inputs[0]));
      return;
    }
    at::Tensor mean, variance;
    if (running_ && is_batch_norm(op)) {
      const at::Tensor moments = running_->at(op.name).moments.to(x.scalar_type()).view({2, 1, -1, 1, 1});
      mean = moments[0], variance = moments[1];
    } else {
      mean = x.mean(axes, true);
      variance = (x - mean).square().mean(axes, true);
    }
    const at::Tensor normal = (x - mean) / (variance + kNormEps).sqrt();
    value(op.outputs[0]) = normal * aligned(value(op.inputs[1]), dims(op.inputs[1]), dims(op.inputs[0])) +
                           aligned(value(op.inputs[2]), dims(op.inputs[2]), dims(op.inputs[0]));
  }

  at::Tensor elementwise(const pg::Op& op) {
    const std::vector<Index> whole = sizes(op.outputs[0]);
    at::Tensor x;
    for (const int input : op.inputs) {
      const at::Tensor next = aligned(value(input), dims(input), dims(op.outputs[0]));
      x = !x.defined() ? next : op.function == "multiply" ? x * next : x + next;
    }
    x = x.expand(whole);
    if (op.function == "relu") return at::relu(x);
    if (op.function == "gelu") return at::gelu(x);
    if (op.function == "silu") return x * at::sigmoid(x);
    if (op.function == "tanh") return at::tanh(x);
    if (op.function == "sigmoid") return at::sigmoid(x);
    if (op.function == "dropout" && running_) return x;
    if (op.function == "dropout") {
      std::vector<Index> batch = whole;
      const Place place = micro_.in_batch(dims(op.outputs[0]), {std::vector<Index>(whole.size(), 0), whole}, batch);
      return x * dropout_mask(op.name, place, batch, seed_, step_, x.options());
    }
    return x;
  }

  void lstm(const pg::Op& op) {
    const at::Tensor &x = value(op.inputs[0]), &h = value(op.inputs[1]), &c = value(op.inputs[2]);
    const auto flat = [&](int tensor) {  // [in, gates, units] -> [gates * units, in], as PyTorch has it
      const at::Tensor& w = value(tensor);
      return w.permute({1, 2, 0}).reshape({w.size(1) * w.size(2), w.size(0)});
    };
    const at::Tensor bias = value(op.inputs[5]).reshape({-1});
    auto [next_h, next_c] =
        at::lstm_cell(x, {h, c}, flat(op.inputs[3]), flat(op.inputs[4]), bias, at::zeros_like(bias).detach());
    value(op.outputs[0]) = next_h;
    value(op.outputs[1]) = next_c;
  }

  void router(const pg::Op& op) {
    const at::Tensor p = at::softmax(value(op.inputs[0]), 2);
    const int choices = op.function == "top2" ? 2 : 1;
    const Seats seats = seats_of(p.detach(), choices, sizes(op.outputs[0]).back());
    std::vector<at::Tensor> chosen;
    for (const at::Tensor& expert : seats.experts) chosen.push_back(p.gather(2, expert.unsqueeze(2)).squeeze(2));
    at::Tensor combine;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const at::Tensor weight = choices == 2 ? chosen[i] / (chosen[0] + chosen[1]) : chosen[i];
      const at::Tensor part = seats.masks[i] * weight.unsqueeze(2).unsqueeze(3);
      combine = combine.defined() ? combine + part : part;
    }
    value(op.outputs[0]) = combine;
  }

  void loss(const pg::Op& op) {
    std::vector<int> order = dims(op.inputs[1]);
    order.push_back(op.dims[0]);
    const at::Tensor logits =
        aligned(value(op.inputs[0]), dims(op.inputs[0]), order).reshape({-1, graph_.size(op.dims[0])});
    value(op.outputs[0]) = at::cross_entropy_loss(logits, value(op.inputs[1]).reshape({-1}));
  }

  const pg::Graph& graph_;
  Values values_;
  const std::uint64_t seed_;
  const std::int64_t step_;
  const MicroBatch micro_;
  bool library_norms_ = false;
  const RunningStatistics* running_ = nullptr;  // null: training
};

}  // namespace

Reference run_reference(const pg::Graph& graph, const Values& start, std::uint64_t seed, std::int64_t step) {
  return ReferenceRun(graph, start, seed, step, {}).run();
}

at::Tensor run_logits(const pg::Graph& graph, const Values& values, const RunningStatistics& running) {
  return ReferenceRun(graph, values, 0, 0, {}).logits(running);
}

Values values_of_micro(const pg::Graph& graph, const Values& start, const MicroBatch& micro) {
  Values values = start;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (graph.tensors[i].role != pg::Role::kInput || !values[i].defined()) continue;
    for (std::size_t dim = 0; dim < graph.tensors[i].dims.size(); ++dim) {
      if (position(micro.dims, graph.tensors[i].dims[dim]) < 0) continue;
      const auto at = static_cast<std::int64_t>(dim);
      const Index size = values[i].size(at) / micro.count;
      values[i] = values[i].narrow(at, micro.number * size, size);
    }
  }
  return values;
}

Reference run_eager(const pg::Graph& graph, const Values& start) {
  return ReferenceRun(graph, start, 0, 0, {}).with_library_norms().run();
}

Reference run_micro_reference(const pg::Graph& graph, const Values& start, std::uint64_t seed, std::int64_t step,
                              int micros) {
  const pg::MicroGraph micro = pg::micro_graph(graph, micros);
  Reference mean;
  for (int number = 0; number < micros; ++number) {
    const MicroBatch of{.number = number, .count = micros, .dims = micro.dims};
    const Reference one = ReferenceRun(micro.graph, values_of_micro(graph, start, of), seed, step, of).run();
    mean.loss += one.loss / micros;
    if (number == 0) mean.gradients.resize(one.gradients.size());
    for (std::size_t i = 0; i < one.gradients.size(); ++i) {
      if (!one.gradients[i].defined()) continue;
      const at::Tensor part = one.gradients[i] / static_cast<double>(micros);
      mean.gradients[i] = mean.gradients[i].defined() ? mean.gradients[i] + part : part;
    }
  }
  return mean;
}

}  // namespace trireme::spmd
