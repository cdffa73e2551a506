// Whole models in training: recomputation, dropout, micro-batches, precision, and a loss that falls.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"

namespace trireme::models {
namespace {

using nn::Recompute;
using nn::RecomputeKind;
using spec::Family;

constexpr Family kFamilies[] = {Family::kGpt2,  Family::kLlama,       Family::kMistral, Family::kQwen2,
                                Family::kQwen3, Family::kTransformer, Family::kBert};

nn::Tensors inputs_of(const spec::ModelShape& shape, std::int64_t batch = 2) {
  const at::Tensor ids = some_ids(batch, 14, shape.vocab_size, 1);
  if (shape.num_encoder_layers == 0) return {ids};
  return {some_ids(batch, 10, shape.vocab_size, 2), ids};
}

nn::Context training_context(const spec::ModelShape& shape, const nn::Tensors& ids) {
  nn::Context context = context_for(ids.back());
  context.targets = shape.causal ? next_tokens(ids.back()) : ids.back();
  if (ids.size() > 1) context.source = nn::plain_sequence(ids[0].size(0), ids[0].size(1));
  context.training = true;
  context.seed = 5;
  context.step = 3;
  return context;
}

struct Outcome {
  double loss = 0;
  std::int64_t bytes = 0;
  std::map<std::string, at::Tensor> gradients;
};

Outcome run(const spec::ModelShape& shape, const Recompute& recompute, bool deferred, nn::Precision precision,
            double gradient_scale = 1.0 / 26) {
  const auto model = build(shape, {.recompute = recompute});
  fill(*model, precision);
  const nn::Tensors ids = inputs_of(shape);
  nn::Context context = training_context(shape, ids);
  context.gradient_scale = gradient_scale;
  nn::Tape tape;
  Outcome out;
  out.loss = model->forward(ids, context, &tape).item<double>();
  out.bytes = tape.bytes();
  tape.set_deferring(deferred);
  model->backward(context, tape);
  tape.run_weight_gradients();
  EXPECT_TRUE(tape.empty());
  EXPECT_EQ(context.losses.size(), 1u) << "a recomputed head would count twice";
  out.gradients = gradients_of(*model);
  return out;
}

TEST(Recomputation, OfAnyKindGivesTheSameBitsWithDropoutToo) {
  for (const Family family : kFamilies) {
    spec::ModelShape shape = tiny_shape(family);
    shape.num_layers = 4;
    shape.dropout = 0.2;
    shape.attention_dropout = 0.3;
    const Outcome plain = run(shape, {}, false, nn::Precision::kBf16);
    spec::ModelShape sober = shape;
    sober.dropout = sober.attention_dropout = 0;
    EXPECT_NE(run(sober, {}, false, nn::Precision::kBf16).loss, plain.loss) << "nothing fell";
    for (const bool deferred : {false, true}) {
      for (const Recompute& recompute : {Recompute{RecomputeKind::kNone},
                                         {RecomputeKind::kSelective},
                                         {RecomputeKind::kFull},
                                         {RecomputeKind::kEvery, 2},
                                         {RecomputeKind::kSqrt}}) {
        const Outcome again = run(shape, recompute, deferred, nn::Precision::kBf16);
        EXPECT_EQ(again.loss, plain.loss) << int(family) << " " << int(recompute.kind);
        for (const auto& [name, gradient] : plain.gradients) {
          EXPECT_TRUE(at::equal(gradient, again.gradients.at(name)))
              << int(family) << " kind " << int(recompute.kind) << " " << name;
        }
      }
    }
  }
}

TEST(Recomputation, KeepsLess) {
  spec::ModelShape shape = tiny_shape(Family::kLlama);
  shape.num_layers = 9;
  const auto bytes = [&](const Recompute& recompute) {
    return run(shape, recompute, false, nn::Precision::kFp32).bytes;
  };
  const std::int64_t none = bytes({}), selective = bytes({RecomputeKind::kSelective});
  const std::int64_t every = bytes({RecomputeKind::kEvery, 2}), full = bytes({RecomputeKind::kFull});
  const std::int64_t root = bytes({RecomputeKind::kSqrt});
  EXPECT_LT(selective, none);
  EXPECT_LT(every, selective);
  EXPECT_LT(full, every);
  EXPECT_LT(root, full);
}

TEST(Dropout, FallsBySampleAndStepWhateverTheBatch) {
  for (const Family family : {Family::kGpt2, Family::kBert, Family::kTransformer}) {
    spec::ModelShape shape = tiny_shape(family);
    shape.dropout = 0.2;
    shape.attention_dropout = 0.1;
    const auto model = build(shape);
    fill(*model, nn::Precision::kFp64);
    const nn::Tensors ids = inputs_of(shape, 3);
    nn::Context whole = training_context(shape, ids);
    whole.samples = whole.samples + 40;
    const double loss = train_once(*model, ids, whole);
    const auto gradients = gradients_of(*model);

    nn::Context later = training_context(shape, ids);
    later.samples = whole.samples;
    later.step = 4;
    EXPECT_NE(train_once(*model, ids, later), loss) << "another step drops others";

    nn::zero_grad(model->params);
    double sum = 0;
    for (std::int64_t row = 0; row < 3; ++row) {
      nn::Tensors one;
      for (const at::Tensor& tensor : ids) one.push_back(tensor.narrow(0, row, 1).contiguous());
      nn::Context context = training_context(shape, one);
      context.samples = whole.samples.narrow(0, row, 1).contiguous();
      context.gradient_scale = whole.gradient_scale;
      nn::Tape tape;
      model->forward(one, context, &tape);
      model->backward(context, tape);
      sum += context.losses.at(0).sum;
    }
    EXPECT_NEAR(sum * whole.gradient_scale, loss, 1e-12);
    for (const nn::Param& param : model->params) {
      EXPECT_LE(largest(gradients.at(param.name), param.gradient), 1e-12) << int(family) << " " << param.name;
    }
  }
}

TEST(Dropout, IsSilentOutsideTraining) {
  spec::ModelShape shape = tiny_shape(Family::kGpt2);
  const auto sober = build(shape);
  shape.dropout = 0.5;
  shape.attention_dropout = 0.5;
  const auto model = build(shape);
  fill(*sober, nn::Precision::kFp32);
  fill(*model, nn::Precision::kFp32);
  const at::Tensor ids = some_ids(2, 9, 61);
  EXPECT_TRUE(at::equal(logits_of(*model, ids), logits_of(*sober, ids)));
}

TEST(Loss, IsTheSameHoweverTheLogitsAreCut) {
  spec::ModelShape shape = tiny_shape(Family::kGpt2);
  shape.label_smoothing = 0.1;
  shape.z_loss = 1e-3;
  const nn::Tensors ids = inputs_of(shape);
  const auto whole = build(shape), cut = build(shape, {.recompute = {}, .logits_chunk_bytes = 5 * 61 * 8});
  fill(*whole, nn::Precision::kFp64);
  fill(*cut, nn::Precision::kFp64);
  nn::Context first = training_context(shape, ids), second = training_context(shape, ids);
  EXPECT_NEAR(train_once(*whole, ids, first), train_once(*cut, ids, second), 1e-14);
  for (const nn::Param& param : whole->params) {
    EXPECT_LE(largest(param.gradient, cut->params.at(param.name).gradient), 1e-14) << param.name;
  }
}

TEST(Precision, SixteenBitsAreNearDouble) {
  for (const Family family : kFamilies) {
    const spec::ModelShape shape = tiny_shape(family);
    const Outcome exact = run(shape, {}, false, nn::Precision::kFp64);
    struct Case {
      nn::Precision precision;
      double tolerance;
    };
    for (const auto& [precision, tolerance] :
         {Case{nn::Precision::kFp32, 1e-5}, Case{nn::Precision::kBf16, 0.06}, Case{nn::Precision::kFp16, 0.01}}) {
      const Outcome near = run(shape, {}, false, precision);
      double error = 0, norm = 0;
      for (const auto& [name, gradient] : exact.gradients) {
        error += (near.gradients.at(name).to(at::kDouble) - gradient).pow(2).sum().item<double>();
        norm += gradient.pow(2).sum().item<double>();
      }
      EXPECT_LE(std::sqrt(error / norm), tolerance) << int(family) << " " << at::toString(nn::compute_type(precision));
      EXPECT_NEAR(near.loss, exact.loss, tolerance) << int(family);
    }
  }
}

/// A micro-batch of a very large batch: as parts of the mean over all its tokens, gradients of logits lie below half of
/// fp16's smallest number, 2^-24, and vanish (Micikevicius et al. 2017, section 3.2). A scale that is a power of two
/// brings them back.
constexpr double kBatchTokens = 67108864, kLossScale = 1048576;  // 2^26, 2^20

TEST(LossScaling, KeepsGradientsThatFp16LosesWithoutIt) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const spec::ModelShape shape = tiny_shape(family);
    const auto gradients = [&](nn::Precision precision, double scale) {
      return run(shape, {}, false, precision, scale / kBatchTokens).gradients;
    };
    const auto exact = gradients(nn::Precision::kFp64, 1);
    /// Of the layers' gradients: how many numbers are zero that are none in double, and the relative error of all.
    const auto compare = [&](const std::map<std::string, at::Tensor>& found, double scale) {
      double lost = 0, all = 0, error = 0, norm = 0;
      for (const auto& [name, gradient] : exact) {
        if (!name.starts_with("layers.")) continue;
        const at::Tensor unscaled = found.at(name).to(at::kDouble) / scale;
        lost += ((unscaled == 0) & (gradient != 0)).sum().item<double>();
        all += static_cast<double>(gradient.numel());
        error += (unscaled - gradient).pow(2).sum().item<double>();
        norm += gradient.pow(2).sum().item<double>();
      }
      return std::pair{lost / all, std::sqrt(error / norm)};
    };
    const auto [lost_without, error_without] = compare(gradients(nn::Precision::kFp16, 1), 1);
    const auto [lost_with, error_with] = compare(gradients(nn::Precision::kFp16, kLossScale), kLossScale);
    const auto [lost_bf16, error_bf16] = compare(gradients(nn::Precision::kBf16, 1), 1);
    EXPECT_GT(lost_without, 0.99) << int(family);
    EXPECT_GT(error_without, 0.99) << int(family);
    EXPECT_LT(lost_with, 0.01) << int(family);
    EXPECT_LT(error_with, 0.01) << int(family);
    EXPECT_LT(lost_bf16, 0.01) << "bf16 has the range of fp32: no scale";
    EXPECT_LT(error_bf16, 0.06) << int(family);
  }
}

