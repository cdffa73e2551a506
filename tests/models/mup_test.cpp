// muP: at one learning rate a model's outputs move alike at every width.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/models/model.h"
#include "trireme/optim/update.h"

namespace trireme::models {
namespace {

spec::ModelShape mup_shape(std::int64_t width, std::int64_t base) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
  shape.vocab_size = 24;
  shape.max_seq_len = 16;
  shape.hidden_size = width;
  shape.num_layers = 2;
  shape.head_dim = 8;
  shape.num_heads = shape.num_kv_heads = width / 8;
  shape.ffn_size = 2 * width;
  shape.dropout = shape.attention_dropout = 0;
  shape.mup_base_hidden_size = base;
  return shape;
}

/// Logits before and after three steps of Adam on one batch.
struct Moved {
  at::Tensor before, after;
  double change() const { return (after - before).norm().item<double>() / std::sqrt(before.numel()); }
};

Moved trained_logits(const spec::ModelShape& shape) {
  const auto model = build(shape);
  nn::initialise(model->params, nn::Precision::kFp64, 3);
  const auto optimizer = optim::make_optimizer({.kind = spec::OptimizerKind::kAdamw}, model->params);
  const at::Tensor ids = at::arange(4 * 12, at::kLong).mul_(7).remainder_(24).view({4, 12});
  const auto context = [] {
    nn::Context made;
    made.sequence = nn::plain_sequence(4, 12);
    return made;
  };
  Moved moved;
  nn::Context first = context();
  moved.before = model->forward({ids}, first, nullptr);
  for (int step = 0; step < 3; ++step) {
    nn::Context training = context();
    training.training = true;
    training.targets = ids.add(5).remainder_(24);
    training.gradient_scale = 1.0 / 48;
    nn::Tape tape;
    model->forward({ids}, training, &tape);
    model->backward(training, tape);
    optim::update(*optimizer, {.learning_rate = 0.01});
  }
  nn::Context last = context();
  moved.after = model->forward({ids}, last, nullptr);
  return moved;
}

/// The coordinate check of Yang et al. 2022.
TEST(Mup, MovesLogitsAlikeAtEveryWidth) {
  const double plain = trained_logits(mup_shape(128, 0)).change() / trained_logits(mup_shape(16, 0)).change();
  const double mup = trained_logits(mup_shape(128, 16)).change() / trained_logits(mup_shape(16, 16)).change();
  EXPECT_GT(plain, 2.5) << "in the standard parametrisation the wider model moves farther";
  EXPECT_LT(mup, 1.7);
  EXPECT_GT(mup, 0.6);
}

TEST(Mup, IsTheStandardParametrisationAtTheBaseWidth) {
  EXPECT_TRUE(trained_logits(mup_shape(16, 16)).after.equal(trained_logits(mup_shape(16, 0)).after));
}

TEST(Mup, ScalesWhatTheTableOfThePaperSays) {
  spec::ModelShape shape = mup_shape(64, 16);
  shape.mup_base_head_dim = 2;
  const spec::Mup mup = spec::mup_of(shape);
  EXPECT_EQ(mup.width, 4);
  EXPECT_EQ(mup.matrix_init, 0.5);
  EXPECT_EQ(mup.matrix_rate, 0.25);
  EXPECT_EQ(mup.output, 0.25);
  EXPECT_EQ(mup.attention_score, 0.5);
  const auto model = build(shape);
  EXPECT_EQ(model->params.at("layers.0.attention.qkv.weight").rate, 0.25);
  EXPECT_EQ(model->params.at("layers.0.attention.qkv.weight").init.scale, 0.01);
  EXPECT_EQ(model->params.at("embedding.tokens.weight").rate, 1);
  EXPECT_EQ(model->params.at("embedding.tokens.weight").init.scale, 0.02);
  EXPECT_EQ(model->params.at("layers.0.mlp.in.bias").rate, 1);
}

}  // namespace
}  // namespace trireme::models
