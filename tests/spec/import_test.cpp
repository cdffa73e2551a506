#include "trireme/spec/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/errors.h"
#include "trireme/base/config.h"
#include "trireme/base/log.h"
#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string import_toml(const ImportSource& source, const std::string& toml, ImportOptions options = {}) {
  options.file = "x";
  return import_recipe(source, config::parse_toml(toml), options);
}

class EverySource : public testing::TestWithParam<const ImportSource*> {};

TEST_P(EverySource, EveryRowSaysOneThingAndNamesKeysThatThereAre) {
  std::set<std::string_view> names;
  const std::string docs = config::docs_markdown(recipe_schema());
  for (const ImportRow& row : GetParam()->rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " has two rows";
    const int says = (row.key.empty() ? 0 : 1) + (row.take == nullptr ? 0 : 1) + (row.without.empty() ? 0 : 1) +
                     (row.refuse.empty() ? 0 : 1);
    EXPECT_EQ(says, 1) << row.name;
    if (!row.neutral.empty()) {
      EXPECT_FALSE(row.refuse.empty()) << row.name;
    }
    if (row.key.empty()) continue;
    const std::size_t dot = row.key.rfind('.');
    const std::string section = fmt::format("## `[{}]`", row.key.substr(0, dot));
    const std::size_t at = docs.find(section);
    ASSERT_NE(at, std::string::npos) << row.name << ": " << row.key;
    const std::string within = docs.substr(at, docs.find("\n## ", at + 4) - at);
    EXPECT_THAT(within, HasSubstr(fmt::format("- `{} = ", row.key.substr(dot + 1)))) << row.name << ": " << row.key;
  }
  for (const ImportRow& row : GetParam()->rows) {
    if (row.enabled_by.empty()) continue;
    EXPECT_TRUE(names.contains(row.enabled_by)) << row.enabled_by;
  }
}

TEST_P(EverySource, AKeyThatNobodyKnowsIsRefused) {
  const std::string words = words_of([] { import_toml(*GetParam(), "entirely_new = 3"); });
  EXPECT_THAT(words, AllOf(HasSubstr("entirely_new"), HasSubstr("--leave-out entirely_new")));
}

/// Megatron-LM's rate falls to the end of training by default, so it wants to know where that is.
TEST_P(EverySource, NothingMoreThanALengthIsAValidRecipe) {
  const std::string text = import_toml(*GetParam(), GetParam() == &megatron_source() ? "train-iters = 100" : "");
  EXPECT_NO_THROW(load_recipe({.file = "x", .text = text})) << text;
}

