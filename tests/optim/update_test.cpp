#include "trireme/optim/update.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/optim/reference.h"
#include "tests/optim/sample_model.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/nn/state.h"
#include "trireme/optim/gradients.h"

namespace trireme::optim {
namespace {

using spec::OptimConfig;
using spec::OptimizerKind;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Sample {
  explicit Sample(const OptimConfig& optim, nn::Precision precision = nn::Precision::kFp32) {
    add_sample_params(params);
    nn::initialise(params, precision, 3);
    optimizer = make_optimizer(optim, params);
    nn::add_params(state, params);
    optimizer->add_state(state);
  }
  std::vector<nn::HashShare> hashes() const { return nn::hash_shares(state, layout::Mesh(), 0); }

  nn::Params params;
  std::unique_ptr<Optimizer> optimizer;
  nn::State state;
};

double sample_norm(nn::Params& params, int step) {
  double sum = 0;
  for (const nn::Param& param : params) {
    if (!param.trainable) continue;
    for (const double number : sample_gradient(param, 3, step)) sum += number * number;
  }
  return std::sqrt(sum);
}

TEST(Clipping, KeepsTheNormOfAllGradientsTogether) {
  const OptimConfig optim{.kind = OptimizerKind::kSgd, .momentum = 0, .grad_clip_norm = 1.5};
  Sample sample(optim, nn::Precision::kFp64);
  std::map<std::string, Numbers> before;
  for (nn::Param& param : sample.params) before[param.name] = to_numbers(param.master);
  set_gradients(sample.params, 3, 1);
  const UpdateResult result = update(*sample.optimizer, {.learning_rate = 1, .gradient_scale = 0.5});
  const double length = 0.5 * sample_norm(sample.params, 1);
  EXPECT_GT(length, 1.5);
  EXPECT_NEAR(result.gradient_norm, length, 1e-12 * length);
  EXPECT_NEAR(result.clip_factor, 1.5 / length, 1e-12);
  double moved = 0;
  for (nn::Param& param : sample.params) {
    const Numbers after = to_numbers(param.master);
    const Numbers gradient = sample_gradient(param, 3, 1);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const double change = after[i] - before[param.name][i];
      moved += change * change;
      EXPECT_NEAR(change, param.trainable ? -0.5 * 1.5 / length * gradient[i] : 0, 1e-14) << param.name;
    }
  }
  EXPECT_NEAR(std::sqrt(moved), 1.5, 1e-12) << "plain SGD at rate 1 moves by the clipped gradient";
}

TEST(Clipping, LeavesShortGradientsAlone) {
  Sample clipped({.grad_clip_norm = 1e6}), plain({});
  for (Sample* sample : {&clipped, &plain}) {
    set_gradients(sample->params, 3, 1);
    EXPECT_EQ(update(*sample->optimizer, {.learning_rate = 0.01}).clip_factor, 1);
  }
  EXPECT_EQ(clipped.hashes(), plain.hashes());
}

TEST(Clipping, SumsOverRanksAndStages) {
  Sample sample({.kind = OptimizerKind::kSgd, .grad_clip_norm = 1});
  set_gradients(sample.params, 3, 1);
  const std::size_t trainable = gradient_squares(sample.params).size();
  EXPECT_EQ(trainable, sample.params.size() - 1);
  // As if three more ranks had parts of the same size, and the other stages nine times as much again.
  const AcrossRanks across{.sum_parts =
                               [&](std::span<double> squares) {
                                 ASSERT_EQ(squares.size(), trainable);
                                 for (double& square : squares) square *= 4;
                               },
                           .sum_stages = [](double sum) { return 9 * sum; }};
  const UpdateResult result = update(*sample.optimizer, {.learning_rate = 0.1, .across = &across});
  EXPECT_NEAR(result.gradient_norm, 6 * sample_norm(sample.params, 1), 1e-4);
}

TEST(ClipFactor, IsOneUpToTheLimit) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(1, 1), 1);
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(4, 0), 1) << "0 clips nothing";
  EXPECT_EQ(clip_factor(0, 1), 1);
}

TEST(Update, NamesGradientsThatAreNotFiniteAndChangesNothing) {
  for (const double bad : {kInfinity, -kInfinity, kNaN}) {
    Sample sample({.grad_clip_norm = 1});
    set_gradients(sample.params, 3, 1);
    sample.params.at("up.bias").gradient[128] = bad;
    sample.params.at("scale").gradient.fill_(bad);
    const auto before = sample.hashes();
    try {
      update(*sample.optimizer, {.learning_rate = 0.01});
      FAIL() << "stepped with " << bad;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the gradient of up.bias and scale is not finite after 0 steps");
      EXPECT_THAT(error.hint(), HasSubstr("optim.grad_clip_norm"));
    }
    EXPECT_EQ(sample.hashes(), before);
  }
}

