#include "trireme/base/queue_meter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "trireme/base/random.h"

namespace trireme {
namespace {

TEST(QueueMeter, OfADeterministicQueueIsWhatOneCountsByHand) {
  QueueMeter meter(0);
  meter.arrive(1'000'000'000);
  meter.arrive(2'000'000'000);
  meter.depart(1'000'000'000, 4'000'000'000);
  meter.depart(2'000'000'000, 6'000'000'000);
  const QueueReading reading = meter.read(10'000'000'000);
  EXPECT_EQ(reading.arrivals, 2);
  EXPECT_EQ(reading.departures, 2);
  EXPECT_DOUBLE_EQ(reading.occupancy, 1 + 2 * 2 + 2);  // one thing for 1 s, two for 2 s, one for 2 s
  EXPECT_DOUBLE_EQ(reading.sojourn, 3 + 4);
  EXPECT_DOUBLE_EQ(reading.length(), 0.7);
  EXPECT_DOUBLE_EQ(reading.rate(), 0.2);
  EXPECT_DOUBLE_EQ(reading.wait(), 3.5);
}

TEST(QueueMeter, CountsWhatIsStillInside) {
  QueueMeter meter(0);
  meter.arrive(0);
  EXPECT_DOUBLE_EQ(meter.read(3'000'000'000).occupancy, 3);
  EXPECT_EQ(meter.read(3'000'000'000).departures, 0);
  EXPECT_EQ(meter.inside(), 1);
}

TEST(QueueMeter, OccupancyIsTheSumOfSojournsOverATimeThatBeginsAndEndsEmpty) {
  // One server, first come first served: exponential gaps and service times.
  const Random random(1, "queue");
  const auto exponential = [&](std::uint64_t index, double mean) {
    return static_cast<std::int64_t>(-mean * std::log(1 - random.uniform(index)) * 1e9);
  };
  QueueMeter meter(0);
  std::deque<std::int64_t> ends;  // of those inside, with their arrivals
  std::deque<std::int64_t> begins;
  std::int64_t now = 0, free_at = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    now += exponential(2 * i, 1.0);
    while (!ends.empty() && ends.front() <= now) {
      meter.depart(begins.front(), ends.front());
      begins.pop_front(), ends.pop_front();
    }
    meter.arrive(now);
    free_at = std::max(free_at, now) + exponential(2 * i + 1, 0.5);
    begins.push_back(now), ends.push_back(free_at);
  }
  while (!ends.empty()) {
    meter.depart(begins.front(), ends.front());
    begins.pop_front(), ends.pop_front();
  }
  const QueueReading reading = meter.read(free_at);
  EXPECT_NEAR(reading.occupancy, reading.sojourn, 1e-6 * reading.sojourn);
  EXPECT_NEAR(reading.length(), reading.rate() * reading.wait(), 1e-6);
  EXPECT_NEAR(reading.wait(), 1.0, 0.1) << "M/M/1 at half load: 1 / (2 - 1) seconds";
  EXPECT_NEAR(reading.length(), 1.0, 0.1);
}

TEST(QueueMeter, ReadingsOfStepsAddUpToTheWhole) {
  QueueMeter meter(0);
  QueueReading before, sum;
  for (std::int64_t step = 1; step <= 10; ++step) {
    meter.arrive(step * 100);
    meter.block(7);
    if (step > 2) meter.depart((step - 2) * 100, step * 100 + 50);
    const QueueReading now = meter.read(step * 100 + 60);
    sum += now.since(before);
    before = now;
  }
  EXPECT_EQ(sum.arrivals, before.arrivals);
  EXPECT_NEAR(sum.occupancy, before.occupancy, 1e-15);
  EXPECT_NEAR(sum.blocked, 70e-9, 1e-15);
  EXPECT_NEAR(sum.seconds, before.seconds, 1e-15);
  EXPECT_EQ(QueueMeter(0).read(5).since(before), QueueMeter(0).read(5)) << "another meter: the queue began anew";
}

TEST(QueueMeter, AStampThatComesLateTakesNothingAway) {
  QueueMeter meter(0);
  meter.arrive(100);
  meter.depart(100, 200);
  meter.arrive(150);  // taken before the lock, told after it
  meter.depart(150, 300);
  EXPECT_DOUBLE_EQ(meter.read(300).occupancy, 200e-9);
  EXPECT_EQ(meter.inside(), 0);
}

}  // namespace
}  // namespace trireme
