#include "trireme/spec/layout_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace trireme::spec {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

struct Case {
  LayoutConfig layout;
  PipelineConfig pipeline;
  LayoutTask task;
};

/// GPT-2 124M: 12 heads of 64, inner 3072, 12 layers; 1,024 tokens, 48 rows.
Case gpt2() {
  return {
      .layout = {}, .pipeline = {}, .task = {.shape = family_shape(Family::kGpt2), .sequence = 1024, .batch_rows = 48}};
}

std::vector<config::Problem> problems_of(const Case& one) {
  return find_layout_problems(one.layout, one.pipeline, one.task);
}

auto problem(const char* key, const char* reason, const char* hint) {
  return AllOf(Field(&config::Problem::key, key), Field(&config::Problem::reason, HasSubstr(reason)),
               Field(&config::Problem::hint, hint));
}

/// Does what a hint says, by its words.
void apply(const std::string& hint, Case& to) {
  long long value = 0;
  const auto says = [&](const char* words) {
    const auto at = hint.find(words);
    return at != std::string::npos && std::sscanf(hint.c_str() + at + std::string(words).size(), "%lld", &value) == 1;
  };
  bool known = false;
  const auto take = [&](const char* words, const auto& set) {
    if (says(words)) set(), known = true;
  };
  take("layout.tp = ", [&] { to.layout.tp = static_cast<int>(value); });
  take("layout.cp = ", [&] { to.layout.cp = static_cast<int>(value); });
  take("layout.pp = ", [&] { to.layout.pp = static_cast<int>(value); });
  take("layout.dp = ", [&] { to.layout.dp = static_cast<int>(value); });
  take("layout.zero_group = ", [&] { to.layout.zero_group = static_cast<int>(value); });
  take("pipeline.virtual_stages = ", [&] { to.pipeline.virtual_stages = static_cast<int>(value); });
  take("start ", [&] { to.task.ranks = static_cast<int>(value); });
  take("batch.global_batch_tokens = ", [&] { to.task.batch_rows = value / to.task.sequence; });
  take("train.micro_batch_size = ", [&] { to.task.micro_batch_size = value; });
  if (hint.find("sequence_parallel = false") != std::string::npos) to.layout.sequence_parallel = false, known = true;
  EXPECT_TRUE(known) << "a hint that nobody can follow: " << hint;
}

TEST(LayoutCheck, AcceptsWhatDivides) {
  Case one = gpt2();
  one.layout = {.dp = 2, .tp = 4, .pp = 3, .cp = 2, .sequence_parallel = true, .cp_kind = ContextKind::kRing};
  one.task.ranks = 48;
  one.task.micro_batch_size = 24;
  EXPECT_THAT(problems_of(one), IsEmpty());
}

TEST(LayoutCheck, NamesTheHeadsAndWhatWouldDivideThem) {
  Case one = gpt2();
  one.layout.tp = 5;
  EXPECT_THAT(problems_of(one),
              ElementsAre(problem("layout.tp", "5 does not divide the model's 12 heads (1, 2, 3, 4, 6, 12 do)",
                                  "set layout.tp = 6"),
                          problem("layout.tp", "5 does not divide model.ffn_size = 3072", "set layout.tp = 6")));
}

TEST(LayoutCheck, PrefersASplitThatSuitsTheRanks) {
  Case one = gpt2();
  one.layout.tp = 5;
  one.task.ranks = 16;  // 6 would leave no whole replicas
  EXPECT_THAT(problems_of(one), testing::Contains(Field(&config::Problem::hint, "set layout.tp = 4")));
}

TEST(LayoutCheck, ReplicatesKeyHeadsOnlyEvenly) {
  Case one = gpt2();
  one.task.shape.num_kv_heads = 4;
  one.layout.tp = 12;  // three ranks for each
  EXPECT_THAT(problems_of(one), IsEmpty());
  one.layout.tp = 6;
  EXPECT_THAT(
      problems_of(one),
      ElementsAre(problem("layout.tp", "6 ranks can neither shard nor replicate the model's 4 key and value heads",
                          "set layout.tp = 4")));
}

TEST(LayoutCheck, ACausalRingTakesTwoBlocksOfEachRank) {
  Case one = gpt2();
  one.task.sequence = 1028;  // divides by 4, not by 8
  one.layout.cp = 4;
  EXPECT_THAT(problems_of(one), IsEmpty());
  one.layout.cp_kind = ContextKind::kRing;
  EXPECT_THAT(problems_of(one),
              ElementsAre(problem("layout.cp", "1028 tokens do not make 8 equal ones", "set layout.cp = 2")));
  one.task.shape.causal = false;  // nothing to balance
  EXPECT_THAT(problems_of(one), IsEmpty());
}

