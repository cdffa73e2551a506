#include "trireme/nn/distillation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "trireme/base/random.h"
#include "trireme/nn/head.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kTaughtRows = 3, kTaughtTokens = 7, kStudentWidth = 10, kTeacherWidth = 6, kTaughtClasses = 23;

at::Tensor distill_noise(const std::string& name, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  Random(1, name).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out;
}

/// A student's head and its teacher's, of another width and with another scale of its input.
struct TaughtHead {
  Params params;
  Param& weight = params.add("w", {kTaughtClasses, kStudentWidth}, {Init::Kind::kNormal, 1}, true);
  Param& bias = params.add("b", {kTaughtClasses}, {Init::Kind::kNormal, 1}, false);
  Param& of_teacher = params.add("t", {kTaughtClasses, kTeacherWidth}, {Init::Kind::kNormal, 1}, true);
  at::Tensor x = distill_noise("x", {kTaughtRows, kTaughtTokens, kStudentWidth}),
             h = distill_noise("h", {kTaughtRows, kTaughtTokens, kTeacherWidth});
  Head teacher{of_teacher, nullptr, {.input_scale = 0.5}};
  Context context;

  TaughtHead() {
    initialise(params, Precision::kFp64, 1);
    context.sequence = plain_sequence(kTaughtRows, kTaughtTokens);
    context.targets = at::empty({kTaughtRows, kTaughtTokens}, at::kLong);
    for (std::int64_t i = 0; i < kTaughtRows * kTaughtTokens; ++i) {
      context.targets.view({-1})[i] = i % 5 == 2 ? -100 : (i * 7) % kTaughtClasses;
    }
    context.loss_weights = distill_noise("weights", {kTaughtRows, kTaughtTokens}).abs();
    context.gradient_scale = 0.37;
  }
  void learn_from_teacher(double how_much, double temperature) {
    context.distillation = std::make_shared<Distillation>(Distillation{
        .head = teacher, .weight = how_much, .temperature = temperature, .head_input = [this] { return h; }});
  }
};

double distill_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Distillation, LossAndGradientsEqualAutogradWhateverTheChunk) {
  for (const std::int64_t chunk_rows : {1, 5, 1000}) {
    for (const auto& [share, temperature, smoothing, z_loss] :
         {std::tuple{0.25, 1.0, 0.0, 0.0}, {0.25, 1.0, 0.1, 0.01}, {0.7, 2.5, 0.0, 0.01}, {1.0, 4.0, 0.0, 0.0}}) {
      TaughtHead pair;
      pair.learn_from_teacher(share, temperature);
      Head head(pair.weight, &pair.bias,
                {.label_smoothing = smoothing, .z_loss = z_loss, .chunk_bytes = chunk_rows * kTaughtClasses * 8});
      Tape tape;
      const at::Tensor mean = head.forward(pair.x, pair.context, &tape);
      const at::Tensor dx = head.backward(at::Tensor(), pair.context, tape);

      const at::Tensor x = pair.x.detach().clone().requires_grad_(true);
      const at::Tensor w = pair.weight.value.detach().clone().requires_grad_(true);
      const at::Tensor b = pair.bias.value.detach().clone().requires_grad_(true);
      const at::Tensor logits = (at::matmul(x, w.t()) + b).view({-1, kTaughtClasses});
      const at::Tensor its = at::matmul(0.5 * pair.h, pair.of_teacher.value.t()).view({-1, kTaughtClasses});
      const at::Tensor targets = pair.context.targets.view({-1});
      const at::Tensor taking = targets.ne(-100).to(at::kDouble) * pair.context.loss_weights.view({-1});
      const at::Tensor log_p = at::log_softmax(logits, 1);
      const at::Tensor hard =
          -(1 - smoothing) * log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1) - smoothing * log_p.mean(1);
      const at::Tensor soft = -(at::softmax(its / temperature, 1) * at::log_softmax(logits / temperature, 1)).sum(1) *
                              (temperature * temperature);
      const at::Tensor z = at::logsumexp(logits, {1}).square() * z_loss;
      const at::Tensor total = (((1 - share) * hard + share * soft + z) * taking).sum();
      const auto gradients = torch::autograd::grad({total * 0.37}, {x, w, b});
      const LossCounts counts{.targets = taking.sum().item<double>()};

      EXPECT_NEAR(sum_of(pair.context.losses), (hard * taking).sum().item<double>(), 1e-10);
      EXPECT_NEAR(sum_of(pair.context.losses, "distillation_loss"), (soft * taking).sum().item<double>(), 1e-10);
      EXPECT_NEAR(total_of(pair.context.losses, counts), total.item<double>() / counts.targets, 1e-11);
      EXPECT_NEAR(mean.item<double>(), total.item<double>() / counts.targets, 1e-11);
      EXPECT_LE(distill_difference(dx, gradients[0]), 1e-12);
      EXPECT_LE(distill_difference(pair.weight.gradient, gradients[1]), 1e-12);
      EXPECT_LE(distill_difference(pair.bias.gradient, gradients[2]), 1e-12);
      EXPECT_TRUE(pair.of_teacher.gradient_empty);
    }
  }
}

/// A teacher that is as sure as can be of the targets says what they say.
TEST(Distillation, ASureTeacherIsTheTargets) {
  TaughtHead pair, plain;
  pair.context.targets.clamp_min_(0), plain.context.targets.clamp_min_(0);
  const at::Tensor logits = at::full({kTaughtRows * kTaughtTokens, kTaughtClasses}, -1e4, at::kDouble);
  logits.scatter_(1, pair.context.targets.view({-1, 1}), 1e4);
  const SoftLoss soft =
      soft_cross_entropy(distill_noise("logits", {kTaughtRows * kTaughtTokens, kTaughtClasses}), logits, 1, nullptr);
  const at::Tensor hard = -at::log_softmax(distill_noise("logits", {kTaughtRows * kTaughtTokens, kTaughtClasses}), 1)
                               .gather(1, pair.context.targets.view({-1, 1}))
                               .squeeze(1);
  EXPECT_LE(distill_difference(soft.losses, hard), 1e-13);
}

/// A student with its teacher's logits has nothing to learn: the gradient is zero, whatever the temperature.
TEST(Distillation, EqualLogitsHaveNoGradient) {
  const at::Tensor logits = distill_noise("logits", {5, kTaughtClasses});
  for (const double temperature : {0.5, 1.0, 3.0})
    EXPECT_EQ(soft_cross_entropy(logits, logits, temperature, nullptr).gradients.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace trireme::nn
