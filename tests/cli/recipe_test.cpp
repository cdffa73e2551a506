#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "trireme/base/log.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/cost/collectives.h"

namespace trireme::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class RecipeCommand : public testing::Test {
 protected:
  void TearDown() override {
    std::remove(path_.c_str());
    set_log_level(LogLevel::kInfo);
  }
  /// Runs `trireme recipe ...`; "FILE" stands for a file with this text.
  int run(std::vector<std::string> arguments, const std::string& text = "") {
    std::ofstream(path_) << text;
    for (std::string& argument : arguments) {
      if (argument == "FILE") argument = path_;
    }
    arguments.insert(arguments.begin(), "recipe");
    std::ostringstream out, err;
    const int code = run_program(arguments, out, err);
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  // One for each test: they may run at the same time.
  std::string path_ = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() +
                      std::to_string(::getpid()) + ".toml";
  std::string out_, err_;
};

TEST_F(RecipeCommand, ShowPrintsEveryValueWithItsOrigin) {
  EXPECT_EQ(run({"show", "FILE", "--set", "comm.deadline=30s", "--set", "run.name=1f1b"}, "[comm]\nranks = 4\n"),
            kExitFine);
  EXPECT_THAT(err_, IsEmpty());
  EXPECT_THAT(out_, HasSubstr("name = \"1f1b\"   # --set\n"));
  EXPECT_THAT(out_, HasSubstr(fmt::format("# {}:2\n", path_)));
  EXPECT_THAT(out_, HasSubstr("transport = \"auto\"            # default\n"));
  EXPECT_EQ(run({"show", "FILE"}, out_), kExitFine) << "what is shown is a recipe again";
}

TEST_F(RecipeCommand, ShowWorksWithoutAFile) {
  EXPECT_EQ(run({"show", "--set", "comm.ranks=3"}), kExitFine);
  EXPECT_THAT(out_, HasSubstr("ranks = 3 "));
}

TEST_F(RecipeCommand, SetDoesNotSwallowTheFile) {
  EXPECT_EQ(run({"show", "--set", "comm.ranks=3", "FILE"}, "[run]\nseed = 5\n"), kExitFine);
  EXPECT_THAT(out_, AllOf(HasSubstr("ranks = 3 "), HasSubstr("seed = 5 ")));
}

TEST_F(RecipeCommand, ShowSaysAllThatIsWrong) {
  EXPECT_EQ(run({"show", "FILE"}, "[comm]\nranks = 0\nalgorithm = \"rign\"\ntransprt = \"mpi\"\n"), kExitUsage);
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_THAT(err_, HasSubstr("has 3 problems:"));
  EXPECT_THAT(err_, HasSubstr(fmt::format("{}:2", path_)));
  EXPECT_THAT(err_, HasSubstr("comm.ranks"));
  EXPECT_THAT(err_, HasSubstr("did you mean \"comm.transport\"?"));
  EXPECT_THAT(err_, HasSubstr("\"rign\" is unknown; did you mean \"ring\"?"));
}

TEST_F(RecipeCommand, RulesAreToldWithTheirReasons) {
  EXPECT_EQ(run({"rules"}), kExitFine);
  EXPECT_THAT(out_, AllOf(HasSubstr("together-delayed-update"), HasSubstr("not built"), HasSubstr("pipedream-2bw")));
}

TEST_F(RecipeCommand, ShowKnowsTheWholeModel) {
  const std::string text =
      "[model]\nfamily = \"llama\"\nnum_layers = 80\nhidden_size = 8192\nnum_heads = 64\nnum_kv_heads = 8\n"
      "ffn_size = 28672\n";
  EXPECT_EQ(run({"show", "FILE"}, text), kExitFine);
  EXPECT_THAT(out_, AllOf(HasSubstr("\nnum_layers = 80 "), HasSubstr("\nnum_kv_heads = 8 "),
                          HasSubstr("[model.rotary]\n"), HasSubstr("base = 500000")));
  EXPECT_EQ(run({"show", "FILE"}, std::string(out_)), kExitFine) << "what is shown is a recipe again";
  EXPECT_THAT(out_, HasSubstr("\nnum_kv_heads = 8 "));
  EXPECT_THAT(out_, HasSubstr("\n# the model has 70553706496 parameters\n"));
}

/// What `recipe new` writes is a recipe, of about the size that was asked for.
TEST_F(RecipeCommand, NewWritesARecipeOfTheSizeAskedFor) {
  const std::string data = path_ + ".txt", made = path_ + ".new.toml";
  std::ofstream(data) << std::string(5000, 'a');
  const std::pair<const char*, double> sizes[] = {
      {"1M", 1e6}, {"10M", 1e7}, {"100M", 1e8}, {"1.5B", 1.5e9}, {"70B", 7e10}};
  for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
    for (const auto& [size, parameters] : sizes) {
      std::remove(made.c_str());
      ASSERT_EQ(run({"new", "--family", family, "--params", size, "--data", data, "-o", made}), kExitFine) << err_;
      auto loaded = spec::load_recipe({.file = made});
      loaded.value.model.vocab_size = 256;  // as the bytes of the text have
      const auto count = static_cast<double>(spec::count_parameters(*spec::shape_of(loaded.value.model)).total());
      EXPECT_NEAR(count / parameters, 1, 0.1) << family << " " << size;
      EXPECT_EQ(loaded.value.data.tokenizer, "bytes");
      EXPECT_EQ(loaded.value.lr_schedule.total, 1000);
    }
  }
  EXPECT_EQ(run({"new", "--data", data, "-o", made}), kExitUsage) << "it is there";
  EXPECT_THAT(err_, HasSubstr("is already there"));
  std::remove(made.c_str());
  std::remove(data.c_str());
}

