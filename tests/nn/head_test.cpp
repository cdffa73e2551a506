#include "trireme/nn/head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kBatch = 3, kSequence = 7, kWidth = 10, kVocabulary = 23;

at::Tensor normal(const std::string& name, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  Random(1, name).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out;
}

struct Fixture {
  Params params;
  Param& weight = params.add("w", {kVocabulary, kWidth}, {Init::Kind::kNormal, 1}, true);
  Param& bias = params.add("b", {kVocabulary}, {Init::Kind::kNormal, 1}, false);
  at::Tensor x = normal("x", {kBatch, kSequence, kWidth});
  Context context;

  explicit Fixture(Precision precision = Precision::kFp64) {
    initialise(params, precision, 1);
    x = x.to(compute_type(precision));
    context.sequence = plain_sequence(kBatch, kSequence);
    context.targets = at::empty({kBatch, kSequence}, at::kLong);
    for (std::int64_t i = 0; i < kBatch * kSequence; ++i) {
      context.targets.view({-1})[i] = i % 5 == 2 ? -100 : (i * 7) % kVocabulary;
    }
    context.loss_weights = normal("weights", {kBatch, kSequence}).abs();
  }
};

struct Oracle {
  double loss, z_loss, count;
  at::Tensor dx, dweight, dbias;
};

/// The same with whole matrices: smoothing, z-loss, weights, ignored rows.
Oracle oracle(Fixture& s, const HeadOptions& options) {
  const at::Tensor x = s.x.detach().clone().requires_grad_(true);
  const at::Tensor w = s.weight.value.detach().clone().requires_grad_(true);
  const at::Tensor b = s.bias.value.detach().clone().requires_grad_(true);
  const at::Tensor logits = (at::matmul(x, w.t()) + b).view({-1, kVocabulary});
  const at::Tensor targets = s.context.targets.view({-1});
  const at::Tensor taking = targets.ne(-100).to(at::kDouble) * s.context.loss_weights.view({-1});
  const at::Tensor lse = at::logsumexp(logits, {-1});
  const at::Tensor hit = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const double a = options.label_smoothing;
  const at::Tensor losses = lse - (1 - a) * hit - a * logits.mean(-1);
  const at::Tensor z = options.z_loss * lse * lse;
  const at::Tensor total = ((losses + z) * taking).sum() * s.context.gradient_scale;
  const auto gradients = torch::autograd::grad({total}, {x, w, b});
  return {(losses * taking).sum().item<double>(),
          (z * taking).sum().item<double>(),
          taking.sum().item<double>(),
          gradients[0],
          gradients[1],
          gradients[2]};
}

double head_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

TEST(Head, LossAndGradientsEqualTheWholeMatrixWhateverTheChunk) {
  for (const std::int64_t chunk_rows : {1, 2, 5, 21, 1000}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const double z_loss : {0.0, 0.01}) {
        Fixture s;
        s.context.gradient_scale = 0.37;
        HeadOptions options{smoothing, z_loss, chunk_rows * kVocabulary * 8};
        Head head(s.weight, &s.bias, options);
        const Oracle expected = oracle(s, options);
        Tape tape;
        const at::Tensor mean = head.forward(s.x, s.context, &tape);
        const at::Tensor dx = head.backward(at::Tensor(), s.context, tape);
        ASSERT_EQ(s.context.losses.size(), z_loss > 0 ? 2u : 1u);
        EXPECT_NEAR(s.context.losses[0].sum, expected.loss, 1e-10);
        EXPECT_NEAR(s.context.losses[0].count, expected.count, 1e-12);
        EXPECT_EQ(s.context.losses[0].weight, 1);
        if (z_loss > 0) {
          const LossTerm& term = s.context.losses[1];
          EXPECT_EQ(term.name, "z_loss");
          EXPECT_EQ(term.weight, z_loss);
          EXPECT_NEAR(term.weight * term.sum, expected.z_loss, 1e-10);
          const LossCounts counts{.targets = expected.count};
          EXPECT_NEAR(total_of(s.context.losses, counts), (expected.loss + expected.z_loss) / expected.count, 1e-11);
        }
        EXPECT_NEAR(mean.item<double>(), (expected.loss + expected.z_loss) / expected.count, 1e-11);
        EXPECT_LE(head_difference(dx, expected.dx), 1e-12);
        EXPECT_LE(head_difference(s.weight.gradient, expected.dweight), 1e-12);
        EXPECT_LE(head_difference(s.bias.gradient, expected.dbias), 1e-12);
      }
    }
  }
}

TEST(Head, IsNearInBfloat) {
  Fixture exact, rounded(Precision::kBf16);
  exact.weight.value.copy_(rounded.weight.value);
  exact.bias.value.copy_(rounded.bias.value);
  exact.x.copy_(rounded.x);
  const Oracle expected = oracle(exact, {});
  Head head(rounded.weight, &rounded.bias, {});
  Tape tape;
  head.forward(rounded.x, rounded.context, &tape);
  const at::Tensor dx = head.backward(at::Tensor(), rounded.context, tape);
  EXPECT_NEAR(rounded.context.losses[0].sum, expected.loss, 0.02 * expected.loss);
  EXPECT_LE(head_difference(dx, expected.dx), 0.02);
  EXPECT_LE(head_difference(rounded.weight.gradient, expected.dweight), 0.02);
}

TEST(Head, GivesLogitsWithoutTargets) {
  Fixture s;
  s.context.targets = at::Tensor();
  Head head(s.weight, &s.bias, {});
  const at::Tensor logits = head.forward(s.x, s.context, nullptr);
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{kBatch, kSequence, kVocabulary}));
  EXPECT_LE(head_difference(logits, at::matmul(s.x, s.weight.value.t()) + s.bias.value), 1e-13);
}

TEST(Head, HasNoLossWhereNothingTakesPart) {
  Fixture s;
  s.context.targets.fill_(-100);
  Head head(s.weight, &s.bias, {});
  Tape tape;
  EXPECT_EQ(head.forward(s.x, s.context, &tape).item<double>(), 0);
  EXPECT_EQ(head.backward(at::Tensor(), s.context, tape).abs().max().item<double>(), 0);
  EXPECT_EQ(s.weight.gradient.abs().max().item<double>(), 0);
  EXPECT_EQ(s.context.losses[0].count, 0);
}

TEST(Head, EvaluationLeavesNoGradient) {
  Fixture s;
  Head head(s.weight, &s.bias, {});
  head.forward(s.x, s.context, nullptr);
  EXPECT_TRUE(s.weight.gradient_empty);
  EXPECT_GT(s.context.losses[0].sum, 0);
}

}  // namespace
}  // namespace trireme::nn
