// Multi-token prediction: which token is whose, and the modules' losses and gradients against autograd.
#include "trireme/nn/multi_token.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>

#include "trireme/base/random.h"
#include "trireme/nn/mlp.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kNone = -100;

at::Tensor row(std::vector<std::int64_t> numbers) { return at::tensor(numbers, at::kLong).unsqueeze(0); }

/// [A0 A1 A2 B0 B1 B2 B3] as 10, 11, 12, 20, 21, 22, 23.
Context packed_row() {
  Context context;
  context.sequence = plain_sequence(1, 7);
  context.sequence.documents = at::tensor(std::vector<int>{0, 0, 0, 1, 1, 1, 1}, at::kInt).unsqueeze(0);
  context.targets = row({11, 12, kNone, 21, 22, 23, kNone});
  return context;
}
const std::vector<std::int64_t> kPacked{10, 11, 12, 20, 21, 22, 23};

TEST(ShiftTokens, StayInTheirDocument) {
  Context context = packed_row();
  shift_tokens(row(kPacked), context, 2);
  const auto depth = [](const at::Tensor& tensor, std::int64_t which) { return tensor.select(2, which); };
  // Where a document ends there is no token (0), and no target.
  EXPECT_TRUE(at::equal(depth(context.mtp.ids, 0), row({11, 12, 0, 21, 22, 23, 0})));
  EXPECT_TRUE(at::equal(depth(context.mtp.targets, 0), row({12, kNone, kNone, 22, 23, kNone, kNone})));
  EXPECT_TRUE(at::equal(depth(context.mtp.ids, 1), row({12, 0, 0, 22, 23, 0, 0})));
  EXPECT_TRUE(at::equal(depth(context.mtp.targets, 1), row({kNone, kNone, kNone, 23, kNone, kNone, kNone})));
  EXPECT_FALSE(context.mtp.weights.defined());
}

TEST(ShiftTokens, OfARowWithoutDocumentsEndWithIt) {
  Context context;
  context.sequence = plain_sequence(1, 4);
  context.targets = row({2, 3, 4, 5});
  context.loss_weights = at::tensor(std::vector<float>{1, 2, 3, 4}).unsqueeze(0);
  shift_tokens(row({1, 2, 3, 4}), context, 1);
  EXPECT_TRUE(at::equal(context.mtp.ids.select(2, 0), row({2, 3, 4, 0})));
  EXPECT_TRUE(at::equal(context.mtp.targets.select(2, 0), row({3, 4, 5, kNone})));
  EXPECT_TRUE(at::equal(context.mtp.weights.select(2, 0), at::tensor(std::vector<float>{2, 3, 4, 0}).unsqueeze(0)));
}

/// A prompt whose tokens take no part in the loss is still what further tokens are predicted from.
TEST(ShiftTokens, KeepTokensWithoutATarget) {
  Context context;
  context.sequence = plain_sequence(1, 4);
  context.targets = row({kNone, kNone, 4, 5});
  shift_tokens(row({1, 2, 3, 4}), context, 1);
  EXPECT_TRUE(at::equal(context.mtp.ids.select(2, 0), row({2, 3, 4, 0})));
  EXPECT_TRUE(at::equal(context.mtp.targets.select(2, 0), row({kNone, 4, 5, kNone})));
}

TEST(ShiftTokens, CrossRanksThatShareARow) {
  Context whole = packed_row();
  whole.sequence.documents = whole.sequence.documents.narrow(1, 0, 6).contiguous();
  whole.sequence.positions = whole.sequence.positions.narrow(1, 0, 6).contiguous();
  whole.targets = whole.targets.narrow(1, 0, 6).contiguous();
  const at::Tensor ids = row(kPacked).narrow(1, 0, 6).contiguous();
  shift_tokens(ids, whole, 1);
  std::vector<at::Tensor> shifted, targets;
  for (int rank = 0; rank < 2; ++rank) {
    Context part = whole;
    std::vector<at::Tensor> inputs{ids};
    take_tokens(inputs, part, {.outer = 2, .outer_rank = rank});
    EXPECT_EQ(part.mtp.ids.size(1), 3);
    shifted.push_back(part.mtp.ids);
    targets.push_back(part.mtp.targets);
  }
  EXPECT_TRUE(at::equal(at::cat(shifted, 1), whole.mtp.ids));
  EXPECT_TRUE(at::equal(at::cat(targets, 1), whole.mtp.targets));
}

constexpr std::int64_t kVocabulary = 19, kHidden = 6, kFfn = 10, kBatch = 2, kLength = 7;
constexpr double kWeight = 0.15;  // of each depth

at::Tensor normal_numbers(const std::string& name, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  Random(3, name).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out;
}

/// Two modules, whose blocks are MLPs, with one embedding and one head.
struct Modules {
  Params params;
  std::unique_ptr<MultiTokenPrediction> layer;

