// Every synchronous schedule computes what one rank computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "trireme/schedule/replicated.h"

namespace trireme::pipeline {
namespace {

using spec::Family;

/// Serial runs by (family, micros), made once.
const Outcome& serial(Family family, std::int64_t layers, int micros) {
  static std::map<std::tuple<Family, std::int64_t, int>, Outcome> runs;
  const auto [found, is_new] = runs.try_emplace({family, layers, micros});
  if (is_new) found->second = train_serially(small_problem(family, layers, micros));
  return found->second;
}

struct Case {
  std::string kind;
  Family family;
};

class EverySynchronousKind : public testing::TestWithParam<Case> {};

/// All numbers of ranks that the kind is defined on, with as many chunks a rank as it takes; three steps.
TEST_P(EverySynchronousKind, EqualsTheSerialRun) {
  const auto& [kind, family] = GetParam();
  int runs = 0;
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int chunks : {1, 2, 3}) {
      if (ranks * chunks > 16) continue;
      const int micros = ranks == 8 ? 16 : 2 * ranks + ranks % 2;
      const schedule::Shape shape{.ranks = ranks, .micros = micros, .chunks_per_rank = chunks};
      if (!schedule::find_kind(kind).refuses(shape).empty()) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {} chunks each, {} micros", ranks, chunks, micros));
      const std::int64_t layers = 13;  // 16 entries: with 16 chunks one each, uneven with fewer
      const Problem problem = small_problem(family, layers, micros);
      expect_equal(serial(family, layers, micros),
                   train_as_pipeline(problem, {.table = table_of(kind, shape), .ranks = ranks}), 1e-9);
      ++runs;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GE(runs, 2);
}

/// A table of several steps, where ranks begin the next step while others end the last.
TEST_P(EverySynchronousKind, EqualsTheSerialRunWithStepsInOneTable) {
  const auto& [kind, family] = GetParam();
  const schedule::Shape shape{.ranks = 4, .micros = 8, .chunks_per_rank = schedule::find_kind(kind).default_chunks};
  const Problem problem = small_problem(family, 13, 8);
  expect_equal(serial(family, 13, 8),
               train_as_pipeline(problem, {.table = table_of(kind, shape, problem.steps), .ranks = 4}), 1e-9);
}

TEST_P(EverySynchronousKind, RepeatsItselfToTheBit) {
  const auto& [kind, family] = GetParam();
  const schedule::Shape shape{.ranks = 2, .micros = 4, .chunks_per_rank = schedule::find_kind(kind).default_chunks};
  const Problem problem = small_problem(family, 5, 4);
  const Pipelined how{.table = table_of(kind, shape), .ranks = 2};
  expect_same_bits(train_as_pipeline(problem, how), train_as_pipeline(problem, how));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const schedule::Kind& kind : schedule::kinds()) {
    if (kind.asynchronous) continue;
    for (const Family family : {Family::kGpt2, Family::kLlama}) all.push_back({std::string(kind.name), family});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, EverySynchronousKind, testing::ValuesIn(cases()), [](const auto& param) {
  std::string name = param.param.kind + (param.param.family == Family::kGpt2 ? "_gpt2" : "_llama");
  std::ranges::replace(name, '-', '_');
  return name;
});

/// Stages on several ranks, which take their micros in turn.
TEST(Synchronous, StagesOnSeveralRanksEqualOneRank) {
  for (const std::vector<int>& ranks : {std::vector<int>{2, 1}, {1, 2}, {1, 2, 1}, {3, 1}, {4}}) {
    Problem problem = small_problem(spec::Family::kGpt2, 4, 6);
    int all = 0;
    for (const int of_stage : ranks) all += of_stage;
    const auto step = schedule::add_updates(schedule::replicated_1f1b(schedule::stage_ranks(ranks), problem.micros));
    expect_equal(train_serially(problem),
                 train_as_pipeline(problem, {.table = schedule::add_transfers(step), .ranks = all}), 1e-9);
  }
}

}  // namespace
}  // namespace trireme::pipeline
