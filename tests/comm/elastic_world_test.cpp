// The elastic world's epochs: single decisions, and every interleaving of a few ranks with deaths in every state.
#include "trireme/comm/elastic_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace trireme::comm {
namespace {

using Kind = WorldAnswer::Kind;

/// All of them, told of the epoch, listen, move and run.
void bring_to_run(ElasticWorld& world, std::int64_t step = 0) {
  const auto members = world.members();
  const std::int64_t epoch = world.epoch();
  world.listens(members.front(), epoch, "here:1");
  for (const int member : members) world.moved(member, epoch, step);
}

TEST(ElasticWorld, FormsWhenEnoughAreHereWithTheOldestAsRankZero) {
  ElasticWorld world({.min_ranks = 2});
  EXPECT_EQ(world.rests(7, 0).kind, Kind::kWait);
  EXPECT_EQ(world.phase(), WorldPhase::kWaiting);
  const WorldAnswer second = world.rests(3, 0);
  EXPECT_EQ(second, (WorldAnswer{.kind = Kind::kWorld, .epoch = 1, .rank = 1, .ranks = 2}));
  EXPECT_EQ(world.rests(7, 0).rank, 0);
  world.listens(3, 1, "elsewhere:1");  // only rank 0 may say so
  EXPECT_EQ(world.phase(), WorldPhase::kReplanning);
  world.listens(7, 1, "here:1");
  EXPECT_EQ(world.rests(3, 0).meeting, "here:1");
  world.moved(7, 1, 0);
  EXPECT_EQ(world.phase(), WorldPhase::kMoving);
  world.moved(3, 1, 0);
  EXPECT_EQ(world.phase(), WorldPhase::kRunning);
}

TEST(ElasticWorld, ADeathLeadsToASmallerWorldOfThoseThatRest) {
  ElasticWorld world({.min_ranks = 2});
  for (const int member : {1, 2, 3}) world.rests(member, 0);
  // Two were enough for the first epoch; the third is asked in at an edge.
  bring_to_run(world);
  EXPECT_TRUE(world.wants_edge());
  world.rests(1, 1);
  EXPECT_EQ(world.phase(), WorldPhase::kAgreeing);
  EXPECT_EQ(world.awaited(), std::vector<int>{2});
  EXPECT_EQ(world.rests(2, 1).ranks, 3);
  bring_to_run(world, 5);
  EXPECT_EQ(world.phase(), WorldPhase::kRunning);
  EXPECT_EQ(world.epoch(), 2);
  world.lost(1);
  EXPECT_EQ(world.phase(), WorldPhase::kAgreeing);
  EXPECT_EQ(world.rests(2, 2).kind, Kind::kWait);
  const WorldAnswer last = world.rests(3, 2);
  EXPECT_EQ(last.epoch, 3);
  EXPECT_EQ(last.ranks, 2);
  EXPECT_EQ(world.members(), (std::vector<int>{2, 3}));  // the oldest that is left is rank 0
  world.lost(2);
  EXPECT_EQ(world.rests(3, 3).kind, Kind::kWait);
  EXPECT_EQ(world.phase(), WorldPhase::kWaiting) << "one of two";
}

TEST(ElasticWorld, SparesWaitUntilALargerWorldFits) {
  ElasticWorld world({.min_ranks = 2, .fit = [](int available) { return available / 2 * 2; }});
  for (const int member : {1, 2, 3}) world.rests(member, 0);
  bring_to_run(world);
  EXPECT_EQ(world.members(), (std::vector<int>{1, 2}));
  EXPECT_FALSE(world.wants_edge()) << "three ranks are no layout";
  world.lost(3);  // a spare that dies disturbs nobody
  EXPECT_EQ(world.phase(), WorldPhase::kRunning);
  world.rests(4, 0);
  world.rests(5, 0);
  EXPECT_TRUE(world.wants_edge());
}

TEST(ElasticWorld, OneThatLeavesGoesAtAStepEdge) {
  ElasticWorld world({.min_ranks = 2});
  world.set_first_ranks(3);
  for (const int member : {1, 2, 3}) world.rests(member, 0);
  bring_to_run(world);
  EXPECT_FALSE(world.leaves(9)) << "nobody knows it";
  EXPECT_TRUE(world.leaves(1));
  EXPECT_FALSE(world.leaves(1)) << "that is no news";
  EXPECT_EQ(world.phase(), WorldPhase::kRunning) << "it is not gone yet";
  EXPECT_TRUE(world.wants_edge());
  world.rests(2, 1);
  const WorldAnswer end = world.rests(1, 1);
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_TRUE(end.good_end);
  EXPECT_EQ(world.phase(), WorldPhase::kAgreeing) << "the third is still in its step";
  EXPECT_EQ(world.rests(3, 1).ranks, 2);
  EXPECT_EQ(world.members(), (std::vector<int>{2, 3}));
  world.lost(1);  // its process has ended
  bring_to_run(world, 7);
  EXPECT_EQ(world.phase(), WorldPhase::kRunning);
  // Without another one there are too few: the others wait.
  world.leaves(3);
  world.rests(2, 2);
  world.rests(3, 2);
  EXPECT_EQ(world.phase(), WorldPhase::kWaiting);
  EXPECT_EQ(world.rests(2, 2).why, "1 of at least 2 ranks are here");
  EXPECT_EQ(world.rests(4, 0).ranks, 2);
}

TEST(ElasticWorld, MessagesOfOldEpochsChangeNothing) {
  ElasticWorld world({.min_ranks = 2});
  for (const int member : {1, 2}) world.rests(member, 0);
  bring_to_run(world);
  world.lost(2);
  world.rests(1, 1);
  world.rests(3, 0);  // epoch 2: 1 and 3
  const std::string before = world.to_text();
  world.listens(1, 1, "old:1");
  world.moved(1, 1, 9);
  world.moved(2, 2, 9);  // the dead one
  world.finished(1, 1);
  world.finished(2, 2);
  EXPECT_EQ(world.to_text(), before);
}

TEST(ElasticWorld, EpochsWithoutProgressEndTheRun) {
  ElasticWorld world({.reset_limit = 3});
  world.rests(1, 0);
  for (std::int64_t epoch = 1; epoch < 20 && world.phase() != WorldPhase::kEnded; ++epoch) {
    bring_to_run(world, 40);
    if (world.phase() == WorldPhase::kEnded) break;
    world.rests(1, epoch);
  }
  EXPECT_EQ(world.phase(), WorldPhase::kEnded);
  EXPECT_EQ(world.epoch(), 4);
  const WorldAnswer end = world.rests(1, 4);
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_FALSE(end.good_end);
  EXPECT_EQ(end.why, "4 epochs in a row began at step 40");
}

// ---- every interleaving

/// A member as the world does not see it.
struct ModelMember {
  enum class State { kAbsent, kRests, kGoes, kRuns, kDead, kBuried, kLeft } state = State::kAbsent;
  std::int64_t epoch = 0;  // of kRests: the one it left; of kGoes and kRuns: the one it is in
  bool reported = false;   // kGoes: it has told that it listens
  auto operator<=>(const ModelMember&) const = default;
};

/// World and members together, and what can happen next.
struct Model {
  ElasticWorld world;
  std::vector<ModelMember> members;
  std::map<std::int64_t, std::vector<int>> epochs;  // who was told to be in which
  int deaths_left = 0, leavers_left = 0;

