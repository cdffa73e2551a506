// unsupervised/rbm.h -- restricted Boltzmann machines by contrastive divergence, all as matrix products.
//
//   Rbm rbm = make_rbm({.visible = 64, .hidden = 128}, like);
//   for (int epoch = 0; epoch < 10; ++epoch) error = train_epoch(rbm, examples, {.rate = 0.1});   // examples stay
//   there
//
// A belief network is a stack of them: each is trained on what the one below makes of the examples, hidden_of().
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::unsupervised {

struct Rbm {
  at::Tensor weight;   ///< [visible, hidden]
  at::Tensor visible;  ///< biases
  at::Tensor hidden;
  at::Tensor mask = {};  ///< [visible, hidden], 1 where a weight may be; undefined: everywhere
};

struct RbmShape {
  std::int64_t visible = 0, hidden = 0;
  std::uint64_t seed = 0;
};
/// Weights normal with 0.01, biases 0; type and device as `like` has them.
Rbm make_rbm(const RbmShape& shape, const at::Tensor& like);

/// Groups of hidden units, equally many for each patch of size x size of an image of side x side, `stride` apart.
struct Patches {
  std::int64_t side = 0, size = 0, stride = 0, per_patch = 0;
  std::int64_t count() const { return ((side - size) / stride + 1) * ((side - size) / stride + 1); }
};
at::Tensor overlapping_patches(const Patches& patches, const at::Tensor& like);

struct CdOptions {
  double rate = 0.1;
  double momentum = 0.5;
  std::int64_t batch = 100;
};
/// What momentum carries from step to step.
struct CdState {
  at::Tensor weight, visible, hidden;
};

/// One step on examples [batch, visible] in [0, 1]: h0 = sigmoid(v0 W + c), drawn; v1 = sigmoid(h0 W^T + b);
/// h1 = sigmoid(v1 W + c); W += rate (v0^T h0 - v1^T h1) / batch. The draws are `uniform` [batch, hidden]. Gives the
/// sum of squared errors of v1, on the device.
at::Tensor cd_step(Rbm& rbm, CdState& state, const at::Tensor& v0, const at::Tensor& uniform, const CdOptions& options);

/// All examples once, in order; the mean squared error of reconstruction of a value.
double train_epoch(Rbm& rbm, CdState& state, const at::Tensor& examples, const CdOptions& options);

at::Tensor hidden_of(const Rbm& rbm, const at::Tensor& visible);
/// Of what the hidden units make of the examples, without draws: the mean squared error of a value.
double reconstruction_error(const Rbm& rbm, const at::Tensor& examples);

}  // namespace trireme::unsupervised
