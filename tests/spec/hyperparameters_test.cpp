#include "trireme/spec/hyperparameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "trireme/base/error.h"

namespace trireme::spec {
namespace {

/// The rate of step `step` (from 0), counted in steps.
double rate(const LrScheduleConfig& schedule, std::int64_t step, double learning_rate = 1) {
  return hyperparameters_at({.learning_rate = learning_rate}, schedule, {}, {.step = step}).learning_rate;
}

TEST(Schedule, ConstantIsThePeak) {
  for (const std::int64_t step : {0, 1, 1000000}) EXPECT_EQ(rate({}, step, 3e-4), 3e-4);
}

TEST(Schedule, WarmsUpFromZeroWithoutWastingAStep) {
  const LrScheduleConfig schedule{.warmup = 4};
  EXPECT_EQ(rate(schedule, 0), 0.25);
  EXPECT_EQ(rate(schedule, 2), 0.75);
  EXPECT_EQ(rate(schedule, 3), 1);
  EXPECT_EQ(rate(schedule, 4), 1);
}

TEST(Schedule, WarmsUpFromARateWithItsFirstStep) {
  const LrScheduleConfig schedule{.warmup = 4, .warmup_from = 0.2};
  EXPECT_EQ(rate(schedule, 0), 0.2);
  EXPECT_DOUBLE_EQ(rate(schedule, 2), 0.6);
  EXPECT_DOUBLE_EQ(rate(schedule, 3), 0.8);
  EXPECT_EQ(rate(schedule, 4), 1);
}

TEST(Schedule, LinearEndsAtTheMinimumAndStaysThere) {
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kLinear, .warmup = 10, .total = 110, .minimum = 0.1};
  EXPECT_EQ(rate(schedule, 9), 1);
  EXPECT_EQ(rate(schedule, 10), 1);
  EXPECT_DOUBLE_EQ(rate(schedule, 11), 1 - 0.9 / 100);
  EXPECT_DOUBLE_EQ(rate(schedule, 60), 0.55);
  EXPECT_GT(rate(schedule, 109), 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 110), 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 5000), 0.1);
  EXPECT_GT(rate({.kind = LrScheduleKind::kLinear, .total = 100}, 99), 0) << "the last step of a run trains";
}

TEST(Schedule, CosineIsHalfACosine) {
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kCosine, .warmup = 10, .total = 110, .minimum = 0.1};
  EXPECT_EQ(rate(schedule, 10), 1);
  EXPECT_DOUBLE_EQ(rate(schedule, 60), 0.55);
  for (std::int64_t step = 10; step < 110; ++step) {
    const double way = static_cast<double>(step - 10) / 100;
    EXPECT_NEAR(rate(schedule, step), 0.1 + 0.45 * (1 + std::cos(std::numbers::pi * way)), 1e-15);
  }
  EXPECT_DOUBLE_EQ(rate(schedule, 110), 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 111), 0.1);
}

TEST(Schedule, InverseSqrtIsTheOriginalTransformers) {
  // Vaswani et al., equation 3: d^-0.5 min(s^-0.5, s w^-1.5), steps from 1. Its peak is d^-0.5 w^-0.5.
  const double width = 512;
  for (const std::int64_t warmup : {1, 7, 4000}) {
    const double peak = std::pow(width * static_cast<double>(warmup), -0.5);
    const LrScheduleConfig schedule{.kind = LrScheduleKind::kInverseSqrt, .warmup = warmup};
    for (const std::int64_t step : {1, 2, 6, 7, 8, 3999, 4000, 4001, 100000}) {
      const auto s = static_cast<double>(step), w = static_cast<double>(warmup);
      const double expected = std::pow(width, -0.5) * std::min(std::pow(s, -0.5), s * std::pow(w, -1.5));
      EXPECT_NEAR(rate(schedule, step - 1, peak), expected, 1e-15) << step << " of warm-up " << warmup;
    }
  }
}

