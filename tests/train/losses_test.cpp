// A total of several weighted terms, wherever they arise: every layout gives what one rank gives, term by term.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/train/support.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;
using testing::HasSubstr;

struct Penalty {
  std::string name;
  double weight = 0;
  nn::LossMean mean = nn::LossMean::kSamples;
};

/// The squares of what a layer gives, as a term of the loss; and how large they are, as a metric.
class PenalisedLayer final : public nn::Layer {
 public:
  PenalisedLayer(std::unique_ptr<nn::Layer> layer, Penalty penalty, bool splits_tokens)
      : layer_(std::move(layer)), penalty_(std::move(penalty)), splits_tokens_(splits_tokens) {}

  nn::Tensors forward(nn::Tensors inputs, nn::Context& context, nn::Tape* tape) override {
    nn::Tensors outputs = layer_->forward(std::move(inputs), context, tape);
    const at::Tensor& x = outputs.at(0);
    const double sum = x.to(at::kDouble).square().sum().item<double>(), count = static_cast<double>(x.numel());
    context.losses.push_back({.name = penalty_.name,
                              .sum = sum,
                              .count = static_cast<double>(x.size(0) * x.size(1)),
                              .weight = penalty_.weight,
                              .mean = penalty_.mean,
                              .sum_over_tp = splits_tokens_});
    context.losses.push_back({.name = penalty_.name + "_size",
                              .sum = sum,
                              .count = count,
                              .weight = 0,
                              .mean = nn::LossMean::kCount,
                              .sum_over_tp = splits_tokens_});
    if (tape != nullptr) tape->push({x});
    return outputs;
  }

  nn::Tensors backward(nn::Tensors gradients, nn::Context& context, nn::Tape& tape) override {
    const at::Tensor x = std::move(tape.pop<1>()[0]);
    const double scale = penalty_.mean == nn::LossMean::kSamples ? context.sample_scale : context.gradient_scale;
    gradients[0] = gradients[0] + x * (2 * penalty_.weight * scale);
    return layer_->backward(std::move(gradients), context, tape);
  }

 private:
  std::unique_ptr<nn::Layer> layer_;
  Penalty penalty_;
  bool splits_tokens_;
};

/// One term arises at the very beginning of the chain, one in the middle; the head has the main loss and the z-loss.
PrepareParams with_penalties(const spec::Recipe& recipe, const PrepareParams& prepare) {
  PrepareParams mine = prepare;
  mine.adapt = [splits = recipe.layout.sequence_parallel](
                   const std::string& name, std::unique_ptr<nn::Layer> layer) -> std::unique_ptr<nn::Layer> {
    if (name == "embedding") {
      return std::make_unique<PenalisedLayer>(std::move(layer), Penalty{"first", 0.05}, splits);
    }
    if (name != "layers.1") return layer;
    return std::make_unique<PenalisedLayer>(std::move(layer), Penalty{"middle", 0.02, nn::LossMean::kTargets}, splits);
  };
  return mine;
}

AnyEngine penalised_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                           std::int64_t length, const PrepareParams& prepare) {
  return make_engine(recipe, shape, world, length, with_penalties(recipe, prepare));
}
AnyEngine penalised_delayed_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                   std::int64_t length, const PrepareParams& prepare) {
  return make_delayed_engine(recipe, shape, world, length, with_penalties(recipe, prepare));
}

spec::Recipe losses_recipe() {
  spec::Recipe recipe = small_recipe(Family::kGpt2, Precision::kFp64);
  recipe.model.num_layers = 4;
  recipe.model.z_loss = 1e-2;
  recipe.batch.global_batch_tokens = 8 * 12;
  return recipe;
}

/// What rank 0 was told.
struct LossCourse {
  std::vector<StepReport> steps;
  Evaluation evaluation;
};

LossCourse loss_course(const spec::Recipe& recipe, int ranks, MakeEngine& make = penalised_engine, bool ahead = false) {
  LossCourse out;
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples, make);
    if (ahead) {
      EXPECT_TRUE(trainer.run_ahead());
    }
    std::vector<StepReport> steps;
    for (int step = 0; step < 3; ++step) steps.push_back(trainer.step());
    trainer.rest_soon();
    while (!trainer.at_rest()) steps.push_back(trainer.step());
    const Evaluation evaluation = trainer.evaluate(*samples, {.first = 1000, .count = 6, .rows = 2});
    if (rank.rank() == 0) out = {steps, evaluation};
  });
  return out;
}