TEST(Update, SkipsStepsThatOverflowWhereTheLossIsScaled) {
  std::vector<std::string> lines;
  divert_log([&](std::string_view line) { lines.emplace_back(line); });
  Sample sample({.kind = OptimizerKind::kAdamw}, nn::Precision::kFp16);
  LossScale loss_scale({.initial = 1024, .interval = 2});
  set_gradients(sample.params, 3, 1);
  sample.params.at("embedding").gradient[3][5] = kNaN;
  const auto before = sample.hashes();
  const std::int64_t version = sample.params.at("embedding").version;
  EXPECT_FALSE(update(*sample.optimizer, {.learning_rate = 0.01, .loss_scale = &loss_scale}).taken);
  divert_log(nullptr);
  EXPECT_EQ(sample.hashes(), before) << "neither weights nor moments nor the count of steps";
  EXPECT_EQ(sample.params.at("embedding").version, version);
  EXPECT_TRUE(sample.params.at("embedding").gradient_empty);
  EXPECT_EQ(loss_scale.scale(), 512);
  EXPECT_EQ(loss_scale.skipped(), 1);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("step skipped: gradients overflow at loss scale 1024; now 512 (1 skipped")));

  set_gradients(sample.params, 3, 1);
  EXPECT_TRUE(update(*sample.optimizer, {.learning_rate = 0.01, .loss_scale = &loss_scale}).taken);
  EXPECT_EQ(sample.optimizer->steps(), 1);
}

TEST(Update, DividesByTheLossScale) {
  Sample scaled({.kind = OptimizerKind::kSgd, .grad_clip_norm = 0.5}),
      plain({.kind = OptimizerKind::kSgd, .grad_clip_norm = 0.5});
  LossScale loss_scale({.initial = 4096});
  for (int step = 1; step <= 3; ++step) {
    set_gradients(plain.params, 3, step);
    set_gradients(scaled.params, 3, step);
    for (nn::Param& param : scaled.params) {
      if (param.trainable) param.gradient.mul_(4096);  // what backward of the scaled loss gives
    }
    const UpdateResult one = update(*plain.optimizer, {.learning_rate = 0.1});
    const UpdateResult two = update(*scaled.optimizer, {.learning_rate = 0.1, .loss_scale = &loss_scale});
    EXPECT_EQ(one.gradient_norm, two.gradient_norm) << "before clipping, unscaled";
  }
  EXPECT_EQ(scaled.hashes(), plain.hashes()) << "powers of two change no digit";
}

TEST(LossScale, GrowsAfterGoodStepsAndBacksOffAtOnce) {
  set_log_level(LogLevel::kError);
  LossScale scale({.initial = 8, .growth = 2, .backoff = 0.25, .interval = 3, .minimum = 1, .maximum = 20});
  std::vector<double> seen;
  const std::string steps =
      "ggggggggb"
      "ggb"
      "gggg";
  for (const char step : steps) {
    EXPECT_EQ(scale.take(step == 'g'), step == 'g');
    seen.push_back(scale.scale());
  }
  EXPECT_THAT(seen, ElementsAre(8, 8, 16, 16, 16, 20, 20, 20, 5,  // two growths, the second up to the maximum
                                5, 5, 1.25,                       // good steps before an overflow do not count
                                1.25, 1.25, 2.5, 2.5));
  EXPECT_EQ(scale.skipped(), 2);
  EXPECT_EQ(scale.good_steps(), 1);
  set_log_level(LogLevel::kInfo);
}

TEST(LossScale, GivesUpAtItsMinimum) {
  set_log_level(LogLevel::kError);
  LossScale scale({.initial = 3, .minimum = 1});
  EXPECT_FALSE(scale.take(false));
  EXPECT_FALSE(scale.take(false));
  EXPECT_EQ(scale.scale(), 1) << "not below, though half of 1.5 is";
  try {
    scale.take(false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("not finite even at loss scale 1"));
    EXPECT_THAT(error.hint(), HasSubstr("bf16"));
  }
  set_log_level(LogLevel::kInfo);
}

TEST(LossScale, ContinuesFromItsState) {
  set_log_level(LogLevel::kError);
  LossScale one({.interval = 5}), two({.interval = 5});
  nn::State state_one, state_two;
  one.add_state(state_one);
  two.add_state(state_two);
  for (const bool finite : {true, true, false, true, true, true, true}) one.take(finite);
  state_two.value("loss_scale").set(nlohmann::ordered_json::parse(state_one.value("loss_scale").get().dump()));
  EXPECT_EQ(two.scale(), 32768);
  EXPECT_EQ(two.skipped(), 1);
  one.take(true), two.take(true);
  EXPECT_EQ(one.scale(), 65536);
  EXPECT_EQ(two.scale(), 65536);
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace trireme::optim