TEST(Schedule, WsdIsStableUntilItsDecay) {
  const LrScheduleConfig schedule{
      .kind = LrScheduleKind::kWsd, .warmup = 10, .total = 1000, .minimum = 0.2, .decay = 100};
  EXPECT_EQ(rate(schedule, 4), 0.5);
  for (const std::int64_t step : {9, 10, 500, 900}) EXPECT_EQ(rate(schedule, step), 1);
  EXPECT_DOUBLE_EQ(rate(schedule, 901), 1 - 0.8 / 100);
  EXPECT_DOUBLE_EQ(rate(schedule, 950), 0.6);
  EXPECT_DOUBLE_EQ(rate(schedule, 1000), 0.2);
}

TEST(Schedule, StepMultipliesFromItsBoundaryOn) {
  const LrScheduleConfig schedule{
      .kind = LrScheduleKind::kStep, .minimum = 0.005, .boundaries = {30, 60, 80}, .factors = {0.1, 0.5, 0.01}};
  EXPECT_EQ(rate(schedule, 29), 1);
  EXPECT_DOUBLE_EQ(rate(schedule, 30), 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 59), 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 60), 0.05);
  EXPECT_DOUBLE_EQ(rate(schedule, 80), 0.005) << "the minimum";
}

/// Smith 2018: up to the peak and down again, as PyTorch's OneCycleLR has it.
TEST(Schedule, OneCycleRisesAndFalls) {
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kOneCycle, .warmup = 30, .total = 100, .minimum = 1e-4};
  EXPECT_DOUBLE_EQ(rate(schedule, 0), 1.0 / 25);
  EXPECT_NEAR(rate(schedule, 15), (1.0 + 1.0 / 25) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(rate(schedule, 30), 1);
  EXPECT_NEAR(rate(schedule, 65), (1 + 1e-4) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(rate(schedule, 100), 1e-4);
  for (int step = 1; step <= 30; ++step) EXPECT_GT(rate(schedule, step), rate(schedule, step - 1));
  for (int step = 31; step <= 100; ++step) EXPECT_LT(rate(schedule, step), rate(schedule, step - 1));
}

/// Every step multiplies the rate by the same factor.
TEST(Schedule, RangeTestIsGeometric) {
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kRangeTest, .total = 100, .minimum = 1e-6};
  EXPECT_DOUBLE_EQ(rate(schedule, 0), 1e-6);
  EXPECT_NEAR(rate(schedule, 50), 1e-3, 1e-12);
  EXPECT_DOUBLE_EQ(rate(schedule, 100), 1);
  for (int step = 1; step <= 100; ++step)
    EXPECT_NEAR(rate(schedule, step) / rate(schedule, step - 1), std::pow(10, 0.06), 1e-9);
}

TEST(NoiseBatch, FollowsTheNoiseScaleInPowersOfTwo) {
  const BatchConfig batch{.kind = BatchKind::kNoise, .global_batch_tokens = 100, .maximum = 1000, .noise_factor = 2};
  EXPECT_EQ(batch_for_noise(batch, 0), 100);
  EXPECT_EQ(batch_for_noise(batch, 99), 100);
  EXPECT_EQ(batch_for_noise(batch, 100), 200);
  EXPECT_EQ(batch_for_noise(batch, 399), 400);
  EXPECT_EQ(batch_for_noise(batch, 1e9), 800) << "twice that would be above the maximum";
  const OptimConfig optim{.learning_rate = 1};
  const LrScheduleConfig schedule{.scaling = LrScaling::kSquareRoot, .reference_batch = 100};
  EXPECT_EQ(hyperparameters_at(optim, schedule, batch, {}).batch, 100);
  const Hyperparameters grown = hyperparameters_at(optim, schedule, batch, {.step = 3, .tokens = 300, .batch = 400});
  EXPECT_EQ(grown.batch, 400);
  EXPECT_DOUBLE_EQ(grown.learning_rate, 2) << "the rate of its root";
  EXPECT_EQ(after({.step = 3, .tokens = 300, .batch = 400}, grown), (Position{.step = 4, .tokens = 700, .batch = 400}));
}

