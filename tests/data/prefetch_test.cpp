#include "trireme/data/prefetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "tests/data/sample_files.h"
#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"

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

/// How often a test looks for something that comes at once, 5 ms apart, until it gives up.
constexpr int kLooks = 4000;

/// Two micro-batches a step, of two samples each.
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
  for (int i = 0; i < kLooks && samples.reads < 3; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(samples.reads, 3);
  prefetch.next();
  for (int i = 0; i < kLooks && samples.reads < 4; ++i) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(samples.reads, 4);
}

/// Samples that cannot be read before they are let go.
class Held final : public Samples {
 public:
  std::int64_t length() const override { return 1; }
  std::int64_t epoch() const override { return 0; }
  Batch read(std::span<const std::int64_t>) const override {
    while (!free) std::this_thread::sleep_for(1ms);
    ++reads;
    return {};
  }
  mutable std::atomic<int> reads = 0;
  std::atomic<bool> free = false;
};

/// One micro-batch of one sample a step, whose number three divides.
std::vector<std::vector<std::int64_t>> every_third(std::int64_t step) { return {{3 * step}}; }

TEST(Prefetch, SaysHowLongItWaited) {
  Held samples;
  Prefetch prefetch(samples, every_third, {.ahead = 4});
  std::atomic<bool> asked = false;
  std::jthread opener([&] {
    while (!asked) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(300ms);
    samples.free = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  asked = true;
  const double waited_s = prefetch.next().waited_s;
  EXPECT_GT(waited_s, 0.05);  // of the 300 ms; the rest is for a machine that does something else just now
  EXPECT_LE(waited_s, seconds_since(begin));
  // What is there already is not waited for. The quickest of some: any may be disturbed.
  for (int i = 0; i < kLooks && samples.reads < 5; ++i) std::this_thread::sleep_for(5ms);
  double quickest_s = 1;
  for (int i = 0; i < 4; ++i) quickest_s = std::min(quickest_s, prefetch.next().waited_s);
  EXPECT_LT(quickest_s, 0.05);
}

/// Little's law: the queue begins and ends empty, so its length over time is the sum of what each batch stayed.
TEST(Prefetch, MetersBatchesFromTheirReadingToTheirStep) {
  constexpr std::int64_t kSteps = 20;
  for (const int threads : {1, 3}) {
    const Slow samples(500us);
    const auto plan = [](std::int64_t step) {
      return step < kSteps ? two_micros(step) : std::vector<std::vector<std::int64_t>>{};
    };
    Prefetch prefetch(samples, plan, {.ahead = 4, .threads = threads});
    double waited_s = 0;
    for (std::int64_t i = 0; i < 2 * kSteps; ++i) {
      waited_s += prefetch.next().waited_s;
      if (i % 3 == 0) std::this_thread::sleep_for(2ms);
    }
    const QueueReading queue = prefetch.queue();
    EXPECT_EQ(queue.arrivals, 2 * kSteps);
    EXPECT_EQ(queue.departures, 2 * kSteps);
    EXPECT_NEAR(queue.occupancy, queue.sojourn, 1e-8) << threads;
    EXPECT_GE(queue.sojourn, 2 * kSteps * 500e-6) << "reading alone takes that";
    EXPECT_NEAR(queue.blocked, waited_s, 1e-7);
    EXPECT_LE(queue.length(), 4);
  }
}

TEST(Prefetch, WaitsForWhatItDoesNotReadAhead) {
  const Slow samples(100ms);
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

class SharedSamples : public OwnFolder {
 protected:
  /// Ranks that are threads may prefetch from one object: it has no state that reading changes, but for what says which
  /// blocks were checked. The thread sanitizer looks at this too.
  static void expect_prefetched_at_once(const spec::Recipe& recipe) {
    const auto shared = open_samples(recipe, Split::kTrain), alone = open_samples(recipe, Split::kTrain);
    constexpr std::int64_t kSteps = 20;
    std::vector<std::vector<Batch>> read(3);
    std::vector<std::thread> readers;
    for (std::vector<Batch>& batches : read) {
      readers.emplace_back([&] {
        Prefetch prefetch(*shared, two_micros, {.ahead = 4, .threads = 2});
        for (std::int64_t i = 0; i < 2 * kSteps; ++i) batches.push_back(prefetch.next().batch);
      });
    }
    for (std::thread& reader : readers) reader.join();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const auto micros = two_micros(step);
      for (std::size_t micro = 0; micro < micros.size(); ++micro) {
        const Batch expected = alone->read(micros[micro]);
        for (const std::vector<Batch>& batches : read)
          expect_same(batches[static_cast<std::size_t>(step) * 2 + micro], expected);
      }
    }
  }
};

TEST_F(SharedSamples, OfFilesAreReadByManyAtOnce) {
  const ShardInfo info{.vocab_size = kVocabulary, .special = {.bos = 1, .eos = 2, .pad = 0, .mask = 3}, .pairs = true};
  write_shard(folder_ / "a.shard", numbered_documents(1, 1500, 120, 10), info);
  for (const auto task : {spec::DataTask::kCausal, spec::DataTask::kMasked, spec::DataTask::kSeq2Seq}) {
    spec::Recipe recipe = recipe_over({folder_ / "a.shard"}, 32);
    recipe.data.task = task;
    expect_prefetched_at_once(recipe);
  }
}

TEST_F(SharedSamples, OfSyntheticTasksAreReadByManyAtOnce) {
  for (const auto& [kind, task] : {std::pair(spec::SyntheticKind::kMarkov, spec::DataTask::kCausal),
                                   {spec::SyntheticKind::kCopy, spec::DataTask::kCausal},
                                   {spec::SyntheticKind::kCopy, spec::DataTask::kMasked},
                                   {spec::SyntheticKind::kReverse, spec::DataTask::kSeq2Seq}}) {
    spec::Recipe recipe;
    recipe.data.seq_len = 16;
    recipe.data.synthetic.kind = kind;
    recipe.data.task = task;
    expect_prefetched_at_once(recipe);
  }
}

}  // namespace
}  // namespace trireme::data
