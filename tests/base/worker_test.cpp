#include "trireme/base/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace trireme {
namespace {

TEST(Worker, DoesJobsInTheirOrderAndShowsWhatTheyWrote) {
  Worker worker;
  std::vector<int> order;  // no lock: waiting is enough
  std::vector<Worker::Job> jobs;
  for (int i = 0; i < 100; ++i) jobs.push_back(worker.post([&order, i] { order.push_back(i); }));
  worker.wait(jobs.back());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(Worker, GoesOnBesideTheCaller) {
  Worker worker;
  std::atomic<bool> let_go{false};
  const Worker::Job job = worker.post([&] {
    while (!let_go) std::this_thread::yield();
  });
  let_go = true;  // reached while the job waits for it
  worker.wait(job);
  worker.wait(0);  // over from the beginning
}

TEST(Worker, MetersItsJobsByLittlesLaw) {
  Worker worker;
  for (int i = 0; i < 3; ++i) worker.post([] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  worker.wait();
  const QueueReading reading = worker.queue();
  EXPECT_EQ(reading.arrivals, 3);
  EXPECT_EQ(reading.departures, 3);
  EXPECT_NEAR(reading.occupancy, reading.sojourn, 1e-8) << "it began and ended empty";
  EXPECT_GE(reading.sojourn, 0.010 + 0.020 + 0.030) << "one by one: those behind wait for those before";
  EXPECT_GT(reading.blocked, 0.0);
  EXPECT_LE(reading.blocked, reading.seconds);
}

TEST(Worker, LetsGoOfWhatAJobHeldBeforeTheWaitEnds) {
  Worker worker;
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(i);
    const Worker::Job job = worker.post([held] { ++*held; });
    worker.wait(job);
    ASSERT_EQ(held.use_count(), 1);
    ASSERT_EQ(*held, i + 1);
  }
}

TEST(Worker, AnErrorReachesWhoWaitsAndStopsWhatFollows) {
  Worker worker;
  bool before = false, after = false;
  const Worker::Job first = worker.post([&] { before = true; });
  const Worker::Job second = worker.post([] { throw std::runtime_error("no room"); });
  const Worker::Job third = worker.post([&] { after = true; });
  EXPECT_THROW(worker.wait(), std::runtime_error);
  EXPECT_THROW(worker.wait(second), std::runtime_error);
  EXPECT_THROW(worker.wait(third), std::runtime_error);
  EXPECT_NO_THROW(worker.wait(first));
  EXPECT_TRUE(before);
  EXPECT_FALSE(after);
}

TEST(Worker, EndsWhatWasPostedBeforeItGoes) {
  int done = 0;
  {
    Worker worker;
    for (int i = 0; i < 20; ++i) worker.post([&] { ++done; });
  }
  EXPECT_EQ(done, 20);
}

}  // namespace
}  // namespace trireme
