// Belief networks and sparse coding on handwritten digits.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <fstream>

#include "trireme/unsupervised/rbm.h"
#include "trireme/unsupervised/sparse_coding.h"

namespace trireme::unsupervised {
namespace {

/// Thousands of operations on small matrices: on a busy machine threads would only wait for each other.
class OneThread : public ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const one_thread = ::testing::AddGlobalTestEnvironment(new OneThread);

at::Tensor digits(std::int64_t rows, at::ScalarType type) {
  std::ifstream file(TRIREME_FIXTURES "/digits.txt");
  std::vector<double> values;
  std::string line;
  while (std::getline(file, line) && static_cast<std::int64_t>(values.size()) < rows * 64) {
    if (line.empty() || line[0] == '#') continue;
    for (int i = 0; i < 64; ++i) values.push_back((line[i] <= '9' ? line[i] - '0' : line[i] - 'a' + 10) / 16.0);
  }
  return at::tensor(values, at::kDouble).view({-1, 64}).to(type);
}

TEST(Rbm, ContrastiveDivergenceIsThePapersUpdate) {
  at::manual_seed(3);
  const at::Tensor v0 = at::rand({7, 5}, at::kDouble), uniform = at::rand({7, 4}, at::kDouble);
  Rbm rbm = make_rbm({.visible = 5, .hidden = 4, .seed = 1}, v0);
  rbm.weight = at::randn({5, 4}, at::kDouble);
  const at::Tensor w = rbm.weight.clone();
  CdState state;
  cd_step(rbm, state, v0, uniform, {.rate = 0.3, .momentum = 0, .batch = 7});
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto value = [](const at::Tensor& t, int i, int j) { return t[i][j].item<double>(); };
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 4; ++j) {
      double change = 0;
      for (int n = 0; n < 7; ++n) {
        double h0[4], drawn[4], v1[5], h1j = 0, input = 0;
        for (int h = 0; h < 4; ++h) {
          double sum = 0;
          for (int v = 0; v < 5; ++v) sum += value(v0, n, v) * value(w, v, h);
          h0[h] = sigmoid(sum), drawn[h] = value(uniform, n, h) < h0[h] ? 1 : 0;
        }
        for (int v = 0; v < 5; ++v) {
          double sum = 0;
          for (int h = 0; h < 4; ++h) sum += drawn[h] * value(w, v, h);
          v1[v] = sigmoid(sum);
          input += v1[v] * value(w, v, j);
        }
        h1j = sigmoid(input);
        change += value(v0, n, i) * h0[j] - v1[i] * h1j;
      }
      EXPECT_NEAR(value(rbm.weight, i, j), value(w, i, j) + 0.3 * change / 7, 1e-12);
    }
  }
}

TEST(Rbm, ErrorFallsOnDigits) {
  at::manual_seed(1);
  const at::Tensor examples = digits(1797, at::kFloat);
  ASSERT_EQ(examples.size(0), 1797);
  Rbm rbm = make_rbm({.visible = 64, .hidden = 64, .seed = 1}, examples);
  CdState state;
  double before = reconstruction_error(rbm, examples);
  for (int epoch = 0; epoch < 6; ++epoch) {
    train_epoch(rbm, state, examples, {.rate = 0.1, .batch = 20});
    const double after = reconstruction_error(rbm, examples);
    EXPECT_LT(after, before) << epoch;
    before = after;
  }
  EXPECT_LT(before, 0.05);
}

