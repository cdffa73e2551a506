#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/run.h"
#include "tests/files.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

/// Megatron SC'21, table 2: 174.6B on 1,536 A100.
std::vector<std::string> row_of_a_paper() {
  return {"estimate", "--cluster",
          "selene",   "--family",
          "gpt",      "--num-layers",
          "96",       "--hidden-size",
          "12288",    "--num-heads",
          "96",       "--vocab-size",
          "51200",    "--seq-len",
          "2048",     "--tp",
          "8",        "--pp",
          "12",       "--dp",
          "16",       "--micro-batch-size",
          "1",        "--global-batch-size",
          "1536",     "--recompute",
          "full",     "--precision",
          "fp16",     "--zero",
          "0",        "--sequence-parallel",
          "off",      "--attention",
          "unfused",  "--software",
          "megatron", "--offload",
          "none",     "--schedule",
          "1f1b",     "--json"};
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Estimate, OfATableRowIsJsonAloneWithThePromisedFields) {
  const Outcome outcome = run(row_of_a_paper());
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  for (const char* field : {"step_seconds", "tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "memory_bytes_peak"})
    EXPECT_TRUE(result.at(field).is_number()) << field;
  EXPECT_TRUE(result.at("fits").get<bool>());
  EXPECT_NEAR(result.at("hardware_tflops_per_gpu").get<double>(), 141, 0.12 * 141);
  // Given flags are not chosen; the rest is, and says so.
  EXPECT_FALSE(result.at("chosen").contains("tp"));
  EXPECT_FALSE(result.at("chosen").contains("schedule"));
  EXPECT_TRUE(result.at("chosen").contains("split"));
}

TEST(Estimate, WhatDoesNotFitStillHasItsFigures) {
  const Outcome outcome = run({"estimate", "--cluster", "selene", "--model", "gpt3-175b", "--tp", "1", "--pp", "1",
                               "--dp", "1", "--global-batch-size", "1", "--offload", "none", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_FALSE(result.at("fits").get<bool>());
  EXPECT_GT(result.at("memory_bytes_peak").get<double>(), 2e12);
  EXPECT_GT(result.at("step_seconds").get<double>(), 0);
}

TEST(Estimate, TellsEveryContradiction) {
  const Outcome outcome = run(with(row_of_a_paper(), {"--gpus", "1000"}));
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_TRUE(outcome.out.empty());
  EXPECT_THAT(outcome.err, HasSubstr("tp 8 x pp 12 x dp 16 x cp 1 = 1536, but there are 1000"));
  EXPECT_THAT(outcome.err, HasSubstr("--gpus 1536"));
}

TEST(Estimate, UnknownNamesAreAnsweredWithNearOnes) {
  EXPECT_THAT(run({"estimate", "--cluster", "selena", "--model", "gpt3-175b"}).err,
              HasSubstr("did you mean \"selene\""));
  EXPECT_THAT(run({"estimate", "--cluster", "selene", "--model", "gpt3-175"}).err,
              HasSubstr("did you mean \"gpt3-175b\""));
  EXPECT_THAT(run({"estimate", "--cluster", "selene"}).err, HasSubstr("no model is given"));
  EXPECT_THAT(run({"estimate", "--cluster", "selene", "--model", "gpt3-175b", "--recompute", "ful"}).err,
              HasSubstr("did you mean \"full\""));
  EXPECT_EQ(run({"estimate", "--cluster", "selene", "--model", "gpt3-175b", "--gpus", "0"}).code, kExitUsage);
}

TEST(Estimate, ADeviceWithoutTheUnitsSaysWhichItHas) {
  const Outcome outcome =
      run({"estimate", "--cluster", "dgx2-v100", "--model", "gpt2-1.5b", "--gpus", "16", "--precision", "bf16"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("--precision fp16"));
  EXPECT_EQ(run({"estimate", "--cluster", "dgx2-v100", "--model", "gpt2-1.5b", "--gpus", "16"}).code, 0);
}

TEST(Plan, OfLlama405BIsAtLeastAsGoodAsThePublishedLayout) {
  const std::vector<std::string> task{"--model", "llama3-405b", "--cluster", "llama3-h100-16k", "--global-batch-size",
                                      "2048",    "--json"};
  const Outcome best = run(with({"plan"}, task));
  const Outcome published =
      run(with(with({"estimate"}, task), {"--tp", "8", "--pp", "16", "--dp", "128", "--cp", "1", "--zero", "2"}));
  ASSERT_EQ(best.code, 0) << best.err;
  ASSERT_EQ(published.code, 0) << published.err;
  EXPECT_LE(json::parse(best.out).at("step_seconds").get<double>(),
            json::parse(published.out).at("step_seconds").get<double>());
}

TEST(Plan, SaysWhyTheOthersLost) {
  const Outcome outcome = run({"plan", "--model", "llama3-70b", "--cluster", "dgx-h100", "--gpus", "64"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("why the others lost"));
  EXPECT_THAT(outcome.out, HasSubstr("does not fit in memory"));
  EXPECT_THAT(outcome.out, HasSubstr("% slower, most of it in"));
}

TEST(Plan, TooLittleMemoryNamesWhatIsNeededAndWhatFits) {
  const Outcome outcome = run({"plan", "--model", "llama3-405b", "--cluster", "dgx-h100", "--gpus", "16"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("needs at least"));
  EXPECT_THAT(outcome.err, HasSubstr("your 16 x 80 GiB hold 1.25 TiB"));
  EXPECT_THAT(outcome.err, HasSubstr("nearest that fits: --gpus"));
}

TEST(Plan, TheSmallestClusterKeepsTheDeadline) {
  const std::vector<std::string> task{"plan",     "--model", "llama3-8b",   "--cluster", "dgx-h100", "--gpus", "1024",
                                      "--tokens", "1T",      "--objective", "smallest",  "--json",   "--days"};
  const Outcome month = run(with(task, {"30"})), year = run(with(task, {"365"}));
  ASSERT_EQ(month.code, 0) << month.err;
  ASSERT_EQ(year.code, 0) << year.err;
  EXPECT_LT(json::parse(year.out).at("gpus").get<int>(), json::parse(month.out).at("gpus").get<int>());
  EXPECT_EQ(run(with(task, {"0.001"})).code, kExitUsage);
}

TEST(Plan, ItsRecipeIsFineAndGivesTheSameEstimate) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("trireme_planned_" + std::to_string(::getpid()) + ".toml")).string();
  const Outcome planned = run({"plan", "--model", "llama3-70b", "--cluster", "dgx-h100", "--gpus", "64",
                               "--global-batch-size", "256", "--write", path, "--json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  // For the hardware that it was planned for; what to train on is the user's to say.
  const std::string text = read_all(path);
  EXPECT_THAT(text, HasSubstr("device = \"cuda\""));
  EXPECT_THAT(text, HasSubstr("trireme check FILE --ranks 64 --cluster dgx-h100\n"));
  EXPECT_THAT(run({"check", path, "--no-files"}).out, HasSubstr("time      not predicted: the recipe is for GPUs"));
  EXPECT_THAT(text, HasSubstr("# Required: what to train on."));
  EXPECT_THAT(text, HasSubstr("# [[data.sources]]"));
  EXPECT_THAT(text, HasSubstr("[data.synthetic]\n# kind = (unset)"));
  const Outcome checked = run({"check", path, "--cluster", "dgx-h100", "--no-files"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  const Outcome again = run({"estimate", path, "--cluster", "dgx-h100", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_NEAR(json::parse(again.out).at("step_seconds").get<double>(),
              json::parse(planned.out).at("step_seconds").get<double>(), 1e-9);
  std::filesystem::remove(path);
}

/// Longer sequences than the model's own: the recipe's model takes them.
TEST(Plan, OfLongerSequencesWritesARecipeThatTakesThem) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("trireme_longer_" + std::to_string(::getpid()) + ".toml")).string();
  const Outcome planned = run({"plan", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "16", "--seq-len", "16384",
                               "--global-batch-size", "32", "--write", path});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Outcome checked = run({"check", path, "--cluster", "dgx-h100", "--no-files"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  std::filesystem::remove(path);
}

TEST(Plan, TakesAModelWithoutAFlag) {
  const std::vector<std::string> rest{"--cluster", "dgx-h100", "--gpus", "16", "--global-batch-size", "64", "--json"};
  const Outcome plain = run(with({"plan", "llama3-8b"}, rest)),
                flagged = run(with({"plan", "--model", "llama3-8b"}, rest));
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(plain.out, flagged.out);
}

TEST(Plan, MoreDevicesThanTheClusterHasAreRefused) {
  const Outcome outcome = run({"plan", "llama3-8b", "--cluster", "h200", "--gpus", "128"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("128 devices are asked for, but cluster h200 has 8"));
  EXPECT_THAT(outcome.err, HasSubstr("use --gpus 8"));
}

TEST(Plan, AndItsExplanationNameTheSameBest) {
  const std::vector<std::string> task{"--model", "llama3-8b",           "--cluster", "dgx-h100", "--gpus",
                                      "64",      "--global-batch-size", "256",       "--json"};
  const Outcome plan = run(with({"plan"}, task)), explained = run(with({"plan", "explain"}, task));
  ASSERT_EQ(plan.code, 0) << plan.err;
  ASSERT_EQ(explained.code, 0) << explained.err;
  EXPECT_EQ(json::parse(plan.out).at("layout"), json::parse(explained.out).at("best"));
  EXPECT_EQ(json::parse(plan.out).at("step_seconds"), json::parse(explained.out).at("step_seconds"));
  // A layout has one time wherever it is told, though the search orders by closed forms.
  const json told = json::parse(plan.out);
  std::map<std::string, json> seconds;
  int twice = 0;
  for (const char* table : {"best", "pareto"}) {
    for (const json& row : told.at(table)) {
      const auto [found, is_new] = seconds.try_emplace(row.at("layout").dump(), row.at("step_seconds"));
      EXPECT_EQ(found->second, row.at("step_seconds")) << row.at("layout");
      twice += is_new ? 0 : 1;
    }
  }
  EXPECT_GT(twice, 0);
  // The front begins with it, and each row has less memory for more time.
  const json front = json::parse(plan.out).at("pareto");
  EXPECT_EQ(front[0].at("layout"), json::parse(plan.out).at("layout"));
  for (std::size_t row = 1; row < front.size(); ++row) {
    EXPECT_GE(front[row].at("step_seconds").get<double>(), front[row - 1].at("step_seconds").get<double>());
    EXPECT_LT(front[row].at("memory_bytes_peak").get<double>(), front[row - 1].at("memory_bytes_peak").get<double>());
  }
}

TEST(Plan, ShowsTenRowsOfTheFront) {
  const std::vector<std::string> task{"plan", "gpt3-175b", "--cluster", "selene", "--gpus", "512"};
  const auto rows = [](const std::string& text) {
    int found = 0;
    for (std::size_t at = text.find("less memory for more time"); at != std::string::npos; ++found)
      at = text.find(", micro-batch ", at + 1);
    return found - 1;  // of layouts, after the title
  };
  const Outcome ten = run(task), more = run(with(task, {"--pareto", "1000"}));
  ASSERT_EQ(ten.code, 0) << ten.err;
  EXPECT_EQ(rows(ten.out), 10) << ten.out;
  EXPECT_THAT(ten.out, HasSubstr("--pareto N shows more"));
  EXPECT_GT(rows(more.out), 10);
  EXPECT_THAT(ten.out, HasSubstr("TiB"));
}

TEST(Cluster, ANameThatSeveralBeginWithNamesThem) {
  const Outcome outcome = run({"plan", "llama3-8b", "--cluster", "dgx"});
  EXPECT_EQ(outcome.code, kExitUsage);
  for (const char* name : {"dgx-h100", "dgx-b200", "dgx2-v100"}) EXPECT_THAT(outcome.err, HasSubstr(name));
  EXPECT_THAT(run({"plan", "llama3-8b", "--cluster", "h100"}).err,
              testing::AllOf(HasSubstr("dgx-h100"), HasSubstr("llama3-h100-16k")));
}

TEST(ValidatePlanner, PrintsEveryRunAndTheMedian) {
  const Outcome outcome = run({"validate-planner"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("megatron-sc21-t1-1008.0B"));
  EXPECT_THAT(outcome.out, HasSubstr("median |error|"));
  const Outcome unknown = run({"validate-planner", "--fit", "b200"});
  EXPECT_EQ(unknown.code, kExitUsage);
}

}  // namespace
}  // namespace trireme::cli
