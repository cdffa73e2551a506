#include "trireme/experiment/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::experiment {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> started(const Decision& decision) {
  std::vector<int> out;
  for (const Decision::Start& start : decision.start) out.push_back(start.task);
  return out;
}

TEST(PlaceGang, TakesTheNodeThatItFillsBest) {
  EXPECT_THAT(place_gang(2, {4, 3, 2}, {4, 4, 4}), ElementsAre(Grant{2, 2}));
  EXPECT_THAT(place_gang(3, {4, 3, 2}, {4, 4, 4}), ElementsAre(Grant{1, 3}));
  EXPECT_THAT(place_gang(5, {4, 3, 2}, {4, 4, 4}), IsEmpty());
}

TEST(PlaceGang, OverSeveralNodesTakesWholeEmptyOnesOfOneSize) {
  EXPECT_THAT(place_gang(8, {4, 3, 4}, {4, 4, 4}), ElementsAre(Grant{0, 4}, Grant{2, 4}));
  EXPECT_THAT(place_gang(6, {4, 4, 4}, {4, 4, 4}), IsEmpty()) << "not equal on all nodes";
  EXPECT_THAT(place_gang(8, {2, 2, 2, 2, 4, 4}, {2, 2, 2, 2, 4, 4}), ElementsAre(Grant{4, 4}, Grant{5, 4}));
  EXPECT_THAT(place_gang(8, {2, 2, 2, 2, 4, 3}, {2, 2, 2, 2, 4, 4}),
              ElementsAre(Grant{0, 2}, Grant{1, 2}, Grant{2, 2}, Grant{3, 2}));
}

TEST(FairShares, AreWeightedMaxMin) {
  EXPECT_THAT(fair_shares(10, {10, 10}, {1, 1}), ElementsAre(DoubleEq(5), DoubleEq(5)));
  EXPECT_THAT(fair_shares(10, {2, 10}, {1, 1}), ElementsAre(DoubleEq(2), DoubleEq(8)));
  EXPECT_THAT(fair_shares(12, {10, 10, 1}, {1, 2, 1}),
              ElementsAre(DoubleEq(11.0 / 3), DoubleEq(22.0 / 3), DoubleEq(1)));
  EXPECT_THAT(fair_shares(10, {1, 2}, {1, 1}), ElementsAre(DoubleEq(1), DoubleEq(2)));
}

TEST(Scheduler, OrdersByPriorityThenShareThenAge) {
  const SchedulerState state{.nodes = {4},
                             .weights = {1, 1},
                             .tasks = {{.id = 1, .experiment = 0, .submitted = 1},
                                       {.id = 2, .experiment = 0, .submitted = 2},
                                       {.id = 3, .experiment = 0, .submitted = 3},
                                       {.id = 4, .experiment = 1, .submitted = 4},
                                       {.id = 5, .experiment = 1, .priority = 1, .submitted = 5},
                                       {.id = 6, .experiment = 1, .submitted = 6}}};
  // 5 by priority; then experiment 0, which has nothing yet; then they alternate.
  EXPECT_THAT(started(decide(state)), ElementsAre(5, 1, 2, 4));
}

TEST(Scheduler, WeightsShareTheSlots) {
  SchedulerState state{.nodes = {9}, .weights = {2, 1}};
  for (int i = 0; i < 20; ++i) state.tasks.push_back({.id = i, .experiment = i % 2, .submitted = i});
  std::map<int, int> slots;
  for (const int task : started(decide(state))) ++slots[task % 2];
  EXPECT_EQ(slots[0], 6);
  EXPECT_EQ(slots[1], 3);
}

TEST(Scheduler, AGangWaitsForAllItsSlots) {
  const SchedulerState state{
      .nodes = {4},
      .weights = {1},
      .tasks = {{.id = 1, .slots = 2, .seconds = 10, .grants = {{0, 2}}}, {.id = 2, .slots = 4, .submitted = 1}}};
  EXPECT_THAT(decide(state).start, IsEmpty());
}

TEST(Scheduler, BackfillsOnlyWhatLeavesTheHeadAlone) {
  SchedulerState state{.nodes = {4},
                       .weights = {1},
                       .tasks = {{.id = 1, .slots = 2, .seconds = 10, .grants = {{0, 2}}},
                                 {.id = 2, .slots = 4, .submitted = 1, .seconds = 5},
                                 {.id = 3, .slots = 1, .submitted = 2, .seconds = 11},
                                 {.id = 4, .slots = 1, .submitted = 3, .seconds = 10}}};
  const Decision decision = decide(state);
  EXPECT_THAT(started(decision), ElementsAre(4)) << "3 would still run when the head could start";
  EXPECT_TRUE(decision.start[0].backfilled);
  state.tasks[1].slots = 3;  // then one slot stays free whatever happens
  EXPECT_THAT(started(decide(state)), ElementsAre(3, 4));
}