void expect_near(const LossCourse& expected, const LossCourse& found, const std::string& what) {
  SCOPED_TRACE(what);
  constexpr double kTolerance = 1e-9;
  ASSERT_GE(expected.steps.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const StepReport &a = expected.steps[i], &b = found.steps[i];
    EXPECT_NEAR(a.loss, b.loss, kTolerance * a.loss) << "step " << i + 1;
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, kTolerance * a.gradient_norm) << "step " << i + 1;
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (std::size_t term = 0; term < a.losses.size(); ++term) {
      EXPECT_EQ(a.losses[term].name, b.losses[term].name);
      EXPECT_EQ(a.losses[term].weight, b.losses[term].weight);
      EXPECT_NEAR(a.losses[term].mean, b.losses[term].mean, kTolerance * std::abs(a.losses[term].mean))
          << a.losses[term].name << " of step " << i + 1;
    }
  }
  const Evaluation &a = expected.evaluation, &b = found.evaluation;
  ASSERT_EQ(a.terms.size(), b.terms.size());
  EXPECT_EQ(a.counts.targets, b.counts.targets);
  for (std::size_t i = 0; i < a.terms.size(); ++i) {
    EXPECT_EQ(a.terms[i].name, b.terms[i].name);
    EXPECT_NEAR(a.terms[i].sum, b.terms[i].sum, kTolerance * std::abs(a.terms[i].sum)) << a.terms[i].name;
    EXPECT_NEAR(a.terms[i].count, b.terms[i].count, kTolerance * a.terms[i].count) << a.terms[i].name;
  }
  EXPECT_NEAR(a.total(), b.total(), kTolerance * a.total());
}

TEST(Losses, TheTotalIsTheWeightedSumOfTheTermsMeans) {
  const LossCourse one = loss_course(losses_recipe(), 1);
  for (const StepReport& report : one.steps) {
    ASSERT_EQ(report.losses.size(), 6U);
    EXPECT_EQ(report.losses[0].name, "loss");
    double total = 0;
    std::vector<std::string> names;
    for (const observe::NamedLoss& term : report.losses) {
      total += term.weight * term.mean;
      names.push_back(term.name);
      EXPECT_GT(term.mean, 0) << term.name;
    }
    EXPECT_THAT(names, testing::ElementsAre("loss", "first", "first_size", "middle", "middle_size", "z_loss"));
    EXPECT_NEAR(report.loss, total, 1e-12);
  }
  EXPECT_LT(one.evaluation.loss(), one.evaluation.total());
}

/// The gradient is that of the total: finite differences along the gradient itself.
TEST(Losses, TheGradientIsThatOfTheTotal) {
  spec::Recipe recipe = losses_recipe();
  recipe.optim.kind = spec::OptimizerKind::kSgd;
  recipe.optim.momentum = 0;
  recipe.optim.weight_decay = 0;
  recipe.optim.grad_clip_norm = 0;
  comm::run_ranks(1, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    const auto total_at = [&](const std::map<std::string, at::Tensor>& direction, double distance) {
      Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples, penalised_engine);
      for (nn::Param& param : trainer.params()) {
        if (!direction.empty()) param.master.add_(direction.at(param.name), distance);
        nn::publish(param);
      }
      return trainer.step().loss;
    };
    std::map<std::string, at::Tensor> gradient;
    Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples, penalised_engine);
    trainer.on_gradients([&](nn::Params& params) {
      for (const nn::Param& param : params) gradient[param.name] = param.gradient.clone();
    });
    const double norm = trainer.step().gradient_norm;
    constexpr double kDistance = 1e-5;
    for (auto& [name, tensor] : gradient) tensor.div_(norm);
    const double slope = (total_at(gradient, kDistance) - total_at(gradient, -kDistance)) / (2 * kDistance);
    EXPECT_NEAR(slope, norm, 1e-6 * norm);
  });
}

TEST(Losses, EveryLayoutGivesTheTermsOfOneRank) {
  const LossCourse one = loss_course(losses_recipe(), 1);
  struct Layout {
    const char* name;
    int ranks;
    std::function<void(spec::Recipe&)> set;
  };
  const Layout layouts[] = {
      {"dp 2", 2, [](auto&) {}},
      {"dp 4", 4, [](auto&) {}},
      {"dp 3, uneven", 3, [](auto&) {}},
      {"dp 4, ZeRO-3", 4, [](auto& r) { r.layout.zero = 3; }},
      {"micro-batches of 3", 1, [](auto& r) { r.train.micro_batch_size = 3; }},
      {"tp 2", 2, [](auto& r) { r.layout.tp = 2; }},
      {"tp 2, sequence parallel", 2, [](auto& r) { r.layout.tp = 2, r.layout.sequence_parallel = true; }},
      {"cp 2", 2, [](auto& r) { r.layout.cp = 2; }},
      {"dp 2, tp 2, sequence parallel", 4, [](auto& r) { r.layout.tp = 2, r.layout.sequence_parallel = true; }},
      {"pp 2", 2, [](auto& r) { r.layout.pp = 2, r.train.micro_batch_size = 1; }},
      {"pp 4", 4, [](auto& r) { r.layout.pp = 4, r.train.micro_batch_size = 1; }},
      {"dp 2, pp 2", 4, [](auto& r) { r.layout.pp = 2, r.train.micro_batch_size = 1; }},
      {"pp 2, tp 2", 4, [](auto& r) { r.layout.pp = 2, r.layout.tp = 2, r.train.micro_batch_size = 2; }},
      {"pp 2, interleaved", 2,
       [](auto& r) {
         r.layout.pp = 2, r.train.micro_batch_size = 1;
         r.pipeline.schedule = "interleaved", r.pipeline.virtual_stages = 2;
       }},
      {"pp 2, validated after the fact", 2,
       [](auto& r) {
         r.layout.pp = 2, r.train.micro_batch_size = 1;
         r.pipeline.schedule = "zb-h2", r.pipeline.drain_every = 3;
         r.checkpoint.every = r.train.hash_every = 0;
       }},
  };
  for (const Layout& layout : layouts) {
    spec::Recipe recipe = losses_recipe();
    layout.set(recipe);
    expect_near(one, loss_course(recipe, layout.ranks), layout.name);
  }
}