TEST(LossScaling, TrainsFp16AsFp32WhereUnscaledItDoesNot) {
  const auto loss_after = [](nn::Precision precision, double scale) {
    spec::ModelShape shape = tiny_shape(Family::kLlama);
    shape.dropout = 0;
    const auto model = build(shape);
    nn::initialise(model->params, precision, 1);
    const nn::Tensors ids = inputs_of(shape);
    nn::Context context = training_context(shape, ids);
    context.gradient_scale = scale / kBatchTokens;
    double loss = 0;
    for (int step = 0; step <= 60; ++step) {
      nn::zero_grad(model->params);
      context.losses.clear();
      nn::Tape tape;
      model->forward(ids, context, &tape);
      model->backward(context, tape);
      loss = context.losses.at(0).sum / 26;
      for (nn::Param& param : model->params) {
        param.master.sub_(param.gradient, 0.1 * kBatchTokens / 26 / scale);
        nn::publish(param);
      }
    }
    return loss;
  };
  const double exact = loss_after(nn::Precision::kFp32, 1), with = loss_after(nn::Precision::kFp16, kLossScale),
               without = loss_after(nn::Precision::kFp16, 1);
  EXPECT_NEAR(with, exact, 0.03 * exact);
  EXPECT_GT(without, 1.2 * exact);
}