  using S = ModelMember::State;
  std::string text() const {
    std::string out = world.to_text();
    for (const ModelMember& m : members)
      out += "|" + std::to_string(static_cast<int>(m.state)) + "," + std::to_string(m.epoch) + (m.reported ? "r" : "");
    return out + "#" + std::to_string(deaths_left) + "," + std::to_string(leavers_left);
  }
  ModelMember& at(int member) { return members[static_cast<std::size_t>(member)]; }
  const ModelMember& at(int member) const { return members[static_cast<std::size_t>(member)]; }
  bool is_in(int member, std::int64_t epoch) const {
    return (at(member).state == S::kGoes || at(member).state == S::kRuns) && at(member).epoch == epoch;
  }
  /// Whether all of the epoch are there: its collectives can complete.
  bool complete(std::int64_t epoch) const {
    const auto& all = epochs.at(epoch);
    return std::ranges::all_of(all, [&](int member) { return is_in(member, epoch); });
  }
  /// Whether somebody of it is gone: its collectives fail.
  bool broken(std::int64_t epoch) const {
    return std::ranges::any_of(epochs.at(epoch), [&](int member) {
      const ModelMember& m = at(member);
      return m.state == S::kDead || m.state == S::kBuried || m.state == S::kLeft ||
             (m.state == S::kRests && m.epoch >= epoch) || m.epoch > epoch;
    });
  }
};

std::vector<Model> next_models(const Model& now, bool faults) {
  using S = ModelMember::State;
  std::vector<Model> next;
  const auto branch = [&](auto&& change) {
    Model model = now;
    change(model);
    if (model.text() != now.text()) next.push_back(std::move(model));
  };
  for (int i = 0; i < static_cast<int>(now.members.size()); ++i) {
    const ModelMember& member = now.at(i);
    // They differ in nothing but their age: one order of coming stands for all.
    const bool next_to_come = i == 0 || now.at(i - 1).state != S::kAbsent;
    if (member.state == S::kAbsent && next_to_come) branch([&](Model& model) { model.at(i).state = S::kRests; });
    if (member.state == S::kRests) {
      branch([&](Model& model) {
        const WorldAnswer answer = model.world.rests(i, model.at(i).epoch);
        if (answer.kind == Kind::kEnd) model.at(i).state = S::kLeft;
        if (answer.kind != Kind::kWorld) return;
        auto& all = model.epochs[answer.epoch];
        all = model.world.members();
        if (answer.rank != 0 && answer.meeting.empty()) return;  // asks again
        model.at(i) = {.state = S::kGoes, .epoch = answer.epoch};
      });
    }
    if (member.state == S::kGoes) {
      const bool leads = now.epochs.at(member.epoch).front() == i;
      if (leads && !member.reported) {
        branch([&](Model& model) {
          model.at(i).reported = true;
          model.world.listens(i, model.at(i).epoch, "m");
        });
      }
      if (now.complete(member.epoch)) {
        branch([&](Model& model) {
          model.at(i).state = S::kRuns;
          model.world.moved(i, model.at(i).epoch, 0);
        });
      }
    }
    if (member.state == S::kGoes || member.state == S::kRuns) {
      const bool edge = member.state == S::kRuns && now.world.wants_edge() && now.world.epoch() == member.epoch;
      // A rank 0 that nobody comes to is told by its deadline, or by the coordinator.
      const bool called_off = now.world.epoch() == member.epoch && now.world.phase() == WorldPhase::kAgreeing;
      if (edge || called_off || now.broken(member.epoch)) {
        branch([&](Model& model) {
          model.at(i).state = S::kRests;
          model.at(i).reported = false;
        });
      }
    }
    const bool lives = member.state != S::kAbsent && member.state != S::kDead && member.state != S::kBuried &&
                       member.state != S::kLeft;
    if (faults && lives && now.leavers_left > 0) {
      branch([&](Model& model) {
        if (model.world.leaves(i)) --model.leavers_left;
      });
    }
    if (faults && lives && now.deaths_left > 0) {
      branch([&](Model& model) {
        model.at(i).state = S::kDead;
        --model.deaths_left;
      });
    }
    if (member.state == S::kDead) {  // the coordinator hears of it, at any later time
      branch([&](Model& model) {
        model.at(i).state = S::kBuried;
        model.world.lost(i);
      });
    }
  }
  return next;
}

/// Where the world may stay: it runs with all of its members, or too few are left.
bool is_good(const Model& model) {
  if (std::ranges::any_of(model.members, [](const ModelMember& m) {
        return m.state == ModelMember::State::kDead || m.state == ModelMember::State::kAbsent;
      })) {
    return false;
  }
  if (model.world.phase() == WorldPhase::kWaiting) return model.world.present() < 2;
  return model.world.phase() == WorldPhase::kRunning && !model.world.wants_edge() &&
         model.complete(model.world.epoch());
}

/// From nobody on; from when all are here and none has been told of the first world; or from when it runs.
enum class Begin { kNobody, kHere, kRunning };

void check_model(int ranks, int deaths, int leavers, Begin begin) {
  const ElasticRules rules{.min_ranks = 2};
  std::vector<Model> states;
  std::map<std::string, std::size_t> known;
  std::vector<std::vector<std::size_t>> undisturbed;  // transitions without faults
  std::deque<std::size_t> open;
  const auto number_of = [&](Model model) {
    const auto [found, is_new] = known.emplace(model.text(), states.size());
    if (is_new) {
      open.push_back(states.size());
      states.push_back(std::move(model));
      undisturbed.emplace_back();
    }
    return found->second;
  };
  Model first{.world = ElasticWorld(rules),
              .members = std::vector<ModelMember>(static_cast<std::size_t>(ranks)),
              .epochs = {},
              .deaths_left = deaths,
              .leavers_left = leavers};
  if (begin != Begin::kNobody) {
    first.world.set_first_ranks(ranks);
    for (int member = 0; member < ranks; ++member) first.world.rests(member, 0);
    first.epochs[1] = first.world.members();
    for (ModelMember& member : first.members) member = {.state = ModelMember::State::kRests};
  }
  if (begin == Begin::kRunning) {
    bring_to_run(first.world);
    for (ModelMember& member : first.members) member = {.state = ModelMember::State::kRuns, .epoch = 1};
  }
  number_of(std::move(first));
  while (!open.empty()) {
    const std::size_t at = open.front();
    open.pop_front();
    const Model model = states[at];
    // Never two worlds that can both compute a step.
    std::set<std::int64_t> computing;
    for (const auto& [epoch, all] : model.epochs) {
      if (std::ranges::all_of(all, [&, e = epoch](int member) {
            return model.at(member).state == ModelMember::State::kRuns && model.at(member).epoch == e;
          })) {
        computing.insert(epoch);
      }
    }
    ASSERT_LE(computing.size(), 1u) << model.text();
    for (Model& next : next_models(model, /*faults=*/true)) number_of(std::move(next));
    std::vector<std::size_t> row;
    for (Model& next : next_models(model, /*faults=*/false)) row.push_back(number_of(std::move(next)));
    undisturbed[at] = std::move(row);
    ASSERT_LT(states.size(), 400'000u) << "the model does not end";
  }
  // From everywhere a good state can be reached without luck: no deadlock, whatever died when.
  std::vector<std::vector<std::size_t>> back(states.size());
  for (std::size_t from = 0; from < states.size(); ++from) {
    for (const std::size_t to : undisturbed[from]) back[to].push_back(from);
  }
  std::vector<bool> saved(states.size());
  std::deque<std::size_t> spread;
  for (std::size_t at = 0; at < states.size(); ++at) {
    if (!is_good(states[at])) continue;
    saved[at] = true;
    spread.push_back(at);
  }
  ASSERT_FALSE(spread.empty());
  while (!spread.empty()) {
    for (const std::size_t from : back[spread.front()]) {
      if (saved[from]) continue;
      saved[from] = true;
      spread.push_back(from);
    }
    spread.pop_front();
  }
  for (std::size_t at = 0; at < states.size(); ++at) ASSERT_TRUE(saved[at]) << "stuck in " << states[at].text();
  testing::Test::RecordProperty("states", static_cast<int>(states.size()));
}

TEST(ElasticWorld, ModelOfTwoRanksWithADeathInEveryState) { check_model(2, 1, 0, Begin::kNobody); }
TEST(ElasticWorld, ModelOfThreeRanksWithADeathInEveryState) { check_model(3, 1, 0, Begin::kNobody); }
TEST(ElasticWorld, ModelOfFourRanksWithADeathInEveryState) { check_model(4, 1, 0, Begin::kHere); }
TEST(ElasticWorld, ModelOfFourRanksWithTwoDeathsInEveryState) { check_model(4, 2, 0, Begin::kRunning); }
TEST(ElasticWorld, ModelOfThreeRanksWithADeathAndOneThatLeaves) { check_model(3, 1, 1, Begin::kHere); }
TEST(ElasticWorld, ModelOfFourRanksWithADeathAndOneThatLeaves) { check_model(4, 1, 1, Begin::kRunning); }

}  // namespace
}  // namespace trireme::comm