TEST(Losses, AsynchronousPipelinesGiveTheTermsOfTheirSerialMathematics) {
  spec::Recipe recipe = losses_recipe();
  recipe.model.tied = false;
  recipe.layout.pp = 2;
  recipe.pipeline.schedule = "pipedream-2bw";
  recipe.pipeline.drain_every = 3;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.train.micro_batch_size = 1;
  recipe.layout.dp = 1;
  const LossCourse serial = loss_course(recipe, 1, penalised_delayed_engine);
  expect_near(serial, loss_course(recipe, 2), "one pipeline");
  recipe.layout.dp = 2;
  const LossCourse both = loss_course(recipe, 1, penalised_delayed_engine);
  expect_near(both, loss_course(recipe, 4), "two pipelines");
}

TEST(Losses, StepsThatRunAheadTellTheSameTermsToTheBit) {
  spec::Recipe recipe = losses_recipe();
  recipe.train.micro_batch_size = 3;
  const LossCourse plain = loss_course(recipe, 1), ahead = loss_course(recipe, 1, penalised_engine, /*ahead=*/true);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain.steps[i].loss, ahead.steps[i].loss);
    EXPECT_EQ(plain.steps[i].losses, ahead.steps[i].losses);
  }
}

TEST(Losses, OfOneTermAreTheLossItself) {
  with_trainers(small_recipe(Family::kLlama), 2, [](Trainer& trainer, comm::Rank&) {
    const StepReport report = trainer.step();
    ASSERT_EQ(report.losses.size(), 1U);
    EXPECT_EQ(report.losses[0].mean, report.loss);
  });
}

/// The z-loss is optimised as it was when it was a part of the main loss: reported apart, the gradient is the same.
TEST(Losses, ReportTheHeadsZLossWithItsWeight) {
  spec::Recipe recipe = small_recipe(Family::kLlama, Precision::kFp64);
  recipe.model.z_loss = 0.01;
  with_trainers(recipe, 2, [](Trainer& trainer, comm::Rank&) {
    const StepReport report = trainer.step();
    ASSERT_EQ(report.losses.size(), 2U);
    EXPECT_EQ(report.losses[1].name, "z_loss");
    EXPECT_EQ(report.losses[1].weight, 0.01);
    // Of logits near zero the log-partition is that of the number of classes.
    EXPECT_NEAR(report.losses[1].mean, std::log(24) * std::log(24), 0.5);
    EXPECT_NEAR(report.loss, report.losses[0].mean + 0.01 * report.losses[1].mean, 1e-12);
  });
}

/// A term that is NaN or Inf stops the step by name; a metric that is does not.
TEST(Losses, ATermThatIsNoNumberStopsTheStep) {
  class Broken final : public nn::UnaryLayer {
   public:
    using UnaryLayer::backward, UnaryLayer::forward;
    Broken(std::unique_ptr<nn::Layer> layer, double weight) : layer_(std::move(layer)), weight_(weight) {}
    at::Tensor forward(at::Tensor x, nn::Context& context, nn::Tape* tape) override {
      context.losses.push_back({.name = "broken", .sum = NAN, .count = 1, .weight = weight_});
      return layer_->forward(nn::Tensors{std::move(x)}, context, tape)[0];
    }
    at::Tensor backward(at::Tensor dy, nn::Context& context, nn::Tape& tape) override {
      return layer_->backward(nn::Tensors{std::move(dy)}, context, tape)[0];
    }

   private:
    std::unique_ptr<nn::Layer> layer_;
    double weight_;
  };
  static double weight = 0;
  const auto make = +[](const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                        std::int64_t length, const PrepareParams& prepare) {
    PrepareParams mine = prepare;
    mine.adapt = [](const std::string& name, std::unique_ptr<nn::Layer> layer) -> std::unique_ptr<nn::Layer> {
      if (name != "layers.0") return layer;
      return std::make_unique<Broken>(std::move(layer), weight);
    };
    return make_engine(recipe, shape, world, length, mine);
  };
  for (const bool ahead : {false, true}) {
    weight = 0;
    const LossCourse metric = loss_course(losses_recipe(), 1, *make, ahead);
    EXPECT_TRUE(std::isfinite(metric.steps[0].loss));
    EXPECT_TRUE(std::isnan(metric.steps[0].losses[1].mean));
    weight = 0.1;
    try {
      loss_course(losses_recipe(), ahead ? 1 : 2, *make, ahead);
      FAIL() << "a total that is NaN";
    } catch (const NonFiniteError& error) {
      EXPECT_THAT(error.message(), HasSubstr("the loss is nan, its term broken nan"));
    }
  }
}

}  // namespace
}  // namespace trireme::train
