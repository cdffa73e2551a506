#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/run.h"
#include "trireme/base/log.h"
#include "trireme/data/token_file.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Tokenize : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trireme_cli_tokenize_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream text(at("books.txt"));
    for (int i = 0; i < 200; ++i) text << "the theory of the other thing " << i << "\n";
  }
  void TearDown() override {
    set_log_level(LogLevel::kInfo);
    fs::remove_all(folder_);
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST_F(Tokenize, LearnsATokenizerAndMakesShardsWithIt) {
  const Outcome trained = run({"-q", "tokenize", "train", at("books.txt"), "--split", "lines", "--vocab-size", "275",
                               "--pattern", "llama3", "--bos", "<s>", "-o", at("t.json")});
  ASSERT_EQ(trained.code, kExitFine) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("275 tokens from"));
  const std::vector<std::string> make{"-q",         "tokenize", at("books.txt"), "--split",      "lines", "--tokenizer",
                                      at("t.json"), "--out",    at("shards"),    "--shard-size", "2K",    "--threads",
                                      "2"};
  const Outcome made = run(make);
  ASSERT_EQ(made.code, kExitFine) << made.err;
  EXPECT_THAT(made.out, HasSubstr("tokens of 200 documents in 4 shards"));
  EXPECT_THAT(run(make).out, HasSubstr("4 were there already"));
  const data::TokenFile shard(at("shards/00000.shard"));
  EXPECT_EQ(shard.info().vocab_size, 275);
  EXPECT_NO_THROW(shard.verify());
}

TEST_F(Tokenize, SaysWhatItNeeds) {
  const Outcome nothing = run({"tokenize"});
  EXPECT_EQ(nothing.code, kExitUsage);
  EXPECT_THAT(nothing.err, HasSubstr("needs text, --tokenizer and --out"));
  EXPECT_THAT(run({"tokenize", at("books.txt"), "--tokenizer", "no.json", "--out", at("x")}).err,
              HasSubstr("there is no tokenizer no.json"));
  EXPECT_THAT(run({"tokenize", "train", at("books.txt"), "--vocab-size", "9", "-o", at("t.json")}).err,
              HasSubstr("ask for 257 or more"));
  EXPECT_THAT(run({"tokenize", "train", "-o", at("t.json")}).err, HasSubstr("FILES"));
  EXPECT_THAT(run({"tokenize", "train", at("books.txt"), "--pattern", "gpt9", "-o", at("t.json")}).err,
              HasSubstr("gpt9"));
}

}  // namespace
}  // namespace trireme::cli
