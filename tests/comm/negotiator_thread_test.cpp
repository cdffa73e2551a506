// A negotiator with a thread of its own: sums go on while ranks compute, and everything that becomes of a tensor is
// told.
#include "trireme/comm/negotiator_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

/// Spans by tensor, in the order in which they were told.
class Timeline final : public EventSink {
 public:
  struct Phase {
    std::string name;
    int lane = 0;
    Span::Clock::time_point begin, end;
  };
  void span(const Span& span) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(span.category, "negotiator");
    phases_[std::string(span.detail)].push_back({std::string(span.name), span.lane, span.begin, span.end});
  }
  void metric(const Metric&) noexcept override {}
  const std::map<std::string, std::vector<Phase>>& phases() const { return phases_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<Phase>> phases_;
};

Buffer buffer_of(std::vector<double>& values) { return {values.data(), values.size(), DType::kF64}; }

TEST(NegotiatorThread, SumsTensorsInAnyOrderWhileRanksDoSomethingElse) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Rank& rank) {
      const auto group = rank.world().split(0, rank.rank(), "sums");
      NegotiatorThread sums(*group, {.cycle = 200us});
      std::mt19937 dice(static_cast<unsigned>(rank.rank()));
      constexpr int kTensors = 20;
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<double>> values;
        for (int i = 0; i < kTensors; ++i) values.emplace_back(1 + i % 7, rank.rank() + i);
        std::vector<int> order(kTensors);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::shuffle(order, dice);
        for (const int i : order)
          sums.all_reduce("t" + std::to_string(i), buffer_of(values[static_cast<std::size_t>(i)]));
        // Nobody calls anything that would go on with them; ranks use another group meanwhile.
        for (const int i : order) {
          while (!sums.is_done("t" + std::to_string(i))) std::this_thread::sleep_for(100us);
        }
        rank.world().barrier().wait();
        sums.wait_all();
        const double from_ranks = ranks * (ranks - 1) / 2.0;
        for (int i = 0; i < kTensors; ++i) {
          EXPECT_THAT(values[static_cast<std::size_t>(i)], testing::Each(from_ranks + static_cast<double>(ranks) * i));
        }
      }
      sums.finish();
      EXPECT_EQ(sums.counters().tensors, 3 * kTensors);
    });
  }
}

/// It is the rank that computes for long that is named, while it computes; nothing stands still meanwhile.
TEST(NegotiatorThread, NamesARankThatIsNotThereYet) {
  std::vector<std::string> told;
  run_ranks(3, [&](Rank& rank) {
    const auto group = rank.world().split(0, rank.rank(), "sums");
    NegotiatorThread sums(
        *group, {.cycle = 1ms, .stall = 20ms, .on_stall = [&](const std::string& line) { told.push_back(line); }});
    std::vector<double> late(4, 1), early(4, 1);
    sums.all_reduce("early", buffer_of(early));
    if (rank.rank() == 1) {
      sums.wait("early");
      std::this_thread::sleep_for(300ms);
    }
    sums.all_reduce("late", buffer_of(late));
    sums.finish();
    EXPECT_THAT(late, testing::Each(3.0));
  });
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], testing::AllOf(HasSubstr("'late'"), HasSubstr("on ranks 0 and 2, but not on rank 1")));
}

TEST(NegotiatorThread, RefusesOneTensorAndGoesOn) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_ranks(2, [&](Rank& rank) {
    const auto group = rank.world().split(0, rank.rank(), "sums");
    NegotiatorThread sums(*group, {.cycle = 200us});
    std::vector<double> values(8, 1), other(3, 2);
    sums.all_reduce("x", {values.data(), rank.rank() == 0 ? std::size_t{8} : std::size_t{6}, DType::kF64});
    sums.all_reduce("y", buffer_of(other));
    try {
      sums.wait("x");
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      messages.push_back(error.message());
    }
    sums.wait("y");
    EXPECT_THAT(other, testing::Each(4.0));
    sums.finish();
  });
  ASSERT_EQ(messages.size(), 2U);
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("'x'"));
}

/// A rank that goes away by an error: its thread ends with it, and others are told.
TEST(NegotiatorThread, EndsWithARankThatFails) {
  EXPECT_THROW(run_ranks(2,
                         [&](Rank& rank) {
                           const auto group = rank.world().split(0, rank.rank(), "sums");
                           NegotiatorThread sums(*group, {.cycle = 200us});
                           std::vector<double> values(8, 1);
                           sums.all_reduce("x", buffer_of(values));
                           sums.wait("x");
                           if (rank.rank() == 1) throw ConfigError("rank 1 has enough");
                           sums.all_reduce("z", buffer_of(values));
                           sums.wait("z");
                         }),
               Error);
}

/// Horovod's timeline: the phases of a tensor follow each other on a lane that is its own.
TEST(NegotiatorThread, TellsThePhasesOfEachTensor) {
  std::vector<Timeline> timelines(2);
  run_ranks(2, [&](Rank& rank) {
    const auto group = rank.world().split(0, rank.rank(), "sums");
    NegotiatorThread sums(*group, {.cycle = 20ms, .events = &timelines[static_cast<std::size_t>(rank.rank())]});
    std::vector<double> a(4, 1), b(6, 1), c(5, 1);
    std::vector<float> alone(4, 1.0F);
    for (int round = 0; round < 2; ++round) {
      sums.all_reduce("a", buffer_of(a));
      sums.all_reduce("b", buffer_of(b));
      sums.all_reduce("c", buffer_of(c));
      sums.all_reduce("alone", {alone.data(), alone.size(), DType::kF32});  // of another type: fused with none
      sums.wait_all();
    }
    sums.finish();
  });
  for (const Timeline& timeline : timelines) {
    ASSERT_EQ(timeline.phases().size(), 4U);
    std::map<int, std::string> owners;
    int fused = 0;
    for (const auto& [tensor, phases] : timeline.phases()) {
      std::vector<std::string> names;
      for (std::size_t i = 0; i < phases.size(); ++i) {
        if (phases[i].name == "fuse" || phases[i].name == "unfuse") {
          ++fused;
        } else {
          names.push_back(phases[i].name);
        }
        EXPECT_LE(phases[i].begin, phases[i].end);
        if (i > 0) {
          EXPECT_LE(phases[i - 1].end, phases[i].begin) << tensor;
        }
        EXPECT_EQ(owners.try_emplace(phases[i].lane, tensor).first->second, tensor);
      }
      EXPECT_THAT(names, ElementsAre("negotiate", "all_reduce", "negotiate", "all_reduce")) << tensor;
      if (tensor == "alone") {
        EXPECT_EQ(phases.size(), 4U);
      }
    }
    EXPECT_GT(fused, 0);
    EXPECT_EQ(fused % 2, 0);
  }
}

}  // namespace
}  // namespace trireme::comm
