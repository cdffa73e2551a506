#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run.h"
#include "trireme/base/data_files.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string tiny() { return (data_folders().front() / "tiny.toml").string(); }

TEST(Check, OfAFineRecipeShowsScheduleMemoryAndTime) {
  const Outcome outcome =
      run({"check", tiny(), "--ranks", "8", "--set", "layout.pp=4", "--set", "train.micro_batch_size=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("tp 1, pp 4, dp 2"));
  EXPECT_THAT(outcome.out, HasSubstr("1f1b: 64 passes and 48 messages of 8 micro-batches"));
  EXPECT_THAT(outcome.out, HasSubstr("free of deadlock"));
  EXPECT_THAT(outcome.out, HasSubstr("a step predicted on 8 x cpu-core"));
  EXPECT_THAT(outcome.out, HasSubstr("  6-7      3"));  // the last stage's ranks
  EXPECT_THAT(outcome.out, HasSubstr("it can run"));
}

TEST(Check, TellsEveryProblemAtOnceWithItsFix) {
  const Outcome outcome = run({"check", tiny(), "--ranks", "12", "--set", "layout.tp=3", "--set", "layout.pp=2",
                               "--set", "optim.beta1=2", "--set", "layout.zero_group=3"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("3 does not divide the model's 4 heads (1, 2, 4 do) -> set layout.tp = 2"));
  EXPECT_THAT(outcome.err, HasSubstr("optim.beta1"));
  EXPECT_THAT(outcome.err, HasSubstr("batch.global_batch_tokens"));
  const Outcome fixed = run({"check", tiny(), "--ranks", "12", "--set", "layout.tp=2", "--set", "layout.pp=2", "--set",
                             "layout.zero_group=3", "--set", "batch.global_batch_tokens=2112"});
  EXPECT_EQ(fixed.code, 0) << fixed.err;
}

TEST(Check, SaysAProblemOnce) {
  const Outcome outcome =
      run({"check", tiny(), "--ranks", "7", "--set", "layout.tp=2", "--set", "layout.dp=2", "--json"});
  EXPECT_EQ(outcome.code, kExitUsage);
  const json result = json::parse(outcome.out);
  EXPECT_FALSE(result.at("fine").get<bool>());
  ASSERT_EQ(result.at("problems").size(), 1) << result.dump(2);
  EXPECT_EQ(result.at("problems")[0].at("fix"), "start 6 ranks and set layout.dp = 3");
}

TEST(Check, AsJsonHasEveryRanksBytesByCategory) {
  const Outcome outcome = run({"check", tiny(), "--ranks", "4", "--set", "layout.pp=2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_TRUE(result.at("fine").get<bool>());
  EXPECT_EQ(result.at("schedule").at("complete_and_free_of_deadlock"), true);
  ASSERT_EQ(result.at("ranks").size(), 2);
  EXPECT_EQ(result.at("ranks")[1].at("first_rank"), 2);
  for (const char* part : {"weights", "gradients", "optimizer", "activations", "working", "buffers"})
    EXPECT_GE(result.at("ranks")[0].at("bytes").at(part).get<double>(), 0) << part;
  EXPECT_GT(result.at("step_seconds").get<double>(), 0);
}

TEST(Check, JudgesMemoryOnlyWhereTheClusterIsNamed) {
  const std::string big = find_data_file("models", "llama3-8b").string();
  const std::vector<std::string> task{
      "check", big, "--ranks", "8", "--set", "data.seq_len=8192", "--set", "batch.global_batch_tokens=262144"};
  std::vector<std::string> named = task;
  named.insert(named.end(), {"--cluster", "dgx-h100"});
  EXPECT_EQ(run(task).code, 0);
  const Outcome full = run(named);
  EXPECT_EQ(full.code, kExitUsage);
  EXPECT_THAT(full.out, HasSubstr("peak memory of each rank"));  // the figures are shown all the same
  EXPECT_THAT(full.err, HasSubstr("-> set "));
  EXPECT_THAT(run({"check", big, "--cluster", "dgx-h10"}).err, HasSubstr("did you mean \"dgx-h100\""));
}

}  // namespace
}  // namespace trireme::cli
