// What a recipe leaves out because it follows from what it says.
#include "trireme/spec/derived.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/files.h"

namespace trireme::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Recipe recipe_of(const std::string& text, std::vector<std::string> sets = {}) {
  return load_recipe({.text = text, .sets = std::move(sets)}).value;
}

/// Key, reason and hint of the only problem.
config::Problem problem_of(const std::string& text) {
  try {
    recipe_of(text);
  } catch (const config::ProblemsError& error) {
    EXPECT_EQ(error.problems().size(), 1u) << error.message();
    return error.problems().front();
  }
  ADD_FAILURE() << "this is fine: " << text;
  return {};
}

TEST(Derived, AScheduleWithoutATotalEndsWithTheRun) {
  for (const char* kind : {"cosine", "linear", "wsd"}) {
    const std::string more = std::string(kind) == "wsd" ? "decay = 10\n" : "";
    const Recipe recipe = recipe_of(fmt::format("[lr_schedule]\nkind = \"{}\"\n{}[train]\nsteps = 300\n", kind, more));
    EXPECT_EQ(recipe.lr_schedule.total, 300) << kind;
  }
  EXPECT_EQ(recipe_of("[lr_schedule]\nkind = \"cosine\"\ntotal = 200\n[train]\nsteps = 300\n").lr_schedule.total, 200);
  EXPECT_EQ(recipe_of("[lr_schedule]\nkind = \"cosine\"\nunit = \"tokens\"\n[train]\nsteps = 300\n"
                      "[batch]\nglobal_batch_tokens = 1000\n")
                .lr_schedule.total,
            300'000);
  EXPECT_EQ(recipe_of("[lr_schedule]\nkind = \"cosine\"\n[train]\ntokens = 2500\n"
                      "[batch]\nglobal_batch_tokens = 1000\n")
                .lr_schedule.total,
            3);
  EXPECT_EQ(recipe_of("[lr_schedule]\nkind = \"constant\"\n[train]\nsteps = 300\n").lr_schedule.total, std::nullopt);
  const auto missing = problem_of("[lr_schedule]\nkind = \"cosine\"\n");
  EXPECT_EQ(missing.key, "lr_schedule.total");
  EXPECT_THAT(missing.hint, HasSubstr("or train.steps"));
}

TEST(Derived, AnyTwoOfBatchMicroBatchAndAccumulationGiveTheThird) {
  const std::string data = "[data]\nseq_len = 64\n";
  const Recipe batch = recipe_of(data + "[train]\nmicro_batch_size = 4\ngradient_accumulation_steps = 8\n");
  EXPECT_EQ(batch.batch.global_batch_tokens, 4 * 8 * 64);
  EXPECT_EQ(batch.train.micro_batch_size, 4);
  EXPECT_EQ(batch.train.gradient_accumulation_steps, std::nullopt) << "another number of ranks has another one";
  const Recipe micro =
      recipe_of(data + "[train]\ngradient_accumulation_steps = 8\n[batch]\nglobal_batch_tokens = 2048\n");
  EXPECT_EQ(micro.train.micro_batch_size, 4);
  const Recipe all = recipe_of(
      data + "[train]\ngradient_accumulation_steps = 8\nmicro_batch_size = 4\n[batch]\nglobal_batch_tokens = 2048\n");
  EXPECT_EQ(all.batch.global_batch_tokens, 2048);
  // Ranks that are data parallel share the step.
  EXPECT_EQ(recipe_of(data + "[comm]\nranks = 4\n[layout]\ntp = 2\n"
                             "[train]\nmicro_batch_size = 4\ngradient_accumulation_steps = 8\n")
                .batch.global_batch_tokens,
            2 * 4 * 8 * 64);
}

TEST(Derived, WhatDoesNotGoTogetherIsNamedWithWhatWould) {
  const std::string data = "[data]\nseq_len = 64\n";
  const auto contradiction = problem_of(
      data + "[train]\ngradient_accumulation_steps = 8\nmicro_batch_size = 4\n[batch]\nglobal_batch_tokens = 4096\n");
  EXPECT_EQ(contradiction.key, "train.gradient_accumulation_steps");
  EXPECT_THAT(contradiction.reason, HasSubstr("a step has 2048 tokens, but batch.global_batch_tokens = 4096"));
  const auto uneven =
      problem_of(data + "[train]\ngradient_accumulation_steps = 3\n[batch]\nglobal_batch_tokens = 2048\n");
  EXPECT_EQ(uneven.hint, "set batch.global_batch_tokens = 1920");
  EXPECT_EQ(recipe_of(data + "[train]\ngradient_accumulation_steps = 3\n[batch]\nglobal_batch_tokens = 1920\n")
                .train.micro_batch_size,
            10);
}

TEST(Derived, SaysWhatItDerived) {
  LoadedRecipe loaded;
  std::vector<config::Problem> problems;
  std::vector<std::string> said;
  const config::Input input{.text =
                                "[lr_schedule]\nkind = \"cosine\"\n[train]\nsteps = 300\nmicro_batch_size = 2\n"
                                "gradient_accumulation_steps = 4\n[data]\nseq_len = 32\n"};
  loaded.origins = config::read_into(recipe_schema(), &loaded.value, input, problems);
  EXPECT_THAT(derive(loaded, input, /*ranks=*/3, said), IsEmpty());
  EXPECT_THAT(said, ElementsAre(HasSubstr("a step has 768 tokens: 4 micro-batches"),
                                HasSubstr("lr_schedule.total = 300: the schedule ends with the run (train.steps)")));
  EXPECT_EQ(loaded.origins.at("lr_schedule.total"), "from train.steps");
  // The number of micro-batches follows from the other two, and is told then, too; not where they are not alike.
  const auto told = [](const std::string& text) {
    LoadedRecipe given;
    std::vector<config::Problem> wrong;
    std::vector<std::string> sentences;
    const config::Input source{.text = "[data]\nseq_len = 32\n" + text};
    given.origins = config::read_into(recipe_schema(), &given.value, source, wrong);
    EXPECT_THAT(derive(given, source, /*ranks=*/2, sentences), IsEmpty());
    return sentences;
  };
  EXPECT_THAT(told("[train]\nmicro_batch_size = 2\n[batch]\nglobal_batch_tokens = 512\n"),
              ElementsAre(HasSubstr("a step has 512 tokens: 4 micro-batches")));
  EXPECT_THAT(
      told("[train]\nmicro_batch_size = 8\n[batch]\nglobal_batch_tokens = 512\n"),
      ElementsAre(HasSubstr("1 micro-batch (train.gradient_accumulation_steps) of train.micro_batch_size = 8")));
  EXPECT_THAT(told("[train]\nmicro_batch_size = 3\n[batch]\nglobal_batch_tokens = 512\n"), IsEmpty());
  EXPECT_THAT(told("[batch]\nglobal_batch_tokens = 512\n"), IsEmpty());
}

class DerivedPaths : public OwnFolder {};

TEST_F(DerivedPaths, InARecipeMeanFilesBesideIt) {
  namespace fs = std::filesystem;
  fs::create_directories(folder_ / "shards");
  std::ofstream(folder_ / "tokenizer.json") << "{}";
  std::ofstream(folder_ / "recipe.toml") << "[data]\ntokenizer = \"tokenizer.json\"\n[[data.sources]]\npath = "
                                            "\"shards\"\n[[data.validation]]\npath = \"elsewhere\"\n";
  const std::string file = (folder_ / "recipe.toml").string();
  const DataConfig data = load_recipe({.file = file}).value.data;
  EXPECT_EQ(data.tokenizer, (folder_ / "tokenizer.json").string());
  EXPECT_EQ(data.sources[0].path, (folder_ / "shards").string());
  EXPECT_EQ(data.validation[0].path, "elsewhere") << "it is not there, so it is as everywhere: from the current folder";
  EXPECT_EQ(load_recipe({.file = file, .sets = {"data.tokenizer=tokenizer.json"}}).value.data.tokenizer,
            "tokenizer.json")
      << "what the command line says is from where the command runs";
}

}  // namespace
}  // namespace trireme::spec
