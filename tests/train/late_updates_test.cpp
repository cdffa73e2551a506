// Late updates of optimizers that exchange something with other ranks, and averages of weights beside them: against the
// recurrence of train/engine/updates.h, made with a plain trainer and a plain optimizer, and against one rank.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/train/support.h"
#include "trireme/checkpoint/gather.h"

namespace trireme::train {
namespace {

using spec::OptimizerKind;

constexpr int kSteps = 6;

spec::Recipe late_recipe(OptimizerKind kind, std::int64_t warmup) {
  spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kFp64);
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.optim = {.kind = kind, .learning_rate = 1e-2, .weight_decay = 0.1, .grad_clip_norm = 0.5};
  if (kind == OptimizerKind::kShampoo || kind == OptimizerKind::kSoap) recipe.optim.precondition_every = 2;
  recipe.layout.bucket_mb = 0.002;
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  recipe.layout.delayed_update = true;
  recipe.layout.offload_warmup = warmup;
  return recipe;
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> masters, averages;  // whole
  double evaluated = 0;
};

Trained train_late(const spec::Recipe& recipe, int ranks, bool evaluates = false) {
  Trained out;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    std::vector<double> losses;
    double evaluated = 0;
    for (int step = 0; step < kSteps; ++step) {
      losses.push_back(trainer.step().loss);
      if (evaluates) evaluated = trainer.evaluate(*samples, {.count = 4}).loss();
    }
    const nn::State whole = checkpoint::gather_whole(trainer.state(), rank.world());
    if (rank.rank() != 0) return;
    out.losses = losses;
    out.evaluated = evaluated;
    for (const nn::StateTensor& entry : whole.tensors()) {
      if (entry.name.starts_with("param/")) out.masters[entry.name.substr(6)] = entry.tensor.clone();
      if (entry.name.starts_with("ema/")) out.averages[entry.name.substr(4)] = entry.tensor.clone();
    }
  });
  return out;
}

/// v_t, m_t and the average of m_t: gradients of a plain trainer at v_t, its weights put in place before each step.
Trained recurrence(spec::Recipe recipe) {
  Trained out;
  const std::int64_t warmup = recipe.layout.offload_warmup;
  const double decay = recipe.optim.ema_decay.value_or(1);
  recipe.layout = {};
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    nn::Params masters;
    for (const nn::Param& param : trainer.params()) {
      nn::Param& copy = masters.add(param.placement, param.init, param.decay);
      copy.master = copy.value = param.master.clone();
      copy.gradient = at::zeros_like(param.master);
      out.averages[param.name] = param.master.clone();
    }
    const auto optimizer = optim::make_optimizer(recipe.optim, masters);
    std::map<std::string, at::Tensor> before;  // m_(t-2)
    for (int t = 1; t <= kSteps; ++t) {
      for (nn::Param& param : trainer.params()) {
        param.master.copy_(t <= warmup + 1 ? masters.at(param.name).master : before.at(param.name));
        nn::publish(param);
      }
      double squares = 0;
      trainer.on_gradients([&](nn::Params& params) {
        for (const nn::Param& param : params) {
          masters.at(param.name).gradient.copy_(param.gradient);
          squares += param.gradient.square().sum().item<double>();
        }
      });
      const StepReport report = trainer.step();
      out.losses.push_back(report.loss);
      for (nn::Param& master : masters) {
        before[master.name] = master.master.clone();
        master.gradient_empty = false;
      }
      optimizer->step({.learning_rate = report.learning_rate,
                       .gradient_scale = std::min(1.0, recipe.optim.grad_clip_norm / std::sqrt(squares))});
      for (const nn::Param& master : masters) out.averages.at(master.name).lerp_(master.master, 1 - decay);
    }
    for (const nn::Param& master : masters) out.masters[master.name] = master.master.clone();
  });
  return out;
}

void expect_near(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    EXPECT_LT((tensor.view({-1}) - b.at(name).view({-1})).abs().max().item<double>(), bound) << name;
}

class LateUpdates : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(All, LateUpdates,
                         testing::Values(OptimizerKind::kAdamw, OptimizerKind::kLamb, OptimizerKind::kLars,
                                         OptimizerKind::kLion, OptimizerKind::kMuon, OptimizerKind::kAdafactor,
                                         OptimizerKind::kShampoo),
                         [](const auto& given) {
                           return std::string(
                               name_in(spec::enum_names(std::type_identity<OptimizerKind>()), given.param));
                         });

TEST_P(LateUpdates, EqualTheRecurrence) {
  for (const int warmup : {0, 2}) {
    const spec::Recipe recipe = late_recipe(GetParam(), warmup);
    const Trained expected = recurrence(recipe);
    for (const auto& [zero, ranks, tp] : {std::tuple{0, 1, 1}, {0, 2, 1}, {1, 2, 1}, {2, 2, 1}, {3, 2, 1}, {1, 4, 2}}) {
      SCOPED_TRACE(fmt::format("warmup {}, zero {}, {} ranks, tp {}", warmup, zero, ranks, tp));
      spec::Recipe shared = recipe;
      shared.layout.zero = zero;
      shared.layout.tp = tp;
      const Trained found = train_late(shared, ranks);
      for (int t = 0; t < kSteps; ++t) EXPECT_NEAR(found.losses[t], expected.losses[t], 1e-9) << "step " << t + 1;
      expect_near(found.masters, expected.masters, 1e-8);
    }
  }
}

