#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "trireme/base/text.h"
#include "trireme/cli/program.h"

namespace trireme::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kRecipes = std::string(TRIREME_RECIPES) + "/hyperparameters/";

/// The words of each line of `trireme recipe hyperparameters ...`, without the header.
std::vector<std::vector<std::string>> hyperparameters(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"recipe", "hyperparameters"});
  std::ostringstream out, err;
  EXPECT_EQ(run_program(arguments, out, err), kExitFine) << err.str();
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(out.str());
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  return rows;
}

TEST(RecipeHyperparameters, PrintsStepsTokensBatchAndRate) {
  EXPECT_THAT(hyperparameters({"--set", "lr_schedule.kind=cosine", "--set", "lr_schedule.total=100", "--set",
                               "lr_schedule.warmup=10", "--set", "optim.learning_rate=1", "--set",
                               "batch.global_batch_tokens=10", "--rows", "2"}),
              ElementsAre(ElementsAre("0", "0", "10", "0.1"), ElementsAre("10", "100", "10", "1"),
                          ElementsAre("50", "500", "10", "0.5868"), ElementsAre("100", "1k", "10", "0"),
                          ElementsAre("100", "steps", "to", "1k", "tokens")));
}

TEST(RecipeHyperparameters, ShowsGoyalsRates) {
  const auto rows = hyperparameters({kRecipes + "goyal-resnet50.toml", "--until", "115305030", "--rows", "1"});
  ASSERT_EQ(rows.size(), 7U);
  const std::vector<std::string> rates = {"0.1", "3.2", "0.32", "0.032", "0.0032", "0.0032"};
  for (std::size_t i = 0; i < rates.size(); ++i)
    EXPECT_THAT(rows[i], ElementsAre(testing::_, testing::_, "8192", rates[i]));
}

TEST(RecipeHyperparameters, ShowsSmithsBatches) {
  const auto rows = hyperparameters({kRecipes + "smith-increase.toml", "--rows", "1"});
  ASSERT_EQ(rows.size(), 6U);
  const std::vector<std::vector<std::string>> expected = {
      {"128", "0.1"}, {"640", "0.1"}, {"3200", "0.1"}, {"5120", "0.032"}, {"5120", "0.032"}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_THAT(rows[i], ElementsAre(testing::_, testing::_, expected[i][0], expected[i][1]));
  }
}

TEST(RecipeHyperparameters, ShowsGpt3sRamps) {
  const auto rows =
      hyperparameters({std::string(TRIREME_RECIPES) + "/models/gpt3-175b.toml", "--until", "300G", "--rows", "1"});
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_THAT(rows[0], ElementsAre("0", "0", "32768", "5.243e-09"));
  EXPECT_THAT(rows[1], ElementsAre(testing::_, "375M", "131072", "6e-05"));
  EXPECT_THAT(rows[2], ElementsAre(testing::_, "12.0B", "3276800", "5.973e-05"));
  EXPECT_THAT(rows[3], ElementsAre(testing::_, "260B", "3276800", "6e-06"));
  EXPECT_THAT(rows[4], ElementsAre(testing::_, "300B", "3276800", "6e-06"));
}

TEST(RecipeHyperparameters, ShowsLambsSecondStageWarmingUpAgain) {
  const auto rows = hyperparameters({kRecipes + "lamb-bert-two-stages.toml", "--rows", "1"});
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_THAT(rows[0], ElementsAre("0", "0", "65536", testing::_));
  EXPECT_THAT(rows[1], ElementsAre("1406", testing::_, "65536", "0.00707"));
  EXPECT_THAT(rows[2], ElementsAre("7026", testing::_, "32768", "1.589e-05")) << "from zero again";
  EXPECT_THAT(rows[3], ElementsAre("7341", testing::_, "32768", "0.004998"));
  EXPECT_THAT(rows[4], ElementsAre("8599", testing::_, "32768", "0"));
}

TEST(RecipeHyperparameters, ShowsLambsRates) {
  const auto rows = hyperparameters({kRecipes + "lamb-bert.toml", "--rows", "1"});
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_THAT(rows[0], ElementsAre("0", "0", "32768", "1.6e-06"));
  EXPECT_THAT(rows[1], ElementsAre("3125", testing::_, "32768", "0.005"));
  EXPECT_THAT(rows[2], ElementsAre("15625", testing::_, "32768", "0"));
}

TEST(RecipeHyperparameters, SaysWhatIsNoCount) {
  std::ostringstream out, err;
  EXPECT_EQ(run_program({"recipe", "hyperparameters", "--until", "later"}, out, err), kExitUsage);
  EXPECT_THAT(err.str(), HasSubstr("later"));
}

}  // namespace
}  // namespace trireme::cli
