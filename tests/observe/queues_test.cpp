#include "trireme/observe/queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/observe/run_folder.h"
#include "trireme/observe/records.h"
#include "trireme/observe/report/report.h"

namespace trireme::observe {
namespace {

using ::testing::HasSubstr;

StepRecord with_queues(std::int64_t step, double prefetch_blocked, double works_blocked) {
  StepRecord record = sample_step(step);
  record.queues = {
      {.name = "prefetch",
       .reading =
           {.arrivals = 4, .departures = 4, .seconds = 2, .occupancy = 6, .sojourn = 5.5, .blocked = prefetch_blocked}},
      {.name = "works",
       .reading = {
           .arrivals = 40, .departures = 39, .seconds = 2, .occupancy = 1, .sojourn = 1.1, .blocked = works_blocked}}};
  return record;
}

TEST(Queues, AreSummedOverSteps) {
  const std::vector<StepRecord> steps = {with_queues(1, 0.1, 0), with_queues(2, 0.3, 0)};
  const auto queues = queues_of(steps);
  ASSERT_EQ(queues.size(), 2U);
  EXPECT_EQ(queues[0].name, "prefetch");
  EXPECT_DOUBLE_EQ(queues[0].reading.length(), 3);
  EXPECT_DOUBLE_EQ(queues[0].reading.rate(), 2);
  EXPECT_DOUBLE_EQ(queues[0].reading.blocked_share(), 0.1);
  EXPECT_EQ(to_text(queues[0]), "prefetch: L 3.00, lambda 2 /s, W 1.38 s, blocked 10.0 % of the time");
}

TEST(Queues, TheOneThatTrainingWaitsForMostBoundsTheRun) {
  const std::vector<StepRecord> data = {with_queues(1, 0.5, 0.1)}, comm = {with_queues(1, 0.1, 0.5)},
                                none = {with_queues(1, 0.001, 0.002)};
  EXPECT_EQ(bounding_queue(queues_of(data))->name, "prefetch");
  EXPECT_EQ(bounding_queue(queues_of(comm))->name, "works");
  EXPECT_FALSE(bounding_queue(queues_of(none)));
  EXPECT_FALSE(bounding_queue({}));
}

TEST(Queues, ReceivesThatAreMostOfTheWorksBoundTheRun) {
  const auto bounding = [](double works, double receives) {
    StepRecord record = with_queues(1, 0.1, works);
    record.queues.push_back({.name = "receives", .reading = {.seconds = 2, .blocked = receives}});
    return bounding_queue(queues_of(std::vector<StepRecord>{record}))->name;
  };
  EXPECT_EQ(bounding(0.6, 0.5), "receives");
  EXPECT_EQ(bounding(0.6, 0.2), "works") << "reductions are what is waited for";
}

TEST(Queues, ComeBackFromTheLineOfAStep) {
  const StepRecord record = with_queues(7, 0.125, 0.25);
  EXPECT_EQ(step_from(to_json(record)), record);
}

TEST(Queues, StandInTheReportWithTheBoundingOneNamed) {
  RunFiles run;
  run.dir = "runs/a";
  run.steps = {with_queues(1, 0.5, 0.1), with_queues(2, 0.5, 0.1)};
  const std::string page = report_page(std::vector{run});
  EXPECT_THAT(page, HasSubstr("<th>prefetch</th><td>3.00</td><td>2 /s</td><td>1.38 s</td><td>25.0 %</td>"));
  EXPECT_THAT(page, HasSubstr("<b>prefetch</b> bounds this run: 25.0 %"));
}

}  // namespace
}  // namespace trireme::observe
