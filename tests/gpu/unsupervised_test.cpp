#include <ATen/ops/abs.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "tests/gpu/support.h"
#include "trireme/unsupervised/rbm.h"
#include "trireme/unsupervised/sparse_coding.h"

namespace trireme::gpu {
namespace {

double largest_difference(const at::Tensor& cpu, const at::Tensor& gpu) {
  return (cpu - gpu.cpu()).abs().max().item<double>();
}

TEST(GpuUnsupervised, StepsOfContrastiveDivergenceEqualTheCpus) {
  at::manual_seed(3);
  const at::Tensor examples = at::rand({60, 64}, at::kDouble);
  unsupervised::Rbm cpu = unsupervised::make_rbm({.visible = 64, .hidden = 32, .seed = 1}, examples);
  unsupervised::Rbm there{cpu.weight.to(gpu()), cpu.visible.to(gpu()), cpu.hidden.to(gpu())};
  unsupervised::CdState state, state_there;
  for (int step = 0; step < 5; ++step) {
    const at::Tensor batch = examples.narrow(0, step * 12, 12), uniform = at::rand({12, 32}, at::kDouble);
    const double error = unsupervised::cd_step(cpu, state, batch, uniform, {.rate = 0.2}).item<double>();
    const double error_there =
        unsupervised::cd_step(there, state_there, batch.to(gpu()), uniform.to(gpu()), {.rate = 0.2}).item<double>();
    EXPECT_NEAR(error_there, error, 1e-10 * error);
  }
  EXPECT_LT(largest_difference(cpu.weight, there.weight), 1e-12);
  EXPECT_LT(largest_difference(cpu.visible, there.visible), 1e-12);
  EXPECT_LT(largest_difference(cpu.hidden, there.hidden), 1e-12);
}

TEST(GpuUnsupervised, AnEpochOnTheGpuLearnsAsOnTheCpu) {
  at::manual_seed(4);
  const at::Tensor examples = at::rand({200, 48}, at::kDouble).gt(0.7).to(at::kDouble);
  unsupervised::Rbm cpu = unsupervised::make_rbm({.visible = 48, .hidden = 24, .seed = 2}, examples);
  unsupervised::Rbm there{cpu.weight.to(gpu()), cpu.visible.to(gpu()), cpu.hidden.to(gpu())};
  unsupervised::CdState state, state_there;
  const at::Tensor examples_there = examples.to(gpu());
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 6; ++epoch) {
    unsupervised::train_epoch(cpu, state, examples, {.batch = 20});
    last = unsupervised::train_epoch(there, state_there, examples_there, {.batch = 20});
    if (epoch == 0) first = last;
  }
  EXPECT_LT(last, first);
  const double error = unsupervised::reconstruction_error(cpu, examples);
  EXPECT_NEAR(unsupervised::reconstruction_error(there, examples_there), error, 0.05 * error);
}

TEST(GpuUnsupervised, ActivationsOfSparseCodingEqualTheCpus) {
  at::manual_seed(5);
  const at::Tensor examples = at::rand({40, 64}, at::kDouble);
  const unsupervised::SparseCoding coding = unsupervised::make_sparse_coding(32, 64, 0.2, 1, examples);
  const at::Tensor gram = at::matmul(coding.bases, coding.bases.t()), products = at::matmul(examples, coding.bases.t());
  at::Tensor a = at::zeros({40, 32}, at::kDouble), there = a.to(gpu());
  const at::Tensor gram_there = gram.to(gpu()), products_there = products.to(gpu());
  for (int i = 0; i < 30; ++i) {
    unsupervised::descend(a, gram, products, coding.beta);
    unsupervised::descend(there, gram_there, products_there, coding.beta);
  }
  EXPECT_LT(largest_difference(a, there), 1e-9);
}

}  // namespace
}  // namespace trireme::gpu
