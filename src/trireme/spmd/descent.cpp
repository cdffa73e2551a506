#include "trireme/spmd/descent.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace trireme::spmd {

namespace {

/// The kernels of a 1 x 1 convolution lie alike however the strides of their last dimensions are written, and calls on
/// many tensors at once ask for the same strides.
at::Tensor lies_like(const at::Tensor& gradient, const at::Tensor& own) {
  const bool one_by_one = gradient.dim() == 4 && gradient.size(2) == 1 && gradient.size(3) == 1;
  if (!one_by_one || gradient.strides() == own.strides() || !gradient.is_contiguous() || !own.is_contiguous())
    return gradient;
  return gradient.as_strided(own.sizes(), own.strides());
}

}  // namespace

double learning_rate_at(const DescentOptions& options, std::int64_t step) {
  if (step < options.warmup_steps) {
    const double done = static_cast<double>(step) / static_cast<double>(options.warmup_steps);
    return options.warmup_from + (options.learning_rate - options.warmup_from) * done;
  }
  const auto decays = std::ranges::count_if(options.decay_at, [&](std::int64_t at) { return at <= step; });
  return options.learning_rate * std::pow(0.1, static_cast<double>(decays));
}

Descent::Descent(const pg::Graph& both, const DescentOptions& options)
    : options_(options), decays_(both.tensors.size(), true) {
  for (const pg::Op& op : both.ops) {
    if (op.kind != pg::OpKind::kNorm || op.forward >= 0) continue;
    for (std::size_t i = 1; i < op.inputs.size(); ++i) decays_[static_cast<std::size_t>(op.inputs[i])] = false;
  }
}

void Descent::load(const Values& parameters, const Values& start) {
  masters_.assign(parameters.size(), {});
  velocities_.assign(parameters.size(), {});
  // Updates smaller than the last bit of bf16 would be lost: master weights take them.
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].defined() && parameters[i].scalar_type() == at::kBFloat16)
      masters_[i] = start[i].to(at::kFloat).clone();
  }
}

void Descent::step(Values& parameters, const Values& gradients, std::int64_t step) {
  std::vector<at::Tensor> own, by, rounded, from, wide, narrow;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const bool has_master = masters_[i].defined();
    own.push_back(has_master ? masters_[i] : parameters[i]);
    by.push_back(lies_like(gradients[i], own.back()));
    which.push_back(i);
    if (!has_master) continue;
    narrow.push_back(by.back());
    by.back() = at::empty_like(own.back());
    wide.push_back(by.back());
    rounded.push_back(parameters[i]), from.push_back(masters_[i]);
  }
  if (own.empty()) return;
  if (!wide.empty()) at::_foreach_copy_(wide, narrow);  // all of them in a few launches
  if (options_.weight_decay != 0) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (decays_[which[i]]) by[i] = by[i].add(own[i], options_.weight_decay);
    }
  }
  if (options_.momentum != 0) {
    std::vector<at::Tensor> velocities;
    for (std::size_t i = 0; i < own.size(); ++i) {
      at::Tensor& velocity = velocities_[which[i]];
      if (!velocity.defined()) velocity = at::zeros_like(own[i]);
      velocities.push_back(velocity);
    }
    at::_foreach_mul_(velocities, options_.momentum);
    at::_foreach_add_(velocities, by);
    by = std::move(velocities);
  }
  at::_foreach_add_(own, by, -learning_rate_at(options_, step));
  if (!rounded.empty()) at::_foreach_copy_(rounded, from);
}

}  // namespace trireme::spmd
