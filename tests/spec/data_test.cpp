#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Data, SectionIsReadFromARecipe) {
  const auto recipe = load_recipe({.text = R"(
[data]
seq_len = "2k"
packing = "stream"
validation_fraction = 0.02
[[data.sources]]
path = "books"
weight = 0.25
[[data.sources]]
path = "web"
weight = 0.75
)"});
  const DataConfig& data = recipe.value.data;
  EXPECT_EQ(data.seq_len, 2000);
  EXPECT_EQ(data.packing, Packing::kStream);
  EXPECT_THAT(data.sources, ElementsAre(DataSource{"books", 0.25}, DataSource{"web", 0.75}));
  EXPECT_TRUE(has_data(data));
  EXPECT_EQ(load_recipe({.text = config::to_toml(recipe.value)}).value, recipe.value);
}

TEST(Data, TaskIsWhatTheModelIsMadeFor) {
  EXPECT_EQ(task_of(DataConfig{}, ModelConfig{}), DataTask::kCausal);
  EXPECT_EQ(task_of(DataConfig{}, ModelConfig{.family = Family::kLlama}), DataTask::kCausal);
  EXPECT_EQ(task_of(DataConfig{}, ModelConfig{.family = Family::kBert}), DataTask::kMasked);
  EXPECT_EQ(task_of(DataConfig{}, ModelConfig{.family = Family::kTransformer}), DataTask::kSeq2Seq);
  EXPECT_EQ(task_of(DataConfig{.synthetic = {.kind = SyntheticKind::kReverse}}, ModelConfig{}), DataTask::kSeq2Seq);
  EXPECT_EQ(task_of(DataConfig{.task = DataTask::kMasked}, ModelConfig{}), DataTask::kMasked);
}

TEST(Data, WithoutSourcesASequenceAloneIsFine) {
  EXPECT_THAT(find_problems(DataConfig{.seq_len = 8192}, ModelConfig{.family = Family::kGpt2}), IsEmpty());
}

/// Recipes, as the keys below [data] and after it; `fix` is the recipe that follows the hint.
struct DataContradiction {
  const char *name, *text, *key, *reason, *hint, *fix;
};

class DataContradictions : public testing::TestWithParam<DataContradiction> {};

TEST_P(DataContradictions, AreFoundAndTheirHintHelps) {
  const DataContradiction& given = GetParam();
  const auto load = [](const char* text) { (void)load_recipe({.text = fmt::format("[data]\n{}\n", text)}); };
  try {
    load(given.text);
    FAIL() << "was taken";
  } catch (const config::ProblemsError& error) {
    ASSERT_EQ(error.problems().size(), 1U) << error.message();
    EXPECT_EQ(error.problems()[0].key, given.key);
    EXPECT_THAT(error.problems()[0].reason, testing::HasSubstr(given.reason));
    EXPECT_THAT(error.problems()[0].hint, testing::HasSubstr(given.hint));
  }
  EXPECT_NO_THROW(load(given.fix));
}