TEST(LayoutCheck, UlyssesSplitsTheHeadsOfARank) {
  Case one = gpt2();
  one.layout = {.tp = 2, .cp = 4, .cp_kind = ContextKind::kUlysses};
  EXPECT_THAT(
      problems_of(one),
      ElementsAre(problem(
          "layout.cp", "the 6 heads of a rank (12 / layout.tp) and its 6 key heads, which 4 does not divide (1, 2 do)",
          "set layout.cp = 2")));
}

TEST(LayoutCheck, SequenceParallelismNeedsTokensForEveryRank) {
  Case one = gpt2();
  one.task.sequence = 1026;
  one.layout = {.tp = 4, .sequence_parallel = true};
  EXPECT_THAT(problems_of(one), ElementsAre(problem("layout.sequence_parallel", "1026 tokens over layout.tp = 4",
                                                    "set layout.sequence_parallel = false")));
  one.task.sequence = 1028;
  one.layout.cp = 2;
  EXPECT_THAT(problems_of(one), ElementsAre(problem("layout.cp", "tp 4 x cp 2 = 8 must divide sequences of 1028 tokens",
                                                    "set layout.cp = 1")));
}

TEST(LayoutCheck, EndsOfTheModelMayBeChunksOfTheirOwn) {
  Case one = gpt2();
  one.layout.pp = 7;
  one.pipeline = {.schedule = "interleaved", .virtual_stages = 2};  // 14 chunks of 12 layers, embedding and head
  one.task.batch_rows = 49;
  EXPECT_THAT(problems_of(one), IsEmpty());
  one.pipeline.virtual_stages = 3;
  EXPECT_THAT(problems_of(one), ElementsAre(problem("pipeline.virtual_stages",
                                                    "pp 7 x virtual_stages 3 = 21 chunks, but the model's 12 layers",
                                                    "set pipeline.virtual_stages = 2")));
  one.layout.pp = 20;
  one.pipeline.virtual_stages = 1;
  EXPECT_THAT(problems_of(one), ElementsAre(problem("layout.pp", "20 chunks", "set layout.pp = 14")));
}

TEST(LayoutCheck, RanksAreWholeReplicas) {
  Case one = gpt2();
  one.layout = {.dp = 2, .tp = 2};
  one.task.ranks = 16;
  EXPECT_THAT(
      problems_of(one),
      ElementsAre(problem("layout.dp", "tp 2 x pp 1 x cp 1 x dp 2 = 4, but there are 16 ranks", "set layout.dp = 8")));
  one.task.ranks = 7;
  EXPECT_THAT(problems_of(one), ElementsAre(problem("layout", "= 2 ranks, which does not divide 7",
                                                    "start 6 ranks and set layout.dp = 3")));
}

TEST(LayoutCheck, ReplicasMayShareTheBatchUnevenly) {
  Case one = gpt2();
  one.layout = {.zero = 2, .zero_group = 4};
  one.task.ranks = 10;
  one.task.micro_batch_size = 8;
  EXPECT_THAT(problems_of(one),
              ElementsAre(problem("layout.zero_group", "4 does not divide the 10 data-parallel ranks (1, 2, 5, 10 do)",
                                  "set layout.zero_group = 5")));
  one.layout = {.zero = 3};  // gradients are means over tokens, whoever has how many
  EXPECT_THAT(problems_of(one), IsEmpty());
  one.layout.dp_batch_weights = {1, 2};
  EXPECT_THAT(problems_of(one),
              ElementsAre(problem("layout.dp_batch_weights", "has 2 numbers for 10 data-parallel ranks",
                                  "leave layout.dp_batch_weights out, or give one number for each")));
}

TEST(LayoutCheck, HintsTogetherLeaveNothingWrong) {
  int wrong = 0;
  for (const int tp : {1, 3, 5, 8, 16})
    for (const int cp : {1, 2, 3, 7})
      for (const int pp : {1, 4, 9, 31})
        for (const int ranks : {1, 6, 64, 97})
          for (const ContextKind kind : {ContextKind::kRing, ContextKind::kUlysses, ContextKind::kGather})
            for (const std::int64_t sequence : {1024, 1030}) {
              Case one = gpt2();
              one.layout = {
                  .dp = 3, .tp = tp, .pp = pp, .cp = cp, .zero_group = 2, .sequence_parallel = tp > 1, .cp_kind = kind};
              one.pipeline.virtual_stages = pp > 1 ? 2 : 1;
              one.task.sequence = sequence;
              one.task.ranks = ranks;
              one.task.micro_batch_size = 64;
              const auto found = problems_of(one);
              wrong += found.empty() ? 0 : 1;
              for (const config::Problem& each : found) apply(each.hint, one);
              const auto left = problems_of(one);
              EXPECT_THAT(left, IsEmpty()) << "tp " << tp << " cp " << cp << " pp " << pp << " ranks " << ranks << ": "
                                           << (left.empty() ? "" : left.front().reason + " -> " + left.front().hint);
            }
  EXPECT_GT(wrong, 100);
}

}  // namespace
}  // namespace trireme::spec