TEST_F(RecipeCommand, ShowsTheVocabularyOfTheData) {
  const std::string data = path_ + ".txt";
  std::ofstream(data) << std::string(500, 'a');
  const std::string text = fmt::format(
      "[model]\nfamily = \"llama\"\nhidden_size = 96\nnum_heads = 4\nnum_layers = 2\n"
      "[data]\ntokenizer = \"bytes\"\n[[data.sources]]\npath = \"{}\"\n",
      data);
  EXPECT_EQ(run({"show", "FILE"}, text), kExitFine) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("parameters (model.vocab_size = 256: "), HasSubstr("has 256 tokens")));
  EXPECT_THAT(out_, testing::ContainsRegex("ffn_size = 336 +# derived"));
  std::remove(data.c_str());
  EXPECT_EQ(run({"show", "FILE"}, text), kExitFine) << "a recipe may be looked at where its data is not";
  EXPECT_THAT(out_, HasSubstr("with the family's vocabulary"));
}

TEST_F(RecipeCommand, DocsListEveryKey) {
  EXPECT_EQ(run({"docs"}), kExitFine);
  const std::string text = out_;
  EXPECT_EQ(run({"docs", "--markdown"}), kExitFine);
  for (const auto& section : spec::recipe_schema().parts) {
    EXPECT_THAT(text, HasSubstr(fmt::format("[{}]  ", section.name)));
    EXPECT_THAT(out_, HasSubstr(fmt::format("## `[{}]`", section.name)));
    for (const auto& field : section.schema->fields) {
      EXPECT_THAT(text, HasSubstr(fmt::format("\n  {} = ", field.name)));
      EXPECT_THAT(out_, HasSubstr(fmt::format("\n- `{} = ", field.name)));
    }
  }
}

TEST_F(RecipeCommand, DocsNameEveryAlgorithm) {
  // The spec room does not know the cost room, so its text could drift from the names there.
  const auto* comm = spec::recipe_schema().find_part("comm");
  ASSERT_NE(comm, nullptr);
  const std::string meaning = comm->schema->find_field("algorithm")->meaning;
  for (const auto algorithm : cost::all_algorithms()) {
    EXPECT_THAT(meaning, HasSubstr(std::string(cost::name(algorithm))));
  }
}

}  // namespace
}  // namespace trireme::cli