TEST(Schedule, NeedsItsLengths) {
  EXPECT_THROW(rate({.kind = LrScheduleKind::kCosine}, 0), ConfigError);
  EXPECT_THROW(rate({.kind = LrScheduleKind::kWsd, .total = 10}, 0), ConfigError);
  EXPECT_THROW(rate({.scaling = LrScaling::kLinear}, 0), ConfigError);
}

TEST(LinearScaling, IsGoyalsRecipe) {
  // Section 5.1 of the paper: batch 8192 over 256 workers; 0.1 for 256 becomes 3.2 after a warm-up of five epochs of
  // 1,281,167 images, which starts at 0.1; a tenth at epochs 30, 60, 80.
  const std::int64_t images = 1'281'167;
  const OptimConfig optim{.kind = OptimizerKind::kSgd, .learning_rate = 0.1};
  const BatchConfig batch{.global_batch_tokens = 8192};
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kStep,
                                  .unit = LrScheduleUnit::kTokens,
                                  .warmup = 5 * images,
                                  .boundaries = {30 * images, 60 * images, 80 * images},
                                  .factors = {0.1, 0.1, 0.1},
                                  .scaling = LrScaling::kLinear,
                                  .reference_batch = 256};
  EXPECT_DOUBLE_EQ(peak_rate(optim, schedule, batch), 3.2);
  Position at;
  double before = 0;
  for (; at.tokens < 90 * images; at = after(at, {.batch = 8192})) {
    const Hyperparameters hyperparameters = hyperparameters_at(optim, schedule, batch, at);
    EXPECT_EQ(hyperparameters.batch, 8192);
    if (at.step == 0) {
      EXPECT_EQ(hyperparameters.learning_rate, 0.1);
    } else if (at.tokens < 5 * images) {  // "a constant amount at each iteration"
      EXPECT_NEAR(hyperparameters.learning_rate - before, 3.1 * 8192 / (5.0 * static_cast<double>(images)), 1e-12);
    } else {
      const std::int64_t epoch = at.tokens / images;
      EXPECT_NEAR(hyperparameters.learning_rate,
                  epoch < 30   ? 3.2
                  : epoch < 60 ? 0.32
                  : epoch < 80 ? 0.032
                               : 0.0032,
                  1e-12);
    }
    before = hyperparameters.learning_rate;
  }
  EXPECT_EQ(at, position_at(schedule, batch, 90 * images));
  EXPECT_EQ(at.step, (90 * images + 8191) / 8192);
}

TEST(SquareRootScaling, IsLambs) {
  // You et al. 2019, table 4: rate 5 / (2^3 10^3) at batch 512 and 5 / 10^3 at 32768: the root of 64 is 8.
  const LrScheduleConfig schedule{.scaling = LrScaling::kSquareRoot, .reference_batch = 512};
  for (int k = 0; k <= 6; ++k) {
    EXPECT_DOUBLE_EQ(peak_rate({.learning_rate = 5e-3 / 8}, schedule, {.global_batch_tokens = 512 << k}),
                     5e-3 / std::pow(2, 3 - k / 2.0));
  }
}

