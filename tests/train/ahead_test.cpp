// A step started before the last one's numbers are known gives the same run, and the same weights where numbers are
// none.
#include <ATen/ops/allclose.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/train/support.h"

namespace trireme::train {
namespace {

struct Course {
  std::vector<double> numbers;  // loss, norm and rate of each step
  std::vector<at::Tensor> weights;
  std::vector<bool> rests;
};

spec::Recipe recipe_of(spec::OptimizerKind kind) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2);
  recipe.optim.kind = kind;
  recipe.optim.weight_decay = 0.1;
  recipe.optim.grad_clip_norm = 0.05;  // every step is clipped
  recipe.model.dropout = 0.1;
  recipe.train.micro_batch_size = 2;
  recipe.train.steps = 9;
  recipe.train.hash_every = 0;
  recipe.checkpoint.every = 4;
  return recipe;
}

Course course(const spec::Recipe& recipe, bool ahead) {
  Course out;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    if (ahead) {
      EXPECT_TRUE(trainer.run_ahead());
    }
    for (std::int64_t step = 1; step <= *recipe.train.steps; ++step) {
      const StepReport report = trainer.step();
      EXPECT_EQ(report.position.step, step);
      EXPECT_EQ(trainer.position().step, step);
      EXPECT_TRUE(report.taken);
      out.numbers.insert(out.numbers.end(), {report.loss, report.gradient_norm, report.learning_rate});
      out.rests.push_back(trainer.at_rest());
    }
    for (const nn::Param& param : trainer.params()) out.weights.push_back(param.master.clone());
    if (ahead) {  // steps that were started and whose numbers are not known yet, by Little's law
      const std::vector<observe::NamedQueue> queues = trainer.driver().queues();
      ASSERT_EQ(queues.size(), 1U);
      EXPECT_EQ(queues[0].name, "steps");
      EXPECT_EQ(queues[0].reading.arrivals, *recipe.train.steps);
      EXPECT_EQ(queues[0].reading.departures, *recipe.train.steps);
      EXPECT_NEAR(queues[0].reading.occupancy, queues[0].reading.sojourn, 1e-8);
      EXPECT_LE(queues[0].reading.length(), 2);
    }
  });
  return out;
}

TEST(RunAhead, GivesTheSameRun) {
  for (const auto kind : {spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad, spec::OptimizerKind::kAdam,
                          spec::OptimizerKind::kAdamw}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const spec::Recipe recipe = recipe_of(kind);
    const Course plain = course(recipe, false), ahead = course(recipe, true);
    EXPECT_EQ(ahead.numbers, plain.numbers);
    for (std::size_t i = 0; i < plain.weights.size(); ++i) EXPECT_TRUE(ahead.weights[i].equal(plain.weights[i]));
    // At rest where a checkpoint is due, and at the end.
    EXPECT_EQ(ahead.rests, (std::vector<bool>{false, false, false, true, false, false, false, true, true}));
  }
}

TEST(RunAhead, RestsWhenAsked) {
  const spec::Recipe recipe = recipe_of(spec::OptimizerKind::kAdamw);
  const Course plain = course(recipe, false);
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    ASSERT_TRUE(trainer.run_ahead());
    trainer.step();
    EXPECT_FALSE(trainer.at_rest());
    trainer.rest_soon();
    EXPECT_EQ(trainer.step().loss, plain.numbers[3]);
    EXPECT_TRUE(trainer.at_rest());
    EXPECT_EQ(trainer.step().loss, plain.numbers[6]);
    EXPECT_FALSE(trainer.at_rest());
  });
}

/// The step after an anomalous one was under way already: neither changes anything, and the run can go on.
TEST(RunAhead, AStepWhoseNumbersAreNoneLeavesTheWeightsBeforeIt) {
  const spec::Recipe recipe = recipe_of(spec::OptimizerKind::kAdamw);
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    ASSERT_TRUE(trainer.run_ahead());
    trainer.rest_soon();
    trainer.step();
    ASSERT_TRUE(trainer.at_rest());
    nn::Param& norm = trainer.params().at("norm.weight");
    const at::Tensor kept = norm.master.clone();
    norm.master.fill_(NAN);
    nn::publish(norm);
    std::vector<at::Tensor> before;
    for (const nn::Param& param : trainer.params()) before.push_back(param.master.clone());
    const std::int64_t steps = trainer.optimizer().steps();
    try {
      trainer.step();
      FAIL() << "a loss that is NaN or Inf";
    } catch (const NonFiniteError& error) {
      EXPECT_EQ(error.step(), 2);
      EXPECT_THAT(error.message(), testing::HasSubstr("at step 2 the loss is"));
    }
    EXPECT_TRUE(trainer.at_rest());
    EXPECT_EQ(trainer.position().step, 1);
    EXPECT_EQ(trainer.optimizer().steps(), steps);
    std::size_t i = 0;
    for (const nn::Param& param : trainer.params()) {
      EXPECT_TRUE(at::allclose(param.master, before[i++], 0, 0, /*equal_nan=*/true)) << param.name;
    }
    // Healed, the step is taken as if nothing had been.
    norm.master.copy_(kept);
    nn::publish(norm);
    const StepReport again = trainer.step();
    EXPECT_EQ(again.position.step, 2);
    EXPECT_EQ(again.loss, course(recipe, false).numbers[3]);
    // And a step can be passed over.
    trainer.rest_soon();
    trainer.step();
    trainer.skip_step();
    EXPECT_EQ(trainer.position().step, 4);
  });
}

TEST(RunAhead, IsRefusedWhereTheHostHasToDecide) {
  const auto possible = [](const spec::Recipe& recipe, const std::function<void(Trainer&)>& prepare = {}) {
    bool answer = false;
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      if (prepare) prepare(trainer);
      answer = trainer.run_ahead();
      trainer.step();
      EXPECT_EQ(trainer.at_rest(), !answer);
    });
    return answer;
  };
  spec::Recipe recipe = recipe_of(spec::OptimizerKind::kAdamw);
  EXPECT_TRUE(possible(recipe));
  EXPECT_FALSE(possible(recipe, [](Trainer& trainer) { trainer.on_loss([](double) { return true; }); }));
  EXPECT_FALSE(possible(recipe, [](Trainer& trainer) { trainer.on_gradients([](nn::Params&) {}); }));
  EXPECT_FALSE(possible(recipe_of(spec::OptimizerKind::kLamb)));
  EXPECT_FALSE(possible(recipe_of(spec::OptimizerKind::kLars)));
  recipe.precision.compute = spec::Precision::kFp16;
  EXPECT_FALSE(possible(recipe));
}

}  // namespace
}  // namespace trireme::train