TEST(Scheduler, WithoutKnownTimesOnlySpareSlotsAreBackfilled) {
  const SchedulerState state{.nodes = {4},
                             .weights = {1},
                             .tasks = {{.id = 1, .slots = 2, .grants = {{0, 2}}},
                                       {.id = 2, .slots = 3, .submitted = 1},
                                       {.id = 3, .submitted = 2, .seconds = 1},
                                       {.id = 4, .submitted = 3, .seconds = 1}}};
  EXPECT_THAT(started(decide(state)), ElementsAre(3));
}

TEST(Scheduler, AHigherPriorityTakesSlotsFromTheNewestOfTheLowest) {
  const SchedulerState state{.nodes = {3},
                             .weights = {1},
                             .tasks = {{.id = 1, .submitted = 1, .grants = {{0, 1}}},
                                       {.id = 2, .submitted = 2, .grants = {{0, 1}}},
                                       {.id = 3, .priority = 2, .submitted = 0, .grants = {{0, 1}}},
                                       {.id = 4, .priority = 1, .submitted = 9}}};
  EXPECT_THAT(decide(state).preempt, ElementsAre(2));
}

TEST(Scheduler, DoesNotPreemptWhatWouldNotHelp) {
  const SchedulerState state{.nodes = {2},
                             .weights = {1},
                             .tasks = {{.id = 1, .priority = 5, .grants = {{0, 1}}},
                                       {.id = 2, .priority = 0, .grants = {{0, 1}}},
                                       {.id = 3, .slots = 2, .priority = 1}}};
  EXPECT_THAT(decide(state).preempt, IsEmpty());
}

TEST(Scheduler, AsksNobodyTwiceToStop) {
  const SchedulerState state{
      .nodes = {1}, .weights = {1}, .tasks = {{.id = 1, .grants = {{0, 1}}, .ending = true}, {.id = 2, .priority = 1}}};
  EXPECT_EQ(decide(state), Decision{});
}

TEST(Scheduler, AnExperimentBelowItsShareGetsSlotsOfOneAboveAndThenAllStay) {
  SchedulerState state{.nodes = {4}, .weights = {1, 1}};
  for (int i = 0; i < 4; ++i) {
    state.tasks.push_back({.id = i, .experiment = 0, .submitted = i, .grants = {{0, 1}}});
  }
  state.tasks.push_back({.id = 10, .experiment = 1, .submitted = 10});
  EXPECT_THAT(decide(state).preempt, ElementsAre(3));
  // Carried out, with the other one queued again: nothing more happens.
  state.tasks[3].grants.clear();
  state.tasks[4].grants = {{0, 1}};
  EXPECT_EQ(decide(state), Decision{});
}

TEST(Scheduler, NamesWhatCanNeverRun) {
  const SchedulerState state{.nodes = {2, 2}, .weights = {1}, .tasks = {{.id = 1, .slots = 3}, {.id = 2, .slots = 4}}};
  const Decision decision = decide(state);
  EXPECT_THAT(decision.impossible, ElementsAre(1));
  EXPECT_THAT(started(decision), ElementsAre(2));
}