TEST_P(LateUpdates, OfStagesEqualOneRank) {
  spec::Recipe recipe = late_recipe(GetParam(), 1);
  recipe.train.micro_batch_size = 2;
  recipe.layout.pp = 2;
  recipe.layout.zero = 1;
  spec::Recipe alone = recipe;
  alone.layout.pp = 1;
  alone.layout.zero = 0;
  const Trained found = train_late(recipe, 4), expected = train_late(alone, 1);
  for (int t = 0; t < kSteps; ++t) EXPECT_NEAR(found.losses[t], expected.losses[t], 1e-9) << "step " << t + 1;
  expect_near(found.masters, expected.masters, 1e-8);
}

/// The average follows m_t, though it is computed with later; an evaluation by it puts back what is computed with.
TEST(LateAverages, FollowTheMasters) {
  for (const int warmup : {0, 2, 40}) {
    spec::Recipe recipe = late_recipe(OptimizerKind::kAdamw, warmup);
    recipe.optim.ema_decay = 0.5;
    recipe.eval.weights = spec::EvalWeights::kEma;
    const Trained expected = recurrence(recipe);
    for (const auto& [zero, ranks] : {std::pair{0, 1}, {1, 2}, {2, 2}, {3, 2}}) {
      SCOPED_TRACE(fmt::format("warmup {}, zero {}, {} ranks", warmup, zero, ranks));
      spec::Recipe shared = recipe;
      shared.layout.zero = zero;
      const Trained plain = train_late(shared, ranks), looked = train_late(shared, ranks, /*evaluates=*/true);
      expect_near(plain.averages, expected.averages, 1e-9);
      EXPECT_EQ(plain.losses, looked.losses);
      for (const auto& [name, master] : plain.masters) EXPECT_TRUE(at::equal(master, looked.masters.at(name))) << name;
      // A trainer whose weights are that average has the loss.
      spec::Recipe one = recipe;
      one.layout = {};
      one.optim.ema_decay.reset();
      one.eval.weights = spec::EvalWeights::kTrained;
      with_trainers(one, 1, [&](Trainer& trainer, comm::Rank&) {
        for (nn::Param& param : trainer.params()) {
          param.master.copy_(expected.averages.at(param.name));
          nn::publish(param);
        }
        const auto samples = data::open_samples(one, data::Split::kTrain);
        EXPECT_NEAR(looked.evaluated, trainer.evaluate(*samples, {.count = 4}).loss(), 1e-9);
      });
    }
  }
}

TEST(LateAverages, OfScheduleFreeAreThoseOfTheRecurrence) {
  for (const int warmup : {0, 2}) {
    const spec::Recipe recipe = late_recipe(OptimizerKind::kScheduleFree, warmup);
    const Trained expected = recurrence(recipe);
    for (const int zero : {0, 2, 3}) {
      SCOPED_TRACE(fmt::format("warmup {}, zero {}", warmup, zero));
      spec::Recipe shared = recipe;
      shared.layout.zero = zero;
      const Trained plain = train_late(shared, 2), looked = train_late(shared, 2, /*evaluates=*/true);
      expect_near(plain.masters, expected.masters, 1e-8);
      EXPECT_EQ(plain.losses, looked.losses);
      for (const auto& [name, master] : plain.masters) EXPECT_TRUE(at::equal(master, looked.masters.at(name))) << name;
    }
  }
}

/// Beside bf16 weights without masters an average in bf16 would stand still.
TEST(Averages, OfNarrowWeightsAreWide) {
  spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kBf16);
  recipe.precision.master_weights = spec::MasterWeights::kNone;
  recipe.optim.learning_rate = 1e-2;
  recipe.optim.ema_decay = 0.99;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    std::map<std::string, at::Tensor> average;
    for (const nn::Param& param : trainer.params()) average[param.name] = param.master.to(at::kFloat, false, true);
    const std::int64_t held = trainer.memory().device.bytes_of(device::MemoryUse::kOptimizer);
    std::int64_t elements = 0;
    for (int step = 0; step < 20; ++step) {
      trainer.step();
      for (const nn::Param& param : trainer.params()) average[param.name].lerp_(param.master.to(at::kFloat), 0.01);
    }
    for (const nn::Param& param : trainer.params()) {
      const at::Tensor& kept = trainer.state().find("ema/" + param.name)->tensor;
      EXPECT_EQ(kept.scalar_type(), at::kFloat) << param.name;
      EXPECT_TRUE(at::equal(kept, average[param.name])) << param.name;
      elements += param.elements();
    }
    // Two moments and the average in fp32; masters of vectors beside them.
    EXPECT_GE(held, 12 * elements);
  });
}

}  // namespace
}  // namespace trireme::train
