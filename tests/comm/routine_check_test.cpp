// The validator notices what is wrong: every routine of the table is right, and stops being so by one changed step.
#include "trireme/comm/routine_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/routine_shapes.h"

namespace trireme::comm {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool is_post(const Step& step) {
  return step.act == Act::kSend || step.act == Act::kRecv || step.act == Act::kRecvReduce;
}

/// The same steps in another order, or without some: `order` has their indices. Waits keep naming the same steps.
Routine reordered(const Routine& routine, const std::vector<int>& order) {
  std::vector<int> moved_to(routine.steps.size(), -1);
  for (int index = 0; index < static_cast<int>(order.size()); ++index) moved_to[at(order[at(index)])] = index;
  Routine result{{}, routine.scratch};
  for (const int index : order) {
    Step step = routine.steps[at(index)];
    if (step.act == Act::kWait) step.on = moved_to[at(step.on)];
    if (step.act != Act::kWait || step.on >= 0) result.steps.push_back(step);
  }
  return result;
}

std::vector<int> all_steps(const Routine& routine) {
  std::vector<int> order(routine.steps.size());
  for (int index = 0; index < static_cast<int>(order.size()); ++index) order[at(index)] = index;
  return order;
}

Routine without(const Routine& routine, int step) {
  std::vector<int> order = all_steps(routine);
  // A dropped post takes its wait along, so that only the missing message can give it away.
  std::erase_if(order, [&](int index) {
    const Step& other = routine.steps[at(index)];
    return index == step || (other.act == Act::kWait && other.on == step);
  });
  return reordered(routine, order);
}

Routine with_last(const Routine& routine, int step) {
  std::vector<int> order = all_steps(routine);
  std::erase(order, step);
  order.push_back(step);
  return reordered(routine, order);
}

Routine with_swapped(const Routine& routine, int step) {
  std::vector<int> order = all_steps(routine);
  std::swap(order[at(step)], order[at(step + 1)]);
  return reordered(routine, order);
}

struct Case {
  std::vector<Shape> shapes;
  std::vector<Routine> routines;
};

/// Small cases of one algorithm, among an awkward and a friendly number of ranks.
std::vector<Case> cases(const AlgorithmEntry& entry) {
  std::vector<Case> result;
  for (const int ranks : {4, 6}) {
    auto shapes = plain_shapes(entry.op, ranks, has_blocks(entry.op) ? 5 : 5 * at(ranks) + 1);
    for (Shape& shape : shapes) {
      if (has_root(entry.op)) shape.root = 1;
      for (int rank = 0; rank < ranks; ++rank) shape.node_of.push_back(rank / 2);
    }
    if (entry.refuses(shapes.front()).empty()) result.push_back({shapes, build_all(entry, shapes)});
  }
  return result;
}

class EveryMutation : public testing::TestWithParam<AlgorithmEntry> {
 protected:
  /// Changes one step after the other in one rank after the other; `change` gives nothing where it does not apply.
  template <typename Change>
  int expect_caught(Change change) {
    int changed = 0;
    for (const Case& good : cases(GetParam())) {
      EXPECT_THAT(check_routines(good.shapes, good.routines), IsEmpty());
      for (int rank = 0; rank < good.shapes.front().ranks; ++rank) {
        for (int step = 0; step < static_cast<int>(good.routines[at(rank)].steps.size()); ++step) {
          const auto bad = change(good.routines[at(rank)], step);
          if (!bad) continue;
          std::vector<Routine> routines = good.routines;
          routines[at(rank)] = *bad;
          EXPECT_THAT(check_routines(good.shapes, routines), Not(IsEmpty()))
              << "rank " << rank << ", step " << step << " of\n"
              << to_text(good.routines[at(rank)]);
          ++changed;
        }
      }
    }
    return changed;
  }
};

TEST_P(EveryMutation, OfDroppingAStepIsCaught) {
  const int changed =
      expect_caught([](const Routine& routine, int step) -> std::optional<Routine> { return without(routine, step); });
  EXPECT_GT(changed, 0);
}

TEST_P(EveryMutation, OfWaitingTooLateIsCaught) {
  const Algorithm algorithm = GetParam().algorithm;
  // These wait for reasons other than memory: one partner at a time, and signals without content.
  if (algorithm == Algorithm::kPairwise && GetParam().op == Collective::kAllToAll) return;
  if (GetParam().op == Collective::kBarrier) return;
  // Rings also wait for what they sent two steps ago, only to keep few messages under way.
  const bool rings = algorithm == Algorithm::kRing || algorithm == Algorithm::kScatterAllGather ||
                     algorithm == Algorithm::kHierarchical;
  // Only waits that something follows but waits: the builder put them there because of what follows.
  expect_caught([&](const Routine& routine, int step) -> std::optional<Routine> {
    const auto follows = [&](int index) { return routine.steps[at(index)].act != Act::kWait; };
    bool something = false;
    for (int index = step; index < static_cast<int>(routine.steps.size()); ++index) something |= follows(index);
    if (follows(step) || !something) return std::nullopt;
    if (rings && routine.steps[at(routine.steps[at(step)].on)].act == Act::kSend) return std::nullopt;
    return with_last(routine, step);
  });
}

TEST_P(EveryMutation, OfSwappingMessagesIsCaught) {
  // Two messages in a row to or from one peer; the slices differ, so their order matters.
  expect_caught([](const Routine& routine, int step) -> std::optional<Routine> {
    if (step + 1 >= static_cast<int>(routine.steps.size())) return std::nullopt;
    const Step &first = routine.steps[at(step)], &second = routine.steps[at(step + 1)];
    if (!is_post(first) || first.act != second.act || first.peer != second.peer) return std::nullopt;
    return first == second ? std::nullopt : std::optional(with_swapped(routine, step));
  });
}

std::string test_name(const testing::TestParamInfo<AlgorithmEntry>& info) {
  return fmt::format("{}_{}", cost::name(info.param.algorithm), cost::name(info.param.op));
}
INSTANTIATE_TEST_SUITE_P(Table, EveryMutation, testing::ValuesIn(algorithm_table().begin(), algorithm_table().end()),
                         test_name);

/// Two ranks with hand-written routines.
std::vector<std::string> check_two(Shape shape, std::vector<Step> first, std::vector<Step> second,
                                   std::size_t scratch = 0) {
  shape.ranks = 2;
  const std::vector<Routine> routines{{std::move(first), scratch}, {std::move(second), scratch}};
  return check_routines(everywhere(shape), routines);
}

constexpr Slice in(std::size_t begin, std::size_t end) { return {Space::kInput, begin, end - begin}; }
constexpr Slice out(std::size_t begin, std::size_t end) { return {Space::kOutput, begin, end - begin}; }
Step send(int peer, Slice from) { return {.act = Act::kSend, .peer = peer, .from = from}; }
Step recv(int peer, Slice to) { return {.act = Act::kRecv, .peer = peer, .to = to}; }
Step recv_reduce(int peer, Slice from, Slice to) {
  return {.act = Act::kRecvReduce, .peer = peer, .from = from, .to = to};
}
Step wait(int on) { return {.act = Act::kWait, .on = on}; }
Step finish(Slice to) { return {.act = Act::kFinish, .to = to}; }

Shape all_reduce_of(std::size_t count) { return plain_shapes(Collective::kAllReduce, 2, count).front(); }

TEST(CheckRoutines, FindsADeadlockOfSendsThatWaitForTheirReceives) {
  const auto side = [](int peer) {
    return std::vector<Step>{send(peer, in(0, 1)), wait(0), recv_reduce(peer, in(0, 1), out(0, 1)), wait(2),
                             finish(out(0, 1))};
  };
  EXPECT_THAT(check_two(all_reduce_of(1), side(1), side(0)),
              Contains(std::string("rank 0, step 1 (wait 0): deadlock: waits for \"send in[0,1) to 1\", but rank 1 "
                                   "stands before its step 1 and cannot reach step 2")));
}

TEST(CheckRoutines, FindsWhatIsOnlyWrongInPlace) {
  const auto side = [](int peer) {
    return std::vector<Step>{send(peer, in(0, 1)), recv_reduce(peer, in(0, 1), out(0, 1)), wait(0), wait(1),
                             finish(out(0, 1))};
  };
  EXPECT_THAT(check_two(all_reduce_of(1), side(1), side(0)),
              Contains(std::string("in place: rank 0, step 1 (recv_reduce out[0,1) = in[0,1) + from 1): writes to "
                                   "memory that step 0 (send in[0,1) to 1) still uses")));
}

TEST(CheckRoutines, FindsMessagesThatDoNotFit) {
  EXPECT_THAT(check_two(all_reduce_of(2), {send(1, in(0, 2)), wait(0)}, {recv(0, out(0, 1)), wait(0)}),
              Contains(std::string("rank 0, step 0 (send in[0,2) to 1) does not fit rank 1, step 0 (recv out[0,1) from "
                                   "0)")));
  EXPECT_THAT(check_two(all_reduce_of(2), {send(1, in(0, 2)), wait(0)}, {}),
              Contains(std::string("rank 0, step 0 (send in[0,2) to 1): rank 1 never receives this")));
}

TEST(CheckRoutines, FindsBadForm) {
  const auto first_fault = [](std::vector<Step> steps) {
    return check_two(all_reduce_of(2), std::move(steps), {}).front();
  };
  EXPECT_THAT(first_fault({send(1, in(0, 3)), wait(0)}), HasSubstr("outside of the memory"));
  EXPECT_THAT(first_fault({send(0, in(0, 2)), wait(0)}), HasSubstr("no other rank"));
  EXPECT_THAT(first_fault({recv(1, in(0, 2)), wait(0)}), HasSubstr("writes to the input"));
  EXPECT_THAT(first_fault({wait(0)}), HasSubstr("not posted before"));
  EXPECT_THAT(first_fault({send(1, in(0, 2)), wait(0), wait(0)}), HasSubstr("a second time"));
  EXPECT_THAT(first_fault({send(1, in(0, 2))}), HasSubstr("never waited for"));
  EXPECT_THAT(first_fault({recv_reduce(1, in(0, 1), out(0, 2)), wait(0)}), HasSubstr("differ in length"));
}

TEST(CheckRoutines, FindsElementsThatAreMissingOrCountedTwice) {
  const Step copy{.act = Act::kCopy, .from = in(0, 1), .to = out(0, 1)};
  EXPECT_THAT(check_two(all_reduce_of(1), {copy, finish(out(0, 1))}, {copy}),
              Contains(HasSubstr("finishes element 0 of rank 0")));
  EXPECT_THAT(check_two(all_reduce_of(1), {copy}, {copy}),
              Contains(std::string(
                  "rank 0: out[0] ends as element 0 of rank 0, not as the finished element 0 of all 2 ranks")));
  const Slice own_scratch{Space::kScratch, 0, 1};
  const Step keep{.act = Act::kCopy, .from = in(0, 1), .to = own_scratch};
  const Step add{.act = Act::kReduce, .from = own_scratch, .to = out(0, 1)};
  EXPECT_THAT(check_two(all_reduce_of(1), {keep, copy, add}, {}, 1),
              Contains(HasSubstr("combines element 0 of rank 0 with element 0 of rank 0")));
}

TEST(CheckRoutines, FindsResultsThatRanksCombineInDifferentOrders) {
  // Three ranks: rank 0 makes (0+1)+2, the others 0+(1+2). Equal in exact arithmetic only.
  const auto shapes = plain_shapes(Collective::kAllReduce, 3, 1);
  const Slice x = in(0, 1), y = out(0, 1), z{Space::kScratch, 0, 1};
  const std::vector<Routine> routines{{{recv_reduce(1, x, z), send(1, x), wait(0), recv_reduce(2, z, y), send(2, x),
                                        wait(1), wait(3), wait(4), finish(y)},
                                       1},
                                      {{recv_reduce(2, x, z), send(0, x), wait(0), recv_reduce(0, z, y), send(2, x),
                                        wait(1), wait(3), wait(4), finish(y)},
                                       1},
                                      {{recv_reduce(1, x, z), send(1, x), wait(0), recv_reduce(0, z, y), send(0, x),
                                        wait(1), wait(3), wait(4), finish(y)},
                                       1}};
  EXPECT_THAT(check_routines(shapes, routines), Contains(HasSubstr("rank 1: out[0] ends as")));
  EXPECT_THAT(check_routines(shapes, routines), Contains(HasSubstr("combined in the order of rank 0")));
}

TEST(CheckRoutines, FindsABarrierThatLetsSomeoneThrough) {
  const Slice nothing{};
  const auto faults = check_two(plain_shapes(Collective::kBarrier, 2, 0).front(), {send(1, nothing), wait(0)},
                                {recv(0, nothing), wait(0)});
  EXPECT_THAT(faults, testing::ElementsAre("rank 0: leaves the barrier without having heard of rank 1"));
}

}  // namespace
}  // namespace trireme::comm
