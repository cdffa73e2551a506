#include "trireme/plan/validate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::plan {
namespace {

TEST(Published, RunsLoadWithSources) {
  std::size_t counted = 0;
  for (const PublishedSource& source : load_published()) {
    for (const PublishedRun& run : source.file.runs) {
      EXPECT_FALSE(run.source.empty());
      counted += counts(run);
    }
  }
  EXPECT_GE(counted, 44u);
}

/// The promise of docs/planner.md.
TEST(Validation, MedianErrorIsBelowFivePercentAndOneInSevenIsFar) {
  const auto predictions =
      predict_published(load_published(), [](const cost::Device& device) { return device.efficiency; });
  const ErrorSummary summary = summarize(predictions);
  EXPECT_LE(summary.median, 0.05);
  EXPECT_LE(7 * summary.far, summary.runs);
}

TEST(Validation, SourcesPredictEachOther) {
  const ErrorSummary summary = summarize(leave_one_source_out(load_published()));
  EXPECT_GE(summary.runs, 30u);
  EXPECT_LE(summary.median, 0.08);
}

TEST(Summary, IsTheMedianAndCountsWhatIsFar) {
  std::vector<PublishedPrediction> predictions(4);
  for (std::size_t index = 0; index < 4; ++index) {
    predictions[index].counted = index != 3;
    predictions[index].measured = 100;
    predictions[index].predicted = std::array{101., 80., 105., 300.}[index];
  }
  const ErrorSummary summary = summarize(predictions);
  EXPECT_EQ(summary.runs, 3u);
  EXPECT_EQ(summary.far, 1u);
  EXPECT_DOUBLE_EQ(summary.median, 105. / 100 - 1);
  EXPECT_DOUBLE_EQ(summary.worst, std::abs(80. / 100 - 1));
}

TEST(Fit, DoesNotChangeConstantsThatAreAlreadyBest) {
  const auto sources = load_published();
  const cost::Efficiency now = cost::load_device("v100").efficiency;
  const Fit fit = fit_efficiency("v100", sources);
  EXPECT_EQ(fit.runs, 4u);
  EXPECT_NEAR(fit.efficiency.matmul, now.matmul, 0.01);
}

}  // namespace
}  // namespace trireme::plan
