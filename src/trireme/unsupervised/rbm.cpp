#include "trireme/unsupervised/rbm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::unsupervised {

Rbm make_rbm(const RbmShape& shape, const at::Tensor& like) {
  at::Tensor weight = at::zeros({shape.visible, shape.hidden}, at::TensorOptions(at::kFloat));
  const Random random(shape.seed, "rbm/weight");
  random.fill_normal(0, std::span(weight.mutable_data_ptr<float>(), static_cast<std::size_t>(weight.numel())));
  return {.weight = (weight * 0.01).to(like.options()),
          .visible = at::zeros({shape.visible}, like.options()),
          .hidden = at::zeros({shape.hidden}, like.options())};
}

at::Tensor overlapping_patches(const Patches& p, const at::Tensor& like) {
  TRIREME_CHECK(p.size > 0 && p.size <= p.side && p.stride > 0 && p.per_patch > 0, "patches of {} in images of {}",
                p.size, p.side);
  at::Tensor mask = at::zeros({p.side * p.side, p.count() * p.per_patch}, at::TensorOptions(at::kFloat));
  auto* const at = mask.mutable_data_ptr<float>();
  std::int64_t group = 0;
  for (std::int64_t top = 0; top + p.size <= p.side; top += p.stride) {
    for (std::int64_t left = 0; left + p.size <= p.side; left += p.stride, ++group) {
      for (std::int64_t y = top; y < top + p.size; ++y) {
        for (std::int64_t x = left; x < left + p.size; ++x) {
          for (std::int64_t h = group * p.per_patch; h < (group + 1) * p.per_patch; ++h)
            at[(y * p.side + x) * mask.size(1) + h] = 1;
        }
      }
    }
  }
  return mask.to(like.options());
}

at::Tensor hidden_of(const Rbm& rbm, const at::Tensor& visible) {
  return at::sigmoid(at::addmm(rbm.hidden, visible, rbm.weight));
}

at::Tensor cd_step(Rbm& rbm, CdState& state, const at::Tensor& v0, const at::Tensor& uniform,
                   const CdOptions& options) {
  if (!state.weight.defined())
    state = {at::zeros_like(rbm.weight), at::zeros_like(rbm.visible), at::zeros_like(rbm.hidden)};
  const at::Tensor h0 = hidden_of(rbm, v0);
  const at::Tensor drawn = at::lt(uniform, h0).to(v0.scalar_type());
  const at::Tensor v1 = at::sigmoid(at::addmm(rbm.visible, drawn, rbm.weight.t()));
  const at::Tensor h1 = hidden_of(rbm, v1);
  const double step = options.rate / static_cast<double>(v0.size(0));
  // The products go into the momentum in place: no gradient of the size of the weights is ever made.
  state.weight.addmm_(v0.t(), h0, options.momentum, step).addmm_(v1.t(), h1, 1, -step);
  state.visible.mul_(options.momentum).add_((v0 - v1).sum(0), step);
  state.hidden.mul_(options.momentum).add_((h0 - h1).sum(0), step);
  if (rbm.mask.defined()) state.weight.mul_(rbm.mask);
  rbm.weight.add_(state.weight);
  rbm.visible.add_(state.visible);
  rbm.hidden.add_(state.hidden);
  const at::Tensor error = v0 - v1;
  return (error * error).sum(at::kDouble);
}

double train_epoch(Rbm& rbm, CdState& state, const at::Tensor& examples, const CdOptions& options) {
  at::Tensor error = at::zeros({}, examples.options().dtype(at::kDouble));
  for (std::int64_t first = 0; first < examples.size(0); first += options.batch) {
    const at::Tensor batch = examples.narrow(0, first, std::min(options.batch, examples.size(0) - first));
    const at::Tensor uniform = at::rand({batch.size(0), rbm.weight.size(1)}, examples.options());
    error.add_(cd_step(rbm, state, batch, uniform, options));
  }
  return error.item<double>() / static_cast<double>(examples.numel());
}

double reconstruction_error(const Rbm& rbm, const at::Tensor& examples) {
  const at::Tensor again = at::sigmoid(at::addmm(rbm.visible, hidden_of(rbm, examples), rbm.weight.t()));
  const at::Tensor error = examples - again;
  return (error * error).sum(at::kDouble).item<double>() / static_cast<double>(examples.numel());
}

}  // namespace trireme::unsupervised
