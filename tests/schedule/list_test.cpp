// The list scheduler keeps its limit and comes near the best there is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/memory.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {
namespace {

using testing::Each;
using testing::Le;

double makespan(const Schedule& schedule, const Times& times) { return replay(schedule, {.times = times}).makespan; }

/// The least time of all orders, by looking at every one of them: for tiny shapes of one chunk a rank.
class BestOrder {
 public:
  explicit BestOrder(const Shape& shape) : shape_(shape), ranks_(static_cast<std::size_t>(shape.ranks)) { visit(0); }
  double least() const { return least_; }

 private:
  struct State {
    double free = 0;
    int forwards = 0, inputs = 0, weights = 0;
    std::vector<double> forward_end = {}, input_end = {};
  };

  void visit(double end) {
    if (end >= least_) return;
    bool done = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      State& state = ranks_[rank];
      if (state.weights < shape_.micros) done = false;
      const State saved = state;
      const auto take = [&](int& count, std::vector<double>* ends, double ready, double takes) {
        ++count;
        state.free = std::max(state.free, ready) + takes;
        if (ends != nullptr) ends->push_back(state.free);
        visit(std::max(end, state.free));
        ranks_[rank] = saved;
      };
      const bool room = state.forwards - state.weights < shape_.most_in_flight;
      if (state.forwards < shape_.micros && room) {
        if (rank == 0)
          take(state.forwards, &state.forward_end, 0, shape_.times.forward);
        else if (ranks_[rank - 1].forwards > state.forwards)
          take(state.forwards, &state.forward_end, ranks_[rank - 1].forward_end[index(state.forwards)],
               shape_.times.forward);
      }
      if (state.inputs < state.forwards) {
        if (rank + 1 == ranks_.size())
          take(state.inputs, &state.input_end, state.forward_end[index(state.inputs)], shape_.times.backward_input);
        else if (ranks_[rank + 1].inputs > state.inputs)
          take(state.inputs, &state.input_end, ranks_[rank + 1].input_end[index(state.inputs)],
               shape_.times.backward_input);
      }
      if (state.weights < state.inputs) take(state.weights, nullptr, 0, shape_.times.backward_weight);
    }
    if (done) least_ = end;
  }
  static std::size_t index(int value) { return static_cast<std::size_t>(value); }

  Shape shape_;
  std::vector<State> ranks_;
  double least_ = 1e30;
};

TEST(ListScheduler, FindsTheBestOrderOfTinyShapes) {
  for (const Times& times : {Times{}, Times{.forward = 1, .backward_input = 2, .backward_weight = 1},
                             Times{.forward = 2, .backward_input = 1, .backward_weight = 1.5}}) {
    for (const int micros : {1, 2, 3}) {
      for (const int hold : {1, 2, 3}) {
        const Shape shape{.ranks = 2, .micros = micros, .times = times, .most_in_flight = hold};
        const double best = BestOrder(shape).least();
        EXPECT_LE(makespan(build("list", shape), times), 1.05 * best)
            << to_text(times) << ", micros " << micros << ", hold " << hold;
        EXPECT_GE(makespan(build("list", shape), times), best - 1e-9) << "the reference is not the best";
      }
    }
  }
}

TEST(ListScheduler, HoldsNoMoreThanItMay) {
  for (const int ranks : {1, 3, 4}) {
    for (const int chunks : {1, 2, 3}) {
      for (int hold = chunks; hold <= 4 * chunks; ++hold) {
        const Shape shape{.ranks = ranks, .micros = 9, .chunks_per_rank = chunks, .most_in_flight = hold};
        const Schedule schedule = build("list", shape);
        EXPECT_TRUE(check(schedule).fine());
        EXPECT_THAT(peak_in_flight(schedule), Each(Le(hold)));
      }
    }
  }
}

TEST(ListScheduler, IsNotMuchLongerThanAnyKindOfTheSameMemory) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const auto draw = [&] { return 0.5 + static_cast<double>(random() % 100) / 50; };
    const Times times{.forward = draw(), .backward_input = draw(), .backward_weight = draw(), .link = 0.1 * draw()};
    const int ranks = 2 + static_cast<int>(random() % 7), micros = ranks + static_cast<int>(random() % 24);
    Shape shape{.ranks = ranks, .micros = micros, .times = times, .most_in_flight = ranks};
    const double listed = makespan(build("list", shape), times);
    for (const char* kind : {"1f1b", "zb-h1"})
      EXPECT_LE(listed, 1.04 * makespan(build(kind, shape), times))
          << kind << " " << to_text(times) << " " << ranks << " x " << micros;
  }
}

TEST(ListScheduler, MakesUseOfMoreMemory) {
  Shape shape{.ranks = 8, .micros = 32, .times = {.forward = 1, .backward_input = 1.5, .backward_weight = 0.75}};
  double before = 1e30;
  for (const int hold : {4, 8, 15}) {
    shape.most_in_flight = hold;
    const double now = makespan(build("list", shape), shape.times);
    EXPECT_LT(now, before) << hold;
    before = now;
  }
}

TEST(ListScheduler, RefusesALimitNoMicroFitsIn) {
  EXPECT_THROW(build("list", {.ranks = 2, .micros = 2, .chunks_per_rank = 3, .most_in_flight = 2}), std::exception);
}

}  // namespace
}  // namespace trireme::schedule
