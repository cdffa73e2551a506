#include "trireme/experiment/rungs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::experiment {
namespace {

using ::testing::ElementsAre;

std::vector<int> trials_of(const Bracket& bracket) {
  std::vector<int> out;
  for (const Rung& rung : bracket) out.push_back(rung.trials);
  return out;
}

TEST(Hyperband, HasThePapersBrackets) {
  const std::vector<Bracket> brackets = hyperband_brackets(/*max_steps=*/81, /*min_steps=*/1, /*divisor=*/3);
  ASSERT_EQ(brackets.size(), 5U);
  EXPECT_EQ(brackets[0].front(), (Rung{81, 1}));
  EXPECT_EQ(brackets[1].front(), (Rung{34, 3}));
  EXPECT_EQ(brackets[2].front(), (Rung{15, 9}));
  EXPECT_EQ(brackets[3].front(), (Rung{8, 27}));
  EXPECT_EQ(brackets[4].front(), (Rung{5, 81}));
  EXPECT_THAT(trials_of(brackets[0]), ElementsAre(81, 27, 9, 3, 1));
  EXPECT_THAT(trials_of(brackets[1]), ElementsAre(34, 11, 3, 1));
  EXPECT_THAT(trials_of(brackets[2]), ElementsAre(15, 5, 1));
  EXPECT_THAT(trials_of(brackets[3]), ElementsAre(8, 2));
  EXPECT_THAT(trials_of(brackets[4]), ElementsAre(5));
  for (const Bracket& bracket : brackets) EXPECT_EQ(bracket.back().steps, 81);
}

TEST(Hyperband, CountsItsBracketsInWholeNumbers) {
  // log(243) / log(3) and log(125) / log(5) are a little below 5 and 3 in doubles.
  EXPECT_EQ(hyperband_brackets(243, 1, 3).size(), 6U);
  EXPECT_EQ(hyperband_brackets(125, 1, 5).size(), 4U);
  EXPECT_EQ(hyperband_brackets(80, 1, 3).size(), 4U);
  EXPECT_EQ(hyperband_brackets(810, 10, 3), [] {
    auto brackets = hyperband_brackets(81, 1, 3);
    for (Bracket& bracket : brackets) {
      for (Rung& rung : bracket) rung.steps *= 10;
    }
    return brackets;
  }());
  EXPECT_EQ(hyperband_brackets(1, 1, 3), (std::vector<Bracket>{{{1, 1}}}));
}

TEST(Asha, RungsGrowByTheDivisor) {
  EXPECT_THAT(asha_rungs(1024, 1, 4, 5), ElementsAre(4, 16, 64, 256, 1024));
  EXPECT_THAT(asha_rungs(200, 1, 4, 5), ElementsAre(3, 12, 50, 200)) << "fewer where the steps do not suffice";
  EXPECT_THAT(asha_rungs(200, 10, 4, 5), ElementsAre(12, 50, 200));
  EXPECT_THAT(asha_rungs(3, 1, 4, 5), ElementsAre(3));
  EXPECT_THAT(asha_rungs(100, 100, 4, 5), ElementsAre(100));
}

TEST(Asha, ATrialGoesOnAmongTheBestDivisorth) {
  EXPECT_TRUE(goes_on(0, 1, 4)) << "the first always";
  EXPECT_FALSE(goes_on(1, 2, 4));
  EXPECT_FALSE(goes_on(1, 7, 4));
  EXPECT_TRUE(goes_on(1, 8, 4));
  EXPECT_FALSE(goes_on(2, 8, 4));
}

TEST(AdaptiveAsha, SharesTrialsAsDeterminedDoes) {
  EXPECT_THAT(bracket_trials(20, 3, {3, 2, 1}), ElementsAre(12, 5, 3));
  EXPECT_THAT(bracket_trials(50, 3, {4, 3}), ElementsAre(35, 15));
  EXPECT_THAT(bracket_trials(50, 4, {3, 2}), ElementsAre(37, 13));
  EXPECT_THAT(bracket_trials(100, 4, {4, 3, 2}), ElementsAre(70, 22, 8));
  EXPECT_THAT(bracket_concurrency(11, 3), ElementsAre(4, 4, 3));
  EXPECT_THAT(bracket_concurrency(2, 3), ElementsAre(1, 1, 1));
}

TEST(AdaptiveAsha, ModesChooseTheBrackets) {
  EXPECT_THAT(bracket_rungs(Mode::kStandard, 5), ElementsAre(5, 4, 3));
  EXPECT_THAT(bracket_rungs(Mode::kStandard, 4), ElementsAre(4, 3, 2));
  EXPECT_THAT(bracket_rungs(Mode::kAggressive, 5), ElementsAre(5));
  EXPECT_THAT(bracket_rungs(Mode::kConservative, 3), ElementsAre(3, 2, 1));
}

TEST(SuccessiveHalving, EndsWithTheWholeTraining) {
  EXPECT_EQ(halving_bracket(64, 1024, 4, 5), (Bracket{{64, 16}, {16, 64}, {4, 256}, {1, 1024}}));
  EXPECT_EQ(halving_bracket(10, 100, 4, 5), (Bracket{{10, 25}, {2, 100}}));
  EXPECT_EQ(halving_bracket(1, 100, 4, 5), (Bracket{{1, 100}}));
  EXPECT_EQ(halving_bracket(64, 3, 2, 5), (Bracket{{64, 1}, {32, 3}}));
}

}  // namespace
}  // namespace trireme::experiment
