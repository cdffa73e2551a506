#include "trireme/observe/diff.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/observe/run_folder.h"
#include "trireme/base/error.h"

namespace trireme::observe {
namespace {

using ::testing::HasSubstr;

RunFiles run_of(std::int64_t steps, std::int64_t hash_every) {
  RunFiles run;
  run.dir = "runs/x";
  for (std::int64_t step = 1; step <= steps; ++step) {
    run.steps.push_back(sample_step(step));
    run.steps.back().hash.reset();
    if (hash_every > 0 && step % hash_every == 0) {
      const auto bits = static_cast<std::uint64_t>(step);
      run.hashes.push_back({.step = step,
                            .total = 6 * bits,
                            .tensors = {{"param/a", bits}, {"param/b", 2 * bits}, {"adam/a", 3 * bits}}});
    }
  }
  return run;
}

TEST(RunDiff, EqualRunsAreEqualWhateverTheirTimes) {
  const RunFiles left = run_of(20, 5);
  RunFiles right = run_of(30, 10);
  for (StepRecord& step : right.steps) step.seconds *= 2, step.tokens_per_s /= 2, step.memory += 1, step.breakdown = {};
  const RunDifference found = difference(left, right);
  EXPECT_TRUE(found.equal());
  EXPECT_EQ(found.hashed.count, 2U);
  EXPECT_EQ(found.hashed.first, 10);
  EXPECT_EQ(found.hashed.last, 20);
  EXPECT_EQ(found.measured.count, 20U);
  EXPECT_THAT(to_text(found, "a", "b"), HasSubstr("a and b are equal to the bit"));
  EXPECT_THAT(to_text(found, "a", "b"), HasSubstr("hashes of 2 steps (10 to 20), the metrics of 20 steps (1 to 20)"));
}

TEST(RunDiff, NamesTheFirstStepAndTensorsThatDiffer) {
  const RunFiles left = run_of(20, 5);
  RunFiles right = run_of(20, 5);
  for (std::size_t i : {1U, 2U, 3U}) right.hashes[i].tensors["param/b"] += 1, right.hashes[i].total += 1;
  right.hashes[1].tensors.erase("adam/a");
  right.hashes[1].tensors["adam/c"] = 7;
  right.steps[9].loss = std::nextafter(right.steps[9].loss, 9);
  const RunDifference found = difference(left, right);
  ASSERT_TRUE(found.hashes);
  EXPECT_EQ(found.hashes->step, 10);
  EXPECT_EQ(found.hashes->equal_at, 5);
  ASSERT_EQ(found.hashes->tensors.size(), 3U);
  EXPECT_EQ(found.hashes->all_tensors, 4U);
  EXPECT_EQ(found.hashes->tensors[0].name, "adam/a");
  EXPECT_FALSE(found.hashes->tensors[0].right);
  EXPECT_EQ(found.hashes->tensors[2].name, "param/b");
  EXPECT_EQ(found.hashes->tensors[2].right, 21U);
  EXPECT_EQ(found.hashes->left_loss, left.steps[9].loss);
  EXPECT_EQ(found.hashed.count, 4U) << "all are counted, also those after the first difference";
  ASSERT_TRUE(found.metrics);
  EXPECT_EQ(found.metrics->step, 10);
  ASSERT_EQ(found.metrics->fields.size(), 1U);
  EXPECT_EQ(found.metrics->fields[0].name, "loss");
  const std::string text = to_text(found, "a", "b");
  EXPECT_THAT(text, HasSubstr("differs after step 10; equal after step 5"));
  EXPECT_THAT(text, HasSubstr("3 of 4 tensors differ"));
  EXPECT_THAT(text, HasSubstr("not there"));
  const Json json = to_json(found, "a", "b");
  EXPECT_EQ(json["hashes"]["tensors"].size(), 3U);
  EXPECT_EQ(json["hashes"]["tensors"][2]["right"], "0000000000000015");
  EXPECT_EQ(json["equal"], false);
}

TEST(RunDiff, NamesTheTermOfALossThatDiffers) {
  RunFiles left = run_of(3, 0), right = run_of(3, 0);
  for (RunFiles* run : {&left, &right}) {
    for (StepRecord& step : run->steps) step.losses = {{"loss", 2, 1}, {"aux_loss", 0.5, 0.01}};
  }
  EXPECT_TRUE(difference(left, right).equal());
  right.steps[1].losses[1].mean = 0.75;
  const RunDifference found = difference(left, right);
  ASSERT_TRUE(found.metrics);
  EXPECT_EQ(found.metrics->step, 2);
  ASSERT_EQ(found.metrics->fields.size(), 1U);
  EXPECT_EQ(found.metrics->fields[0].name, "losses/aux_loss");
}

TEST(RunDiff, SeesATensorThatTheSumDoesNotShow) {
  const RunFiles left = run_of(5, 5);
  RunFiles right = run_of(5, 5);
  right.hashes[0].tensors["param/a"] += 1;
  right.hashes[0].tensors["param/b"] -= 1;
  EXPECT_EQ(difference(left, right).hashes.value().tensors.size(), 2U);
}

TEST(RunDiff, WithoutCommonHashesComparesMetricsAndSaysSo) {
  const RunFiles left = run_of(20, 7);
  RunFiles right = run_of(20, 0);
  right.steps[3].grad_norm = std::nextafter(right.steps[3].grad_norm, 0);
  right.steps[4].loss = 1;
  const RunDifference found = difference(left, right);
  EXPECT_EQ(found.hashed.count, 0U);
  ASSERT_TRUE(found.metrics);
  EXPECT_EQ(found.metrics->step, 4);
  EXPECT_EQ(found.metrics->fields.at(0).name, "grad_norm");
  EXPECT_THAT(to_text(found, "a", "b"), HasSubstr("no hashed step in common"));
}

TEST(RunDiff, UsesTheHashesOfMetricsWhereThereAreNoOthers) {
  RunFiles left = run_of(10, 0), right = run_of(10, 0);
  left.steps[4].hash = right.steps[4].hash = "00000000000000aa";
  left.steps[9].hash = "00000000000000aa";
  right.steps[9].hash = "00000000000000ab";
  const RunDifference found = difference(left, right);
  EXPECT_EQ(found.hashes.value().step, 10);
  EXPECT_THAT(to_text(found, "a", "b"), HasSubstr("which tensors differ is not known"));
}

TEST(RunDiff, TakesNanForEqualAndZeroesOfTwoSignsForDifferent) {
  RunFiles left = run_of(3, 0), right = run_of(3, 0);
  left.steps[1].loss = std::nan("1");
  right.steps[1].loss = std::nan("2");
  EXPECT_TRUE(difference(left, right).equal());
  left.steps[2].loss = 0.0;
  right.steps[2].loss = -0.0;
  EXPECT_EQ(difference(left, right).metrics.value().step, 3);
}

TEST(RunDiff, SaysThatThereIsNothingToCompare) {
  const RunFiles left = run_of(3, 0), right;
  try {
    difference(left, right);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("nothing to compare: runs/x has steps 1 to 3"));
  }
}

}  // namespace
}  // namespace trireme::observe