TEST_P(EverySource, EveryKeyIsInTheRecipeOrInTheRefusal) {
  // One key at a time, with values of several kinds: whatever becomes of it, it is named.
  for (const ImportRow& row : GetParam()->rows) {
    std::string name(row.name);
    if (name.ends_with(".*")) name = name.substr(0, name.size() - 1) + "something";
    if (name.ends_with("-*")) name = name.substr(0, name.size() - 1) + "something";
    for (const char* value : {"true", "3", "\"word\"", "0.5"}) {
      std::string words;
      try {
        words = import_toml(*GetParam(), fmt::format("{} = {}", name, value));
      } catch (const config::ProblemsError& error) {
        words = error.block();
      }
      EXPECT_THAT(words, HasSubstr(name)) << name << " = " << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, EverySource,
                         testing::Values(&deepspeed_source(), &megatron_source(), &torchtitan_source()),
                         [](const auto& about) {
                           std::string name(about.param->name);
                           std::erase(name, '-');
                           return name;
                         });

TEST(ImportArguments, SayWhichOfTwoCounts) {
  std::string said;
  divert_log([&](std::string_view line) { said += line; });
  parse_arguments("--lr 1e-4 --num-layers 24 --lr 2e-4 --num-layers 24");
  divert_log(nullptr);
  EXPECT_THAT(said, AllOf(HasSubstr("--lr is there as 0.0001 and again as 0.0002"), Not(HasSubstr("num-layers"))));
}

/// DeepSpeed would pass over such a key: it is not the one that it looks like.
TEST(ImportDeepSpeed, DoesNotTakeADotInAKeyForATable) {
  EXPECT_THAT(words_of([] { import_toml(deepspeed_source(), "\"zero_optimization.stage\" = 2"); }),
              HasSubstr("\"zero_optimization.stage\""));
}

TEST(ImportArguments, AreReadAsTheyStandInScripts) {
  const config::Node table = parse_arguments(
      "--num-layers 24 \\\n --lr=1e-4 --bf16 --data-path 0.5 \"my data\" 0.5 b # a remark\n--split '9,1' --lr 2e-4");
  std::vector<std::string> lines;
  for (const ForeignKey& key : flattened(table))
    lines.push_back(fmt::format("{}={}", key.name, foreign_text(key.value)));
  EXPECT_THAT(lines, testing::ElementsAre("num-layers=24", "bf16=true", "data-path=[0.5, \"my data\", 0.5, \"b\"]",
                                          "split=\"9,1\"", "lr=0.0002"))
      << "the last one of a name counts";
  EXPECT_THAT(words_of([] { parse_arguments("pretrain.py --lr 1"); }), HasSubstr("pretrain.py"));
  EXPECT_THAT(words_of([] { parse_arguments("--data 'x"); }), HasSubstr("not closed"));
}

TEST(ImportOptions, LeaveOutDropsAKeyAndSaysSo) {
  const std::string toml = "[sparse_attention]\nmode = \"fixed\"";
  EXPECT_THAT(words_of([&] { import_toml(deepspeed_source(), toml); }), HasSubstr("sparse_attention.mode"));
  EXPECT_THAT(import_toml(deepspeed_source(), toml, {.file = {}, .sets = {}, .leave_out = {"sparse_attention.mode"}}),
              AllOf(HasSubstr("Left out on request"), HasSubstr("sparse_attention.mode = \"fixed\"")));
  EXPECT_THAT(words_of([&] { import_toml(deepspeed_source(), "", {.file = {}, .sets = {}, .leave_out = {"none"}}); }),
              HasSubstr("no such key"));
}

/// What was built since these keys were first refused.
TEST(ImportDeepSpeed, KnowsLayerDroppingAndOneBitAdam) {
  const std::string drop = "[progressive_layer_drop]\ntheta = 0.5\n";
  EXPECT_THAT(import_toml(deepspeed_source(), drop + "enabled = true\ngamma = 0.01"),
              AllOf(HasSubstr("layer_keep = 0.5"), HasSubstr("layer_keep_gamma = 0.01")));
  EXPECT_THAT(import_toml(deepspeed_source(), drop + "enabled = true"), HasSubstr("layer_keep_gamma = 0.001"));
  EXPECT_THAT(import_toml(deepspeed_source(), drop + "enabled = false"), Not(HasSubstr("layer_keep = ")));
  EXPECT_THAT(words_of([] { import_toml(deepspeed_source(), "[optimizer]\ntype = \"OneBitAdam\""); }),
              HasSubstr("compress.kind = \"onebit-adam\""));
}

TEST(ImportOptions, SetBeatsTheConfigurationAndTakesTextsWithoutQuotes) {
  const std::string text =
      import_toml(deepspeed_source(), "gradient_clipping = 1.0",
                  {.file = {}, .sets = {"optim.grad_clip_norm=0.5", "model.family=gpt2"}, .leave_out = {}});
  EXPECT_THAT(text, AllOf(HasSubstr("grad_clip_norm = 0.5  # --set"), HasSubstr("family = \"gpt2\"  # --set")));
  EXPECT_THAT(words_of([&] {
                import_toml(deepspeed_source(), "", {.file = {}, .sets = {"modl.family=gpt2"}, .leave_out = {}});
              }),
              HasSubstr("modl.family"));
  EXPECT_THAT(words_of([&] { import_toml(deepspeed_source(), "", {.file = {}, .sets = {"x"}, .leave_out = {}}); }),
              HasSubstr("no \"=\""));
}

TEST(ImportDeepSpeed, KnowsThatItsAdamIsAdamW) {
  EXPECT_THAT(import_toml(deepspeed_source(), "[optimizer]\ntype = \"Adam\""), HasSubstr("kind = \"adamw\""));
  EXPECT_THAT(import_toml(deepspeed_source(), "[optimizer]\ntype = \"Adam\"\nparams = { adam_w_mode = false }"),
              HasSubstr("kind = \"adam\""));
}

TEST(ImportDeepSpeed, HoldsTheBatchIdentity) {
  const char* three = "train_batch_size = {}\ntrain_micro_batch_size_per_gpu = 4\ngradient_accumulation_steps = 2";
  EXPECT_THAT(import_toml(deepspeed_source(), fmt::format(fmt::runtime(three), 64)), HasSubstr("dp = 8"));
  EXPECT_THAT(words_of([&] { import_toml(deepspeed_source(), fmt::format(fmt::runtime(three), 60)); }),
              HasSubstr("train_batch_size"));
}

TEST(ImportTorchtitan, TellsShardedFromReplicatedDataParallelism) {
  const auto layout = [](int replicate, int shard) {
    return import_toml(torchtitan_source(), fmt::format("[parallelism]\ndata_parallel_replicate_degree = {}\n"
                                                        "data_parallel_shard_degree = {}\n",
                                                        replicate, shard));
  };
  EXPECT_THAT(layout(4, 1), AllOf(HasSubstr("dp = 4"), HasSubstr("zero = 0"), Not(HasSubstr("zero_group"))));
  EXPECT_THAT(layout(1, 8), AllOf(HasSubstr("dp = 8"), HasSubstr("zero = 3"), Not(HasSubstr("zero_group"))));
  EXPECT_THAT(layout(2, 4), AllOf(HasSubstr("dp = 8"), HasSubstr("zero = 3"), HasSubstr("zero_group = 4")));
}

}  // namespace
}  // namespace trireme::spec
