// Progressive layer dropping: the schedule, the gates, and the mathematics of one layer.
#include "trireme/nn/layer_drop.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trireme::nn {
namespace {

/// f(x) = x + w x^2, elementwise.
class Curved final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  explicit Curved(Param& w) : w_(w) {}
  at::Tensor forward(at::Tensor x, Context&, Tape* tape) override {
    if (tape) tape->push({x});
    return x + w_.value * x * x;
  }
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override {
    const at::Tensor x = tape.pop<1>()[0];
    add_gradient(w_, (dy * x * x).sum().view({1}));
    context.added(w_);
    return dy * (1 + 2 * w_.value * x);
  }

 private:
  Param& w_;
};

TEST(LayerDrop, FollowsThePapersSchedule) {
  const LayerDrop drop{.theta = 0.5, .gamma = 0.01, .layers = 12};
  EXPECT_DOUBLE_EQ(kept_share(drop, 0), 1);
  EXPECT_NEAR(kept_share(drop, 100), 0.5 * std::exp(-1.0) + 0.5, 1e-15);
  EXPECT_NEAR(kept_share(drop, 1000000), 0.5, 1e-12);
  EXPECT_DOUBLE_EQ(keep_probability(drop, 0, 12), 1);
  EXPECT_NEAR(keep_probability(drop, 1000000, 12), 0.5, 1e-12);
  EXPECT_NEAR(keep_probability(drop, 1000000, 6), 0.75, 1e-12);
  int kept = 0;
  constexpr int kSteps = 4000;
  for (int step = 0; step < kSteps; ++step)
    kept += is_kept({.theta = 0.5, .gamma = 1e9, .layers = 2}, 7, step + 1, 1, "d");
  EXPECT_NEAR(kept / static_cast<double>(kSteps), 0.75, 4 * std::sqrt(0.75 * 0.25 / kSteps));
}

TEST(LayerDrop, KeepsTheExpectationAndItsGradient) {
  Params params;
  Param& w = params.add("w", {1}, {Init::Kind::kOnes}, true);
  initialise(params, Precision::kFp64, 1);
  const LayerDrop drop{.theta = 0.25, .gamma = 1e9, .layers = 1};
  const auto layer = with_layer_drop(std::make_unique<Curved>(w), drop, 1, "d", {&w});
  std::vector<double> numbers = {0.5, -1, 2};
  const at::Tensor x = at::from_blob(numbers.data(), {3}, at::kDouble), f = x + x * x;
  int kept = 0, dropped = 0;
  for (int step = 1; step < 40 && (kept == 0 || dropped == 0); ++step) {
    Context context;
    context.training = true;
    context.step = step;
    int told = 0;
    context.on_gradient = [&](Param&) { ++told; };
    zero_grad(params);
    Tape tape;
    const at::Tensor y = layer->forward(Tensors{x.clone()}, context, &tape)[0];
    const at::Tensor dx = layer->backward(Tensors{at::ones({3}, at::kDouble)}, context, tape)[0];
    EXPECT_EQ(told, 1) << "whoever sums gradients waits for it either way";
    EXPECT_FALSE(w.gradient_empty);
    if (is_kept(drop, 0, step, 1, "d")) {
      ++kept;  // y = x + (f - x) / p
      EXPECT_LE((y - (x + (f - x) / 0.25)).abs().max().item<double>(), 1e-13);
      EXPECT_LE((dx - (1 + 2 * x / 0.25)).abs().max().item<double>(), 1e-13);
      EXPECT_NEAR(w.gradient.item<double>(), (x * x).sum().item<double>() / 0.25, 1e-12);
    } else {
      ++dropped;
      EXPECT_TRUE(at::equal(y, x));
      EXPECT_TRUE(at::equal(dx, at::ones({3}, at::kDouble)));
      EXPECT_EQ(w.gradient.item<double>(), 0);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(dropped, 0);
  Context evaluation;
  EXPECT_LE((layer->forward(Tensors{x.clone()}, evaluation, nullptr)[0] - f).abs().max().item<double>(), 1e-15);
}

}  // namespace
}  // namespace trireme::nn
