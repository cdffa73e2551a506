#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run.h"
#include "trireme/base/data_files.h"
#include "trireme/data/shard_writer.h"

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
                               "--set", "optim.beta1=2", "--set", "layout.zero_group=3", "--set", "train.steps="});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("3 does not divide the model's 4 heads (1, 2, 4 do) -> set layout.tp = 2"));
  EXPECT_THAT(outcome.err, HasSubstr("optim.beta1"));
  EXPECT_THAT(outcome.err, HasSubstr("train.steps"));
  const Outcome fixed = run({"check", tiny(), "--ranks", "12", "--set", "layout.tp=2", "--set", "layout.pp=2", "--set",
                             "layout.zero_group=3"});
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

/// The words of the problems under `key`.
std::string said_of(const std::string& key, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "check");
  arguments.emplace_back("--json");
  const json result = json::parse(run(arguments).out);
  std::string said;
  for (const json& problem : result.at("problems")) {
    if (problem.at("key") == key)
      said += problem.at("reason").get<std::string>() + " -> " + problem.at("fix").get<std::string>();
  }
  return said;
}

/// tiny.toml on shards in place of its synthetic task; the path of the file.
std::string tiny_on(const std::string& shards) {
  std::ifstream file(tiny());
  std::string text, line;
  while (std::getline(file, line)) {
    if (!line.starts_with("synthetic.")) text += line + "\n";
  }
  const std::string path = fmt::format("{}tiny_on_shards_{}.toml", testing::TempDir(), ::getpid());
  std::ofstream(path) << text << "[[data.sources]]\npath = \"" << shards << "\"\n";
  return path;
}

/// Stages of which two are about as slow: the one that leads a few steps is not the one that many steps wait for.
TEST(Check, TimesAsynchronousStagesThatRecompute) {
  const std::string recipe = (data_folders().front() / "verify-tiny.toml").string();
  for (const char* kind : {"pipedream", "pipedream-vsync", "pipedream-2bw", "xpipe", "stale"}) {
    std::vector<std::string> words = {
        "check", recipe, "--no-files", "--ranks", "8", "--set", fmt::format("pipeline.schedule={}", kind)};
    for (const char* set : {"layout.pp=4", "train.recompute=stage", "train.micro_batch_size=2", "data.seq_len=32",
                            "model.head_dim=16", "model.hidden_size=128", "batch.global_batch_tokens=512"})
      words.insert(words.end(), {"--set", set});
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << kind << ": " << outcome.err;
  }
}

/// Everything that a run would stop at in its first second.
TEST(Check, OpensWhatTheRunWouldOpen) {
  EXPECT_THAT(said_of("train.steps", {tiny(), "--set", "train.steps="}), HasSubstr("how long to train"));
  EXPECT_THAT(said_of("data", {tiny(), "--set", "data.synthetic.kind=", "--set", "data.synthetic.vocab_size=16"}),
              HasSubstr("names no data"));
  EXPECT_THAT(said_of("data.tokenizer", {tiny(), "--set", "data.tokenizer=nowhere/tokenizer.json"}),
              HasSubstr("nowhere/tokenizer.json"));
  EXPECT_THAT(said_of("layout.tp", {tiny(), "--ranks", "3", "--set", "layout.tp=3"}), HasSubstr("4 heads"));
  EXPECT_THAT(said_of("batch.global_batch_tokens", {tiny(), "--set", "batch.global_batch_tokens=1000"}),
              HasSubstr("set batch.global_batch_tokens = 960"));
  EXPECT_THAT(said_of("data.sources", {tiny_on("nowhere/shards")}), HasSubstr("nowhere/shards"));
  const Outcome elsewhere = run({"check", tiny(), "--no-files", "--set", "data.tokenizer=nowhere/tokenizer.json"});
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
  EXPECT_THAT(elsewhere.out, HasSubstr("if its files are fine"));
}

TEST(Check, SeesAVocabularyThatTheShardsExceed) {
  const std::string folder = fmt::format("{}check_shards_{}", testing::TempDir(), ::getpid());
  std::filesystem::create_directories(folder);
  data::ShardWriter writer(folder + "/a.shard", {.vocab_size = 100});
  writer.add_document(std::vector<std::int32_t>(500, 70));
  writer.finish();
  const std::string recipe = tiny_on(folder);
  EXPECT_THAT(said_of("data.sources", {recipe, "--set", "data.validation_fraction=0", "--set", "eval.every=0"}),
              HasSubstr("has 100 tokens, but model.vocab_size = 32"));
  const Outcome wider = run({"check", recipe, "--set", "model.vocab_size=100", "--set", "data.validation_fraction=0",
                             "--set", "eval.every=0"});
  EXPECT_EQ(wider.code, 0) << wider.err;
  std::filesystem::remove_all(folder);
}

TEST(Check, JudgesMemoryOnlyWhereTheClusterIsNamed) {
  const std::string big = find_data_file("models", "llama3-8b").string();
  const std::vector<std::string> task{"check",     big,
                                      "--ranks",   "8",
                                      "--set",     "data.seq_len=8192",
                                      "--set",     "batch.global_batch_tokens=262144",
                                      "--set",     "train.steps=10",
                                      "--no-files"};
  std::vector<std::string> named = task;
  named.insert(named.end(), {"--cluster", "dgx-h100"});
  const Outcome unnamed = run(task);
  EXPECT_EQ(unnamed.code, 0);
  EXPECT_THAT(unnamed.out, HasSubstr("but not on this machine: its 8 ranks would take"));
  EXPECT_THAT(run({"check", tiny()}).out,
              testing::AllOf(HasSubstr("\nit can run\n"), HasSubstr("a step predicted on 1 x")));
  const Outcome full = run(named);
  EXPECT_EQ(full.code, kExitUsage);
  EXPECT_THAT(full.out, HasSubstr("peak memory of each rank"));  // the figures are shown all the same
  EXPECT_THAT(full.err, HasSubstr("-> set "));
  EXPECT_THAT(run({"check", big, "--cluster", "dgx-h10"}).err, HasSubstr("did you mean \"dgx-h100\""));
}

}  // namespace
}  // namespace trireme::cli