TEST(Training, AFewStepsOfDescentLowerTheLoss) {
  for (const Family family : kFamilies) {
    for (const nn::Precision precision : {nn::Precision::kFp32, nn::Precision::kBf16}) {
      spec::ModelShape shape = tiny_shape(family);
      shape.dropout = 0;
      const auto model = build(shape);
      nn::initialise(model->params, precision, 1);
      const nn::Tensors ids = inputs_of(shape);
      nn::Context context = training_context(shape, ids);
      const double first = train_once(*model, ids, context);
      EXPECT_NEAR(first, std::log(61.0), 1.0) << "fresh weights know nothing";
      double loss = first;
      for (int step = 0; step < 60; ++step) {
        for (nn::Param& param : model->params) {
          param.master.sub_(param.gradient, 0.1);
          nn::publish(param);
        }
        loss = train_once(*model, ids, context);
      }
      EXPECT_LT(loss, 0.8 * first) << int(family) << " " << at::toString(nn::compute_type(precision));
    }
  }
}

TEST(Training, TellsWhenAGradientIsComplete) {
  for (const Family family : kFamilies) {
    const spec::ModelShape shape = tiny_shape(family);
    const auto model = build(shape);
    fill(*model, nn::Precision::kFp32);
    const nn::Tensors ids = inputs_of(shape);
    nn::Context context = training_context(shape, ids);
    std::map<const nn::Param*, int> told;
    context.on_gradient = [&](nn::Param& param) { ++told[&param]; };
    train_once(*model, ids, context);
    for (const nn::Param& param : model->params)
      EXPECT_EQ(told[&param], param.uses) << int(family) << " " << param.name;
  }
}

}  // namespace
}  // namespace trireme::models
