#include "trireme/spec/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/spec/batch_split.h"
#include "trireme/spec/parameters.h"

namespace trireme::spec {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> refused_by(const RunSetup& run) {
  std::vector<std::string> names;
  for (const Refusal& refusal : find_refusals(run)) names.emplace_back(refusal.rule->name);
  return names;
}

/// Eight sequences of 16 tokens through two stages.
RunSetup two_stages() {
  RunSetup run{.shape = family_shape(Family::kLlama), .seq_len = 16, .rows = {}, .ranks = 2};
  run.recipe.model.family = Family::kLlama;
  run.recipe.data.seq_len = 16;
  run.recipe.batch.global_batch_tokens = 128;
  run.recipe.layout.pp = 2;
  run.recipe.train.steps = 10;
  run.shape.tied = false;
  return run;
}

TEST(Rules, AskTheScheduleOnlyForItsTraits) {
  RunSetup run = two_stages();
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.schedule.asynchronous = true;
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.shape.tied = true;
  EXPECT_THAT(refused_by(run), IsEmpty()) << "shared weights are summed late";
  run.schedule.waves = true;
  run.recipe.optim.kind = OptimizerKind::kSgd;
  run.recipe.optim.momentum = run.recipe.optim.weight_decay = run.recipe.optim.grad_clip_norm = 0;
  EXPECT_THAT(refused_by(run), ElementsAre("waves-share-no-weights"));
  run = two_stages();
  run.schedule.updates_every_micro = true;
  EXPECT_THAT(refused_by(run), IsEmpty()) << "a step is one micro-batch by itself";
  run.recipe.train.micro_batch_size = 4;
  EXPECT_THAT(refused_by(run), IsEmpty()) << "gradients of several add up";
  run.schedule.prediction = ScheduleTraits::Prediction::kMomentum;
  run.recipe.optim.kind = OptimizerKind::kSgd;
  run.recipe.optim.momentum = 0.9;
  EXPECT_THAT(refused_by(run), ElementsAre("predicts-each-micro"));
  run = two_stages();
  run.schedule.refuses = [](int micros, int) { return micros < 9 ? std::string("too few") : std::string(); };
  const auto refusals = find_refusals(run);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_EQ(refusals[0].problem.hint, "set batch.global_batch_tokens = 144 (9 sequences, 9 micro-batches)");
}

/// In 256 parts of the budget, rounded up: what nn::plan_within() finds a plan for.
TEST(Rules, ABudgetHoldsABlockAndAnInput) {
  RunSetup run = two_stages();
  run.shape.num_layers = 4;
  run.recipe.train.recompute = RecomputeKind::kBudget;
  run.recipe.train.micro_batch_size = 1;
  run.block_bytes = [](const Recipe&, bool) { return BlockBytes{.saved = 1e9, .input = 1e8}; };
  run.recipe.train.recompute_gb = 1.12;
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.recipe.train.recompute_gb = 1.1;  // 233 parts and 24, of 256
  const auto refusals = find_refusals(run);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_EQ(refusals[0].rule->name, "budget-holds-a-block");
  EXPECT_EQ(refusals[0].problem.hint, "set train.recompute_gb = 1.11, or a smaller train.micro_batch_size");
  run.recipe.train.recompute_gb = 1.11;
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.recipe.train.recompute_gb = 1.1;
  run.recipe.layout.pp = 4, run.ranks = 4;  // a block each: no other's input waits
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.shape.num_layers = 8;
  run.recipe.pipeline.virtual_stages = 2;
  EXPECT_THAT(refused_by(run), ElementsAre("budget-holds-a-block")) << "chunks of a rank share it";
}

/// An encoder's blocks that save a quarter of a decoder's: of two and two, a fifth of the budget is for the encoder's.
TEST(Rules, ABudgetIsSharedByAnEncoderAndADecoder) {
  RunSetup run = two_stages();
  run.recipe.layout.pp = 1, run.ranks = 1;
  run.shape.num_layers = run.shape.num_encoder_layers = 2;
  run.recipe.train.recompute = RecomputeKind::kBudget;
  run.recipe.train.micro_batch_size = 1;
  run.block_bytes = [](const Recipe&, bool encoder) {
    return encoder ? BlockBytes{.saved = 0.25e9, .input = 0} : BlockBytes{.saved = 1e9, .input = 0};
  };
  run.recipe.train.recompute_gb = 1.3;
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.recipe.train.recompute_gb = 1.2;  // of which 0.24 and 0.96
  const auto refusals = find_refusals(run);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_EQ(refusals[0].rule->name, "budget-holds-a-block");
  EXPECT_THAT(refusals[0].problem.reason, testing::HasSubstr("other stack"));
}

TEST(Rules, LookAtEveryBatchOfTheRun) {
  RunSetup run = two_stages();
  run.recipe.batch.kind = BatchKind::kRamp;
  run.recipe.batch.start = 32;
  run.recipe.batch.over = 1000;
  run.recipe.batch.multiple = 16;
  run.recipe.train.steps = 100;
  EXPECT_THAT(refused_by(run), IsEmpty());
  run.schedule.refuses = [](int micros, int) { return micros == 5 ? std::string("not five") : std::string(); };
  EXPECT_THAT(refused_by(run), ElementsAre("schedule-is-defined"));
  run.schedule = {};
  run.recipe.batch.multiple = 8;
  EXPECT_THAT(refused_by(run), ElementsAre("batch-is-whole-rows"));
  run.recipe.train.steps = 1;  // which takes two whole rows
  EXPECT_THAT(refused_by(run), IsEmpty());
}

TEST(Rules, AreDividedByWhatTheyNeed) {
  RunSetup run = two_stages();
  run.recipe.train.steps.reset();
  run.recipe.layout.sequence_parallel = true;
  run.ranks = 3;
  EXPECT_THAT(refused_by(run), ElementsAre("sequence-parallel-without-tp", "ranks-are-replicas", "run-has-length"));
  EXPECT_EQ(find_refusals(run, RuleNeeds::kRecipe, RuleNeeds::kRecipe).size(), 1U);
  EXPECT_EQ(find_refusals(run, RuleNeeds::kLayout, RuleNeeds::kLayout).size(), 1U);
  EXPECT_EQ(find_refusals(run, RuleNeeds::kLayout).size(), 2U);
}

TEST(BatchSplit, SharesAreNeighboursAndCoverAllRows) {
  for (const std::int64_t rows : {0, 1, 7, 12}) {
    for (const int ranks : {1, 2, 5}) {
      for (const bool weighted : {false, true}) {
        std::vector<double> weights;
        for (int rank = 0; weighted && rank < ranks; ++rank) weights.push_back(1 + rank);
        std::int64_t next = 100, most = 1;
        for (int rank = 0; rank < ranks; ++rank) {
          const RowRange share = share_of_rows(100, rows, rank, ranks, weights);
          EXPECT_EQ(share.first, next);
          next += share.count;
          most = std::max(most, count_micros(share.count, 2));
        }
        EXPECT_EQ(next, 100 + rows);
        EXPECT_EQ(most_micros(rows, ranks, weights, 2), most);
      }
    }
  }
}

TEST(BatchSplit, MicroBatchesAreEqualWhereMoreAreAskedFor) {
  EXPECT_THAT(micro_sizes(5, 2), ElementsAre(2, 2, 1));
  EXPECT_THAT(micro_sizes(5, 2, 3), ElementsAre(2, 2, 1));
  EXPECT_THAT(micro_sizes(5, 2, 4), ElementsAre(1, 1, 1, 2));
  EXPECT_THAT(micro_sizes(2, 0, 3), ElementsAre(1, 1, 0));
  EXPECT_THAT(micro_sizes(0, 2, 2), ElementsAre(0, 0));
  EXPECT_THAT(micro_sizes(0, 2), IsEmpty());
}

/// Each family's list has as many elements as are counted of it.
TEST(Parameters, AddUpToTheCount) {
  for (const auto& [name, family] : enum_names(std::type_identity<Family>())) {
    for (const bool tied : {false, true}) {
      ModelShape shape = family_shape(family);
      shape.tied = tied;
      std::int64_t elements = 0;
      for (const ParameterShape& one : list_parameters(shape))
        elements += one.rows * std::max<std::int64_t>(1, one.columns);
      EXPECT_EQ(elements, count_parameters(shape).total()) << name;
    }
  }
}

}  // namespace
}  // namespace trireme::spec