TEST(Rbm, PatchesKeepTheirGroupsLocal) {
  at::manual_seed(1);
  const at::Tensor examples = digits(200, at::kFloat);
  const Patches patches{.side = 8, .size = 4, .stride = 2, .per_patch = 3};
  ASSERT_EQ(patches.count(), 9);
  Rbm rbm = make_rbm({.visible = 64, .hidden = 27, .seed = 1}, examples);
  rbm.mask = overlapping_patches(patches, examples);
  EXPECT_EQ(rbm.mask.sum().item<double>(), 9 * 3 * 16);
  EXPECT_EQ(rbm.mask[0][0].item<double>(), 1);  // the first pixel is in the first patch alone
  EXPECT_EQ(rbm.mask[0][3].item<double>(), 0);
  EXPECT_EQ(rbm.mask[2][3].item<double>(), 1);  // patches overlap
  rbm.weight.mul_(rbm.mask);
  CdState state;
  const double before = reconstruction_error(rbm, examples);
  for (int epoch = 0; epoch < 5; ++epoch) train_epoch(rbm, state, examples, {.rate = 0.1, .batch = 20});
  EXPECT_LT(reconstruction_error(rbm, examples), before);
  EXPECT_EQ((rbm.weight * (1 - rbm.mask)).abs().sum().item<double>(), 0);
}

TEST(SparseCoding, NoIterationRaisesTheObjectiveOfAnyExample) {
  const at::Tensor examples = digits(30, at::kDouble);
  const SparseCoding coding = make_sparse_coding(40, 64, 0.2, 5, examples);
  const at::Tensor gram = at::matmul(coding.bases, coding.bases.t()), products = at::matmul(examples, coding.bases.t());
  at::Tensor a = at::zeros({30, 40}, at::kDouble);
  const auto each = [&] {
    const at::Tensor error = examples - at::matmul(a, coding.bases);
    return (error * error).sum(1) + at::abs(a).sum(1) * coding.beta;
  };
  at::Tensor before = each();
  for (int i = 0; i < 60; ++i) {
    descend(a, gram, products, coding.beta);
    const at::Tensor after = each();
    EXPECT_LE((after - before).max().item<double>(), 1e-12) << i;
    before = after;
  }
}

TEST(SparseCoding, TheLineSearchIsExact) {
  // Beside a fine search along the same direction.
  const at::Tensor examples = digits(8, at::kDouble);
  const SparseCoding coding = make_sparse_coding(20, 64, 0.3, 7, examples);
  const at::Tensor gram = at::matmul(coding.bases, coding.bases.t()), products = at::matmul(examples, coding.bases.t());
  at::Tensor a = at::randn({8, 20}, at::kDouble) * 0.3;
  const at::Tensor from = a.clone();
  descend(a, gram, products, coding.beta);
  const auto value = [&](const at::Tensor& at_point) {
    const at::Tensor error = examples - at::matmul(at_point, coding.bases);
    return (error * error).sum(1) + at::abs(at_point).sum(1) * coding.beta;
  };
  const at::Tensor best = value(a);
  for (int i = -50; i <= 50; ++i) {
    const at::Tensor other = from + (a - from) * (1 + i / 100.0);
    EXPECT_GE((value(other) - best).min().item<double>(), -1e-12) << i;
  }
}

TEST(SparseCoding, ActivationsAreOptimalTo1e4) {
  const at::Tensor examples = digits(12, at::kDouble);
  const SparseCoding coding = make_sparse_coding(96, 64, 0.2, 5, examples);
  std::int64_t iterations = 0;
  const at::Tensor a = find_activations(coding, examples, {}, {.most = 5000, .tolerance = 1e-4}, &iterations);
  EXPECT_LE(kkt_residual(coding, examples, a), 1e-4) << iterations;
  EXPECT_LT(a.ne(0).to(at::kDouble).mean().item<double>(), 0.6);
}

TEST(SparseCoding, BasesLowerTheObjectiveAndStayInTheBall) {
  const at::Tensor examples = digits(60, at::kDouble);
  SparseCoding coding = make_sparse_coding(32, 64, 0.2, 5, examples);
  at::Tensor a;
  double before = 1e300;
  for (int round = 0; round < 3; ++round) {
    a = find_activations(coding, examples, a, {.most = 40, .look = 40});
    const double behind = objective(coding, examples, a);
    EXPECT_LE(behind, before + 1e-9);
    improve_bases(coding, examples, a, 10);
    before = objective(coding, examples, a);
    EXPECT_LE(before, behind + 1e-9);
    EXPECT_LE((coding.bases * coding.bases).sum(1).max().item<double>(), 1 + 1e-12);
  }
}

}  // namespace
}  // namespace trireme::unsupervised