INSTANTIATE_TEST_SUITE_P(
    All, DataContradictions,
    testing::Values(
        DataContradiction{"TextWithoutBytes", "sources = [{path = 'a.txt'}]", "data.sources.0.path",
                          "a.txt is a text file", "set data.tokenizer = \"bytes\"",
                          "tokenizer = 'bytes'\nsources = [{path = 'a.txt'}]"},
        DataContradiction{"NoPath", "sources = [{path = ''}]", "data.sources.0.path", "is empty", "name a file",
                          "sources = [{path = 'a'}]"},
        DataContradiction{"SomeWeights", "sources = [{path = 'a'}, {path = 'b', weight = 2}]", "data.sources.0.weight",
                          "is not given, but other sources have one", "give every source a weight",
                          "sources = [{path = 'a', weight = 1}, {path = 'b', weight = 2}]"},
        DataContradiction{"WeightTooSmall", "sources = [{path = 'a', weight = 1e-6}, {path = 'b', weight = 1.0}]",
                          "data.sources.0.weight", "less than one part in 65536", "give it more",
                          "sources = [{path = 'a', weight = 0.1}, {path = 'b', weight = 1.0}]"},
        DataContradiction{"ValidationAlone", "validation = [{path = 'a'}]", "data.validation", "nothing to train on",
                          "[[data.sources]]", "sources = [{path = 'b'}]\nvalidation = [{path = 'a'}]"},
        DataContradiction{"TwoKindsOfValidation",
                          "sources = [{path = 'b'}]\nvalidation = [{path = 'a'}]\nvalidation_fraction = 0.1",
                          "data.validation_fraction", "does not use it", "leave it out",
                          "sources = [{path = 'b'}]\nvalidation = [{path = 'a'}]"},
        DataContradiction{"SyntheticBesideSources", "sources = [{path = 'b'}]\nsynthetic.kind = 'markov'",
                          "data.synthetic.kind", "beside data.sources", "leave out either",
                          "synthetic.kind = 'markov'"},
        DataContradiction{"SyntheticWithoutKind", "synthetic.vocab_size = 8", "data.synthetic", "has no kind",
                          "set data.synthetic.kind = \"markov\"",
                          "synthetic.vocab_size = 8\nsynthetic.kind = 'markov'"},
        DataContradiction{"MarkovForBert", "synthetic.kind = 'markov'\nseq_len = 64\n[model]\nfamily = 'bert'",
                          "data.synthetic.kind", "\"markov\" is no task for data.task = \"masked\"",
                          "set data.synthetic.kind = \"copy\"",
                          "synthetic.kind = 'copy'\nseq_len = 64\n[model]\nfamily = 'bert'"},
        DataContradiction{"CopyForSeq2Seq", "synthetic.kind = 'copy'\nseq_len = 64\n[model]\nfamily = 'transformer'",
                          "data.synthetic.kind", "\"copy\" is no task for", "set data.synthetic.kind = \"reverse\"",
                          "synthetic.kind = 'reverse'\nseq_len = 64\n[model]\nfamily = 'transformer'"},
        DataContradiction{"TooManyTransitions",
                          "synthetic.kind = 'markov'\nsynthetic.vocab_size = 1000\nsynthetic.order = 3",
                          "data.synthetic.order", "more than 4194304", "set data.synthetic.order = 1",
                          "synthetic.kind = 'markov'\nsynthetic.vocab_size = 1000\nsynthetic.order = 1"},
        DataContradiction{"OrderOfACopy", "synthetic.kind = 'copy'\nsynthetic.order = 2", "data.synthetic.order",
                          "does not use it", "leave it out", "synthetic.kind = 'copy'"},
        DataContradiction{"MaskingOfCausal", "sources = [{path = 'b'}]\nmasking.probability = 0.3", "data.masking",
                          "data.task = \"causal\" does not use it", "leave it out", "sources = [{path = 'b'}]"},
        DataContradiction{"MoreThanAll", "task = 'masked'\nsources = [{path = 'b'}]\nmasking.masked = 0.95",
                          "data.masking.random", "leaves less", "set data.masking.random = 0",
                          "task = 'masked'\nsources = [{path = 'b'}]\nmasking.masked = 0.95\nmasking.random = 0.0"},
        DataContradiction{"SourceLengthOfCausal", "sources = [{path = 'b'}]\nsource_seq_len = 64",
                          "data.source_seq_len", "does not use it", "leave it out", "sources = [{path = 'b'}]"},
        DataContradiction{"PackedPairs", "task = 'seq2seq'\nsources = [{path = 'b'}]\npacking = 'stream'",
                          "data.packing", "does not use it", "leave it out",
                          "task = 'seq2seq'\nsources = [{path = 'b'}]"},
        DataContradiction{
            "TaskOfAnotherModel", "task = 'causal'\nseq_len = 128\nsources = [{path = 'b'}]\n[model]\nfamily = 'bert'",
            "data.task", "is \"causal\", but the model is made for \"masked\"", "set data.task = \"masked\"",
            "task = 'masked'\nseq_len = 128\nsources = [{path = 'b'}]\n[model]\nfamily = 'bert'"},
        DataContradiction{"LongerThanTheModel", "seq_len = 4096\nsources = [{path = 'b'}]\n[model]\nfamily = 'gpt2'",
                          "data.seq_len", "model.max_seq_len = 1024 is the longest", "set data.seq_len = 1024",
                          "seq_len = 1024\nsources = [{path = 'b'}]\n[model]\nfamily = 'gpt2'"},
        DataContradiction{"TokensBeyondTheModel", "synthetic.kind = 'copy'\n[model]\nfamily = 'gpt2'\nvocab_size = 10",
                          "data.synthetic.vocab_size", "reach 15, but model.vocab_size = 10",
                          "set model.vocab_size = 16",
                          "synthetic.kind = 'copy'\n[model]\nfamily = 'gpt2'\nvocab_size = 16"}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace trireme::spec
