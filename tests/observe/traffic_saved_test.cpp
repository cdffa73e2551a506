#include "trireme/observe/traffic_saved.h"

#include <gmock/gmock.h>

#include "trireme/base/units.h"

namespace trireme::observe {
namespace {

using testing::HasSubstr;

TEST(TrafficSaved, IsWhatTheLastStepTells) {
  std::vector<RankRecord> steps(3);
  steps[0].metrics = {{"step/exposed_comm_seconds", 1.0}, {"compress/sent_bytes", 10.0}};
  steps[1].metrics = {{"step/exposed_comm_seconds", 2.0},
                      {"compress/sent_bytes", 1e6},
                      {"compress/saved_bytes", 9e6},
                      {"compress/seconds", 2.5},
                      {"compress/kernel_seconds", 0.125},
                      {"compress/rounds", 2},
                      {"compress/relative_error", 0.5},
                      {"compress/predicted_gain_seconds", 21.0},
                      {"compress/error/layers.0.mlp.in.weight", 0.25},
                      {"compress/error/layers.0.mlp.out.weight", 0.75},
                      {"compress/error/head.weight", 0.125}};
  steps[2].metrics = {{"step/exposed_comm_seconds", 100.0}};
  const auto figures = compression_figures(steps);
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->saved_bytes, 9e6);
  EXPECT_EQ(figures->gain_s(), 27.0) << "nine times the bytes of three seconds";
  EXPECT_EQ(figures->predicted_gain_s, 21.0);
  EXPECT_EQ(figures->kernel_seconds, 0.125);
  const std::string table = compression_table(*figures);
  EXPECT_THAT(table, HasSubstr("<th>of that, computing</th>"));
  EXPECT_THAT(table, HasSubstr("<td>" + short_seconds(0.125) + "</td>"));
  EXPECT_THAT(table, HasSubstr("90.0 %"));
  EXPECT_THAT(table, HasSubstr("<th>layers.0</th>"));
  EXPECT_THAT(table, HasSubstr("<td>0.500</td>")) << "the mean of a layer's matrices";
  EXPECT_THAT(table, HasSubstr("<th>gained, at the rate of what was sent</th>"));
  steps[1].metrics["compress/measured_gain_seconds"] = 12.5;  // where the network is known
  const auto measured = compression_figures(steps);
  EXPECT_EQ(measured->gain_s(), 12.5);
  EXPECT_THAT(compression_table(*measured), HasSubstr("<th>gained, measured</th>"));
  EXPECT_FALSE(compression_figures(std::span(steps).last(1)).has_value());
}

}  // namespace
}  // namespace trireme::observe