/// A restart is the schedule from its beginning, by its own lengths.
TEST(Restarts, WarmUpAndDecayAgain) {
  const OptimConfig optim{.learning_rate = 2};
  for (const LrScheduleKind kind : {LrScheduleKind::kConstant, LrScheduleKind::kLinear, LrScheduleKind::kCosine,
                                    LrScheduleKind::kInverseSqrt, LrScheduleKind::kWsd}) {
    const bool ends = kind != LrScheduleKind::kConstant && kind != LrScheduleKind::kInverseSqrt;
    const auto schedule = [&](std::int64_t warmup, std::int64_t total) {
      LrScheduleConfig made{.kind = kind, .warmup = warmup};
      if (ends) made.total = total;
      if (kind == LrScheduleKind::kWsd) made.decay = 5;
      return made;
    };
    LrScheduleConfig both = schedule(10, 40);
    both.restarts = {{.at = 40, .warmup = 4, .rate = 0.5}, {.at = 60, .warmup = 0}};
    if (ends) both.restarts[0].total = 20, both.restarts[1].total = 30;
    EXPECT_TRUE(find_problems(both, {}).empty());
    const auto rate = [&](const LrScheduleConfig& of, std::int64_t step) {
      return hyperparameters_at(optim, of, {}, {.step = step, .tokens = step * 65536}).learning_rate;
    };
    for (std::int64_t step = 0; step < 40; ++step) EXPECT_EQ(rate(both, step), rate(schedule(10, 40), step));
    for (std::int64_t step = 0; step < 20; ++step)
      EXPECT_DOUBLE_EQ(rate(both, 40 + step), 0.5 * rate(schedule(4, 20), step)) << step;
    for (std::int64_t step = 0; step < 40; ++step) EXPECT_DOUBLE_EQ(rate(both, 60 + step), rate(schedule(0, 30), step));
  }
}

TEST(Restarts, ChangeTheBatchAndThePeakThatFollowsIt) {
  const LrScheduleConfig schedule{.unit = LrScheduleUnit::kTokens,
                                  .scaling = LrScaling::kSquareRoot,
                                  .reference_batch = 100,
                                  .restarts = {{.at = 1000, .global_batch_tokens = 100}, {.at = 1450}}};
  const BatchConfig batch{.global_batch_tokens = 400};
  EXPECT_TRUE(find_problems(schedule, batch).empty());
  // Steps begin at 0, 400, 800, 1200, 1300, 1400, 1500: the third reaches beyond the restart.
  Position at;
  std::vector<std::int64_t> sizes;
  for (int step = 0; step < 7; ++step) {
    const Hyperparameters now = hyperparameters_at({.learning_rate = 1}, schedule, batch, at);
    EXPECT_DOUBLE_EQ(now.learning_rate, now.batch == 400 ? 2 : 1) << step;
    sizes.push_back(now.batch);
    at = after(at, now);
    EXPECT_EQ(position_at_step(schedule, batch, at.step), at);
    EXPECT_EQ(position_at(schedule, batch, at.tokens), at);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{400, 400, 400, 100, 100, 100, 100}));
}

TEST(Restarts, SayWhatDoesNotGoTogether) {
  const auto keys = [](LrScheduleConfig schedule, const BatchConfig& batch = {}) {
    std::vector<std::string> out;
    for (const config::Problem& problem : find_problems(schedule, batch)) out.push_back(problem.key);
    return out;
  };
  using testing::Contains;
  EXPECT_THAT(keys({.restarts = {{.at = 5}, {.at = 5}}}), Contains("lr_schedule.restarts.1.at"));
  EXPECT_THAT(keys({.kind = LrScheduleKind::kLinear, .total = 9, .restarts = {{.at = 5}}}),
              Contains("lr_schedule.restarts.0.total"));
  EXPECT_THAT(keys({.restarts = {{.at = 5, .total = 7}}}), Contains("lr_schedule.restarts.0.total"));
  EXPECT_THAT(keys({.kind = LrScheduleKind::kLinear, .total = 9, .restarts = {{.at = 5, .warmup = 7, .total = 7}}}),
              Contains("lr_schedule.restarts.0.total"));
  EXPECT_THAT(keys({.restarts = {{.at = 5, .global_batch_tokens = 7}}}),
              Contains("lr_schedule.restarts.0.global_batch_tokens"));
  EXPECT_THAT(keys({.kind = LrScheduleKind::kStep, .boundaries = {3}, .factors = {0.5}, .restarts = {{.at = 5}}}),
              Contains("lr_schedule.restarts"));
}