/// A cluster over time, with random tasks whose times are known.
class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed, "scheduler") {
    const auto nodes = 1 + draw(5);
    const int size = 1 + draw(4);
    for (int i = 0; i < nodes; ++i) state_.nodes.push_back(size);
    const int experiments = 1 + draw(3);
    for (int i = 0; i < experiments; ++i) state_.weights.push_back(1 + draw(3));
  }

  /// Every task ends, nothing is granted twice, the queue's head is never pushed back by a backfilled task.
  void run(bool priorities) {
    constexpr int kTasks = 40;
    double now = 0;
    int made = 0, ended = 0;
    std::map<int, double> ends;
    for (int round = 0; ended < kTasks; ++round) {
      ASSERT_LT(round, 2000) << "a task starves";
      for (int i = draw(3); i > 0 && made < kTasks; --i, ++made) state_.tasks.push_back(new_task(made, priorities));
      const Decision decision = decide(state_);
      ASSERT_EQ(decision, decide(state_)) << "not deterministic";
      check(decision);
      for (const Decision::Start& start : decision.start) {
        Task& task = find(start.task);
        task.grants = start.grants;
        ends[task.id] = now + task.seconds;
      }
      // Who is asked to stop saves, goes back into the queue and has as much left to do.
      for (const int id : decision.preempt) {
        find(id).grants.clear();
        ends.erase(id);
      }
      if (ends.empty()) continue;
      const auto first = std::ranges::min_element(ends, {}, [](const auto& end) { return end.second; });
      const double step = first->second - now;
      now = first->second;
      for (Task& task : state_.tasks) {
        if (!task.grants.empty()) task.seconds -= step;
      }
      std::erase_if(state_.tasks, [&](const Task& task) { return task.id == first->first; });
      ends.erase(first);
      ++ended;
    }
  }

 private:
  int draw(int n) { return static_cast<int>(random_.below(static_cast<std::uint64_t>(n), index_++)); }
  Task& find(int id) { return *std::ranges::find(state_.tasks, id, &Task::id); }
  Task new_task(int id, bool priorities) {
    const int size = state_.nodes[0];
    const int whole = 1 + draw(static_cast<int>(state_.nodes.size()));
    return {.id = id,
            .experiment = draw(static_cast<int>(state_.weights.size())),
            .slots = draw(3) == 0 ? whole * size : 1 + draw(size),
            .priority = priorities ? draw(3) : 0,
            .submitted = id,
            .seconds = 1.0 + draw(20)};
  }

  void check(const Decision& decision) {
    std::vector<int> free = state_.nodes;
    for (const Task& task : state_.tasks) {
      for (const Grant& grant : task.grants) free[static_cast<std::size_t>(grant.node)] -= grant.slots;
    }
    std::set<int> started;
    for (const Decision::Start& start : decision.start) {
      ASSERT_TRUE(started.insert(start.task).second);
      ASSERT_TRUE(find(start.task).grants.empty());
      int slots = 0;
      for (const Grant& grant : start.grants) {
        slots += grant.slots;
        free[static_cast<std::size_t>(grant.node)] -= grant.slots;
      }
      ASSERT_EQ(slots, find(start.task).slots) << "a gang gets all or nothing";
    }
    for (const int left : free) ASSERT_GE(left, 0) << "a slot is granted twice";
    // Work-conserving: with nobody reserved, whatever still fits was started.
    const bool someone_waits = std::ranges::any_of(
        state_.tasks, [&](const Task& task) { return task.grants.empty() && !started.contains(task.id); });
    if (someone_waits) {
      ASSERT_TRUE(std::ranges::any_of(state_.tasks, [&](const Task& task) {
        return task.grants.empty() && !started.contains(task.id) && place_gang(task.slots, free, state_.nodes).empty();
      })) << "slots lie idle although every task that waits would fit";
    }
    check_head(decision);
  }

  /// When the head could start if only what is not backfilled ran, and with the backfilled as well.
  void check_head(const Decision& decision) {
    const auto without = earliest(decision, false), with = earliest(decision, true);
    ASSERT_LE(with, without) << "a backfilled task delays the head";
  }
  double earliest(const Decision& decision, bool backfilled) {
    std::vector<int> free = state_.nodes;
    std::multimap<double, Grants> ends;
    const auto hold = [&](const Grants& grants, double until) {
      for (const Grant& grant : grants) free[static_cast<std::size_t>(grant.node)] -= grant.slots;
      ends.emplace(until, grants);
    };
    std::set<int> running;
    for (const Task& task : state_.tasks) {
      if (task.grants.empty()) continue;
      const bool stops = std::ranges::find(decision.preempt, task.id) != decision.preempt.end();
      hold(task.grants, stops ? 0 : task.seconds);
      running.insert(task.id);
    }
    for (const Decision::Start& start : decision.start) {
      if (start.backfilled) running.insert(start.task);
      if (start.backfilled && !backfilled) continue;
      hold(start.grants, find(start.task).seconds);
      running.insert(start.task);
    }
    const Task* head = head_of(running);
    if (head == nullptr) return 0;
    if (!place_gang(head->slots, free, state_.nodes).empty()) return 0;
    for (const auto& [at, grants] : ends) {
      for (const Grant& grant : grants) free[static_cast<std::size_t>(grant.node)] += grant.slots;
      if (!place_gang(head->slots, free, state_.nodes).empty()) return at;
    }
    return kUnknownTime;
  }
  /// The first that waits: in a simulation with one experiment and one priority the oldest.
  const Task* head_of(const std::set<int>& running) const {
    if (state_.weights.size() > 1) return nullptr;
    const Task* head = nullptr;
    for (const Task& task : state_.tasks) {
      if (running.contains(task.id)) continue;
      if (head == nullptr || std::pair(-task.priority, task.submitted) < std::pair(-head->priority, head->submitted)) {
        head = &task;
      }
    }
    return head;
  }

  Random random_;
  std::uint64_t index_ = 0;
  SchedulerState state_;
};

TEST(SchedulerProperties, HoldForRandomClustersAndQueues) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Simulation(seed).run(/*priorities=*/seed % 2 == 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(FairShareProperties, GiveNobodyTooMuchAndLeaveNothing) {
  const Random random(1, "shares");
  for (std::uint64_t round = 0; round < 500; ++round) {
    const std::size_t count = 1 + random.below(6, round);
    std::vector<double> demands, weights;
    for (std::uint64_t i = 0; i < count; ++i) {
      demands.push_back(static_cast<double>(random.below(20, 1000 + 10 * round + i)));
      weights.push_back(static_cast<double>(1 + random.below(4, 9000 + 10 * round + i)));
    }
    const double capacity = static_cast<double>(1 + random.below(40, 20000 + round));
    const std::vector<double> shares = fair_shares(capacity, demands, weights);
    const double given = std::accumulate(shares.begin(), shares.end(), 0.0);
    const double asked = std::accumulate(demands.begin(), demands.end(), 0.0);
    ASSERT_NEAR(given, std::min(capacity, asked), 1e-9);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_LE(shares[i], demands[i] + 1e-9);
      for (std::size_t j = 0; j < count; ++j) {  // who is not satisfied has as much for its weight as anybody
        if (shares[i] < demands[i] - 1e-9) {
          ASSERT_GE(shares[i] / weights[i], shares[j] / weights[j] - 1e-9);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::experiment
