#include "trireme/data/prefetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

/// Samples that say their numbers, after a while; one of them is broken.
class Slow final : public Samples {
 public:
  explicit Slow(std::chrono::microseconds time, std::int64_t broken = -1) : time_(time), broken_(broken) {}
  std::int64_t length() const override { return 1; }
  std::int64_t epoch() const override { return 0; }
  Batch read(std::span<const std::int64_t> samples) const override {
    ++reads;
    std::this_thread::sleep_for(time_ * (1 + samples[0] % 3));  // later ones may be done sooner
    Batch batch;
    batch.samples.assign(samples.begin(), samples.end());
    if (std::ranges::count(samples, broken_) > 0) throw IoError("a broken sample");
    return batch;
  }
  mutable std::atomic<int> reads = 0;

 private:
  std::chrono::microseconds time_;
  std::int64_t broken_;
};

/// Two microbatches a step, of two samples each.
std::vector<std::vector<std::int64_t>> two_micros(std::int64_t step) {
  return {{4 * step, 4 * step + 1}, {4 * step + 2, 4 * step + 3}};
}

TEST(Prefetch, BatchesComeInTheOrderOfThePlan) {
  for (const int ahead : {0, 1, 2, 7}) {
    for (const int threads : {1, 3}) {
      const Slow samples(50us);
      Prefetch prefetch(samples, two_micros, {.first_step = 3, .ahead = ahead, .threads = threads});
      for (std::int64_t first = 12; first < 80; first += 2) {
        const auto [batch, waited_s] = prefetch.next();
        ASSERT_THAT(batch.samples, ElementsAre(first, first + 1)) << ahead << " " << threads;
        EXPECT_GE(waited_s, 0);
      }
    }
  }
}

TEST(Prefetch, ReadsNoFurtherAheadThanItMay) {
  const Slow samples(0us);
  Prefetch prefetch(samples, two_micros, {.ahead = 3});
  for (int i = 0; i < 200 && samples.reads < 3; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(samples.reads, 3);
  prefetch.next();
  for (int i = 0; i < 200 && samples.reads < 4; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(samples.reads, 4);
}

TEST(Prefetch, SaysHowLongItWaited) {
  const Slow samples(100ms);
  const auto every_third = [](std::int64_t step) { return std::vector<std::vector<std::int64_t>>{{3 * step}}; };
  Prefetch prefetch(samples, every_third, {.ahead = 2});
  EXPECT_GT(prefetch.next().waited_s, 0.05);
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(prefetch.next().waited_s, 0.05);
  Prefetch none(samples, every_third, {.ahead = 0});
  EXPECT_GT(none.next().waited_s, 0.08);
}

TEST(Prefetch, ErrorsComeOutWhereTheirBatchWouldHave) {
  for (const int ahead : {0, 1, 5}) {
    const Slow samples(10us, /*broken=*/5);
    Prefetch prefetch(samples, two_micros, {.ahead = ahead, .threads = 2});
    EXPECT_THAT(prefetch.next().batch.samples, ElementsAre(0, 1));
    EXPECT_THAT(prefetch.next().batch.samples, ElementsAre(2, 3));
    EXPECT_THROW(prefetch.next(), IoError);
    EXPECT_THROW(prefetch.next(), IoError);
  }
}

TEST(Prefetch, ErrorsOfThePlanComeOutToo) {
  const Slow samples(0us);
  const auto plan = [](std::int64_t step) {
    if (step == 1) throw ConfigError("no plan");
    return two_micros(step);
  };
  for (const int ahead : {0, 4}) {
    Prefetch prefetch(samples, plan, {.ahead = ahead});
    prefetch.next();
    prefetch.next();
    EXPECT_THROW(prefetch.next(), ConfigError);
  }
}

TEST(Prefetch, EndsWithItsPlan) {
  const Slow samples(0us);
  const auto plan = [](std::int64_t step) {
    return step < 2 ? two_micros(step) : std::vector<std::vector<std::int64_t>>{};
  };
  for (const int ahead : {0, 1, 9}) {
    Prefetch prefetch(samples, plan, {.ahead = ahead, .threads = 2});
    for (int i = 0; i < 4; ++i) prefetch.next();
    EXPECT_THROW(prefetch.next(), InternalError);
  }
}

TEST(Prefetch, StopsAtAnyTime) {
  for (int round = 0; round < 50; ++round) {
    const Slow samples(round % 2 == 0 ? 0us : 100us);
    Prefetch prefetch(samples, two_micros, {.ahead = 4, .threads = 3});
    for (int i = 0; i < round % 7; ++i) prefetch.next();
  }
}

}  // namespace
}  // namespace trireme::data