TEST(BatchRamp, IsGpt3s) {
  // Brown et al., appendix B, for the 175B model: from 32k tokens linearly to 3.2M over the first 12B; the rate warms
  // up over 375M tokens and follows a cosine to a tenth at 260B.
  const OptimConfig optim{.learning_rate = 0.6e-4};
  const BatchConfig batch{.kind = BatchKind::kRamp,
                          .global_batch_tokens = 3'200'000,
                          .multiple = 32'000,
                          .start = 32'000,
                          .over = 12'000'000'000};
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kCosine,
                                  .unit = LrScheduleUnit::kTokens,
                                  .warmup = 375'000'000,
                                  .total = 260'000'000'000,
                                  .minimum = 0.1};
  EXPECT_EQ(batch_at(schedule, batch, 0), 32'000);
  EXPECT_EQ(batch_at(schedule, batch, 6'000'000'000), 1'600'000) << "1,616,000 rounded down";
  EXPECT_EQ(batch_at(schedule, batch, 11'999'999'999), 3'168'000);
  EXPECT_EQ(batch_at(schedule, batch, 12'000'000'000), 3'200'000);
  EXPECT_EQ(batch_at(schedule, batch, 300'000'000'000), 3'200'000);
  EXPECT_EQ(hyperparameters_at(optim, schedule, batch, {}).learning_rate, 0.6e-4 * 32e3 / 375e6);
  EXPECT_EQ(hyperparameters_at(optim, schedule, batch, {.tokens = 375'000'000}).learning_rate, 0.6e-4);
  EXPECT_DOUBLE_EQ(hyperparameters_at(optim, schedule, batch, {.tokens = 260'000'000'000}).learning_rate, 0.6e-5);

  // Step by step to the end of the ramp: whole multiples, never falling, never above the line.
  Position at;
  std::int64_t before = 0;
  while (at.tokens < 12'000'000'000) {
    const Hyperparameters hyperparameters = hyperparameters_at(optim, schedule, batch, at);
    const double line = 32e3 + 3'168e3 * static_cast<double>(at.tokens) / 12e9;
    EXPECT_EQ(hyperparameters.batch % 32'000, 0);
    EXPECT_GE(hyperparameters.batch, before);
    EXPECT_LE(static_cast<double>(hyperparameters.batch), line);
    EXPECT_GT(static_cast<double>(hyperparameters.batch), line - 32e3);
    before = hyperparameters.batch;
    at = after(at, hyperparameters);
  }
  EXPECT_EQ(position_at(schedule, batch, 12'000'000'000), at);
  // Each of 99 sizes k * 32k lasts 12B / 99 tokens, and the last step of each may overlap the next.
  double steps = 0;
  for (int k = 1; k <= 99; ++k) steps += 12e9 / 99 / (32e3 * k);
  EXPECT_NEAR(static_cast<double>(at.step), steps, 99);
}

TEST(BatchRamp, PositionByStretchesIsThatStepByStep) {
  int changes = 0;
  for (const std::int64_t multiple : {1, 3, 7, 64}) {
    for (const std::int64_t start : {1, 5, 64}) {
      for (const std::int64_t over : {1, 100, 5000}) {
        const BatchConfig batch{.kind = BatchKind::kRamp,
                                .global_batch_tokens = 448 * 3,
                                .multiple = multiple,
                                .start = start,
                                .over = over};
        Position at;
        std::int64_t size = batch_at({}, batch, 0);
        for (std::int64_t tokens = 0; tokens < 9000; ++tokens) {
          const std::int64_t now = batch_at({}, batch, tokens);
          if (now != size) {  // told by the place before
            ASSERT_EQ(next_change({}, batch, tokens - 1), tokens) << multiple << " " << start << " " << over;
            size = now, ++changes;
          }
          if (at.tokens < tokens) {
            at = after(at, hyperparameters_at({}, {}, batch, at));
            ASSERT_EQ(position_at_step({}, batch, at.step), at);
          }
          ASSERT_EQ(position_at({}, batch, tokens), at) << tokens;
        }
        EXPECT_EQ(next_change({}, batch, over), std::nullopt);
        EXPECT_EQ(size, batch.global_batch_tokens);
      }
    }
  }
  EXPECT_GT(changes, 1000);
}

TEST(BatchIncrease, KeepsTheNoiseOfTheDecay) {
  // Smith et al.: where the rate would fall to a fifth, the batch grows fivefold; beyond the maximum the rate falls.
  // g ~ rate / batch must be the same at every token count.
  const OptimConfig optim{.kind = OptimizerKind::kSgd, .learning_rate = 0.1};
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kStep,
                                  .unit = LrScheduleUnit::kTokens,
                                  .warmup = 2000,
                                  .boundaries = {60'000, 120'000, 160'000, 180'000},
                                  .factors = {0.2, 0.2, 0.2, 0.2}};
  const BatchConfig decay{.global_batch_tokens = 128};
  const BatchConfig increase{.kind = BatchKind::kIncrease, .global_batch_tokens = 128, .maximum = 5000};
  for (const std::int64_t tokens : {0, 1999, 2000, 59'999, 60'000, 119'999, 120'000, 160'000, 180'000, 500'000}) {
    const Hyperparameters one = hyperparameters_at(optim, schedule, decay, {.tokens = tokens});
    const Hyperparameters two = hyperparameters_at(optim, schedule, increase, {.tokens = tokens});
    if (tokens >= 2000) {
      EXPECT_DOUBLE_EQ(one.learning_rate / static_cast<double>(one.batch),
                       two.learning_rate / static_cast<double>(two.batch));
    }
  }
  const auto hyperparameters = [&](std::int64_t tokens) {
    return hyperparameters_at(optim, schedule, increase, {.tokens = tokens});
  };
  EXPECT_EQ(hyperparameters(59'999), (Hyperparameters{.learning_rate = 0.1, .batch = 128}));
  EXPECT_EQ(hyperparameters(60'000).batch, 640);
  EXPECT_DOUBLE_EQ(hyperparameters(60'000).learning_rate, 0.1);
  EXPECT_EQ(hyperparameters(120'000).batch, 3200);
  EXPECT_DOUBLE_EQ(hyperparameters(120'000).learning_rate, 0.1);
  EXPECT_EQ(hyperparameters(160'000).batch, 5000) << "16,000 would be above the maximum";
  EXPECT_DOUBLE_EQ(hyperparameters(160'000).learning_rate, 0.1 * 5000 / 16'000)
      << "what the batch cannot take falls to the rate";
  EXPECT_DOUBLE_EQ(hyperparameters(180'000).learning_rate, 0.1 * 5000 / 80'000);
  EXPECT_LT(position_at(schedule, increase, 200'000).step, position_at(schedule, decay, 200'000).step / 2);
}

TEST(BatchIncrease, RoundingIsTakenFromTheRate) {
  const LrScheduleConfig schedule{
      .kind = LrScheduleKind::kStep, .unit = LrScheduleUnit::kTokens, .boundaries = {100}, .factors = {0.3}};
  const BatchConfig batch{.kind = BatchKind::kIncrease, .global_batch_tokens = 64, .multiple = 32, .maximum = 1000};
  const Hyperparameters hyperparameters = hyperparameters_at({.learning_rate = 1}, schedule, batch, {.tokens = 100});
  EXPECT_EQ(hyperparameters.batch, 192);  // of 213.3
  EXPECT_DOUBLE_EQ(hyperparameters.learning_rate, 0.3 * 192 / 64);
}

TEST(BatchIncrease, PositionByStretchesIsThatStepByStep) {
  const LrScheduleConfig schedule{.kind = LrScheduleKind::kStep,
                                  .unit = LrScheduleUnit::kTokens,
                                  .boundaries = {100, 333, 334, 2000},
                                  .factors = {0.5, 0.5, 0.5, 0.1}};
  const BatchConfig batch{.kind = BatchKind::kIncrease, .global_batch_tokens = 3, .maximum = 50};
  Position at;
  for (std::int64_t tokens = 0; tokens < 4000; ++tokens) {
    if (at.tokens < tokens) at = after(at, hyperparameters_at({}, schedule, batch, at));
    ASSERT_EQ(position_at(schedule, batch, tokens), at) << tokens;
  }
}

}  // namespace
}  // namespace trireme::spec
