// trireme tokenize and inspect on files of other kinds than plain text.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/run.h"
#include "trireme/base/log.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenizeFormats : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trireme_cli_formats_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    put("books.txt", "the theory of the other thing\n");
    put("chat.jsonl",
        R"({"messages": [{"role": "user", "content": "the thing"}, {"role": "assistant", "content": "the other"}]})");
  }
  void TearDown() override {
    set_log_level(LogLevel::kInfo);
    fs::remove_all(folder_);
  }
  void put(const std::string& name, const std::string& text) { std::ofstream(at(name), std::ios::binary) << text; }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST_F(TokenizeFormats, AChatBecomesShardsThatInspectDescribes) {
  ASSERT_EQ(run({"-q", "tokenize", "train", at("books.txt"), "--vocab-size", "265", "--special", "<|im_start|>",
                 "--special", "<|im_end|>", "--special", "<|endoftext|>", "-o", at("t.json")})
                .code,
            kExitFine);
  const Outcome made =
      run({"-q", "tokenize", at("chat.jsonl"), "--chat", "chatml", "--tokenizer", at("t.json"), "--out", at("shards")});
  ASSERT_EQ(made.code, kExitFine) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("of 1 document in 1 shard"), HasSubstr("% of them learnt")));
  const Outcome seen = run({"inspect", at("shards"), "--verify"});
  ASSERT_EQ(seen.code, kExitFine) << seen.err;
  EXPECT_THAT(seen.out, AllOf(HasSubstr("shards     1 in"), HasSubstr("mask       in 1 of 1"), HasSubstr("chat.jsonl"),
                              HasSubstr("checksums  all right")));
  EXPECT_THAT(
      run({"tokenize", at("chat.jsonl"), "--chat", "llama3", "--tokenizer", at("t.json"), "--out", at("x")}).err,
      AllOf(HasSubstr("has no token <|start_header_id|>"), HasSubstr("--chat chatml")));
}

TEST_F(TokenizeFormats, AFailureOrAnEmptyTextLeavesNothing) {
  put("empty.md", "");
  put("bad.txt.gz", "no gzip");
  for (const std::string name : {"empty.md", "bad.txt.gz"}) {
    const Outcome made = run({"-q", "tokenize", at(name), "--tokenizer", "bytes", "--out", at("shards")});
    EXPECT_NE(made.code, kExitFine);
    EXPECT_THAT(made.err, HasSubstr(name));
    EXPECT_FALSE(fs::exists(at("shards"))) << name;
  }
  EXPECT_EQ(run({"-q", "tokenize", at("books.txt"), "--tokenizer", "bytes", "--out", at("shards")}).code, kExitFine);
}

}  // namespace
}  // namespace trireme::cli