  Modules() {
    Param& table = params.add("table", {kVocabulary, kHidden}, {Init::Kind::kNormal, 1}, true);
    Param& head = params.add("head", {kVocabulary, kHidden}, {Init::Kind::kNormal, 1}, true);
    const auto norm = [&](const std::string& name) {
      return Norm({.kind = kernels::NormKind::kRms, .epsilon = 1e-5},
                  &params.add(name, {kHidden}, {Init::Kind::kNormal, 1}, false), nullptr);
    };
    const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
      return Linear(params.add(name, {out, in}, {Init::Kind::kNormal, 0.5}, true), nullptr);
    };
    std::vector<MtpModule> modules;
    for (const std::string depth : {"1", "2"}) {
      modules.push_back(
          {.embedding = std::make_unique<Embedding>(EmbeddingParts{.tokens = &table}, std::nullopt, Dropout("e", 0)),
           .embedding_norm = norm("embedding_norm" + depth),
           .hidden_norm = norm("hidden_norm" + depth),
           .projection = linear("projection" + depth, 2 * kHidden, kHidden),
           .block = std::make_unique<Mlp>(linear("in" + depth, kHidden, kFfn), linear("out" + depth, kFfn, kHidden),
                                          kernels::Activation::kGelu, false),
           .norm = norm("norm" + depth),
           .head = Head(head, nullptr, {.term = "mtp_" + depth, .weight = kWeight})});
    }
    layer = std::make_unique<MultiTokenPrediction>(std::move(modules));
    initialise(params, Precision::kFp64, 1);
  }
};

Context training_context() {
  Context context;
  context.training = true;
  context.sequence = plain_sequence(kBatch, kLength);
  context.samples = at::arange(kBatch, at::kLong);
  context.targets = at::arange(1, kBatch * kLength + 1, at::kLong).view({kBatch, kLength}) % kVocabulary;
  context.gradient_scale = 0.25;
  shift_tokens(at::arange(kBatch * kLength, at::kLong).view({kBatch, kLength}) % kVocabulary, context, 2);
  return context;
}

TEST(MultiTokenPrediction, EqualsAutogradInDouble) {
  Modules modules;
  Context context = training_context();
  const at::Tensor h = normal_numbers("h", {kBatch, kLength, kHidden}),
                   dh = normal_numbers("dh", {kBatch, kLength, kHidden});
  Tape tape;
  const at::Tensor passed = modules.layer->forward(h, context, &tape);
  EXPECT_TRUE(at::equal(passed, h));
  const at::Tensor dx = modules.layer->backward(dh.clone(), context, tape);
  EXPECT_TRUE(tape.empty());

  std::map<std::string, at::Tensor> w;
  std::vector<at::Tensor> leaves;
  for (Param& param : modules.params) {
    w[param.name] = param.value.detach().clone().requires_grad_(true);
    leaves.push_back(w[param.name]);
  }
  const at::Tensor entered = h.detach().clone().requires_grad_(true);
  leaves.push_back(entered);
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x * at::rsqrt((x * x).mean(-1, true) + 1e-5) * w[name];
  };
  at::Tensor x = entered, total = (entered * dh).sum();
  ASSERT_EQ(context.losses.size(), 2u);
  for (const std::int64_t depth : {0, 1}) {
    const std::string d = std::to_string(depth + 1);
    const at::Tensor embedded =
        w["table"].index_select(0, context.mtp.ids.select(2, depth).reshape({-1})).view({kBatch, kLength, kHidden});
    const at::Tensor both = at::cat({norm(embedded, "embedding_norm" + d), norm(x, "hidden_norm" + d)}, 2);
    x = at::matmul(both, w["projection" + d].t());
    x = at::matmul(at::gelu(at::matmul(x, w["in" + d].t())), w["out" + d].t());
    x = norm(x, "norm" + d);
    const at::Tensor targets = context.mtp.targets.select(2, depth).reshape({-1});
    const at::Tensor logits = at::matmul(x, w["head"].t()).view({-1, kVocabulary});
    const at::Tensor hit = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor taking = targets.ne(kNone).to(at::kDouble);
    const at::Tensor sum = ((at::logsumexp(logits, {-1}) - hit) * taking).sum();
    total = total + sum * context.gradient_scale * kWeight;
    // Told by itself, over its own targets: the mean is by those of the main loss.
    const LossTerm& term = context.losses[static_cast<std::size_t>(depth)];
    EXPECT_EQ(term.name, "mtp_" + d);
    EXPECT_EQ(term.mean, LossMean::kTargets);
    EXPECT_DOUBLE_EQ(term.weight, kWeight);
    EXPECT_NEAR(term.sum, sum.item<double>(), 1e-12 * term.sum);
    EXPECT_DOUBLE_EQ(term.count, kBatch * (kLength - 1 - static_cast<double>(depth)));
  }
  const auto gradients = torch::autograd::grad({total}, leaves);
  const auto relative = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).norm() / b.norm()).item<double>();
  };
  std::size_t i = 0;
  for (Param& param : modules.params) EXPECT_LE(relative(param.gradient, gradients[i++]), 1e-12) << param.name;
  EXPECT_LE(relative(dx, gradients[i]), 1e-12);
}

TEST(MultiTokenPrediction, DoesNothingWithoutTokensForIt) {
  Modules modules;
  Context context;
  context.sequence = plain_sequence(kBatch, kLength);
  const at::Tensor h = normal_numbers("h", {kBatch, kLength, kHidden});
  EXPECT_TRUE(at::equal(modules.layer->forward(h, context, nullptr), h));
  EXPECT_TRUE(context.losses.empty());
}

TEST(MultiTokenPrediction, WeighsTheMeanOverTheMainLossesTargets) {
  // Two micro-batches' terms: 8 targets of the main loss, fewer of depth 1.
  std::vector<LossTerm> terms;
  add_term(terms, {.name = std::string(kMainLoss), .sum = 16, .count = 8});
  add_term(terms, {.name = "mtp_1", .sum = 12, .count = 6, .weight = 0.3});
  EXPECT_DOUBLE_EQ(total_of(terms, {.targets = 8}), 2 + 0.3 * 12 / 8);
}

}  // namespace
}  // namespace trireme::nn
