#include "trireme/plan/check_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/from_recipe.h"

namespace trireme::plan {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

spec::Recipe tiny(const std::vector<std::string>& sets = {}) {
  return spec::load_recipe({.text = R"(
[model]
family = "llama"
vocab_size = 32
max_seq_len = 64
hidden_size = 64
num_layers = 4
num_heads = 4
num_kv_heads = 2
head_dim = 16
ffn_size = 128
[data]
seq_len = 64
synthetic.kind = "markov"
[batch]
global_batch_tokens = 2048
)",
                            .sets = sets})
      .value;
}

Checkup check(const std::vector<std::string>& sets, int ranks, const char* cluster = "local") {
  return check_recipe(tiny(sets), {.ranks = ranks, .hardware = cost::load_hardware(cluster)});
}

TEST(CheckRecipe, OfAPlainRunHasMemoryAndTime) {
  const Checkup checkup = check({}, 2);
  ASSERT_THAT(checkup.problems, IsEmpty());
  EXPECT_FALSE(checkup.proof);
  ASSERT_EQ(checkup.stages.size(), 1);
  const auto weights = static_cast<double>(spec::count_parameters(checkup.job->shape).total());
  EXPECT_DOUBLE_EQ(checkup.stages[0].parts.weights, 4 * weights);    // fp32
  EXPECT_DOUBLE_EQ(checkup.stages[0].parts.optimizer, 8 * weights);  // AdamW's moments; fp32 needs no masters
  EXPECT_GT(checkup.estimate->step_seconds(), 0);
}

TEST(CheckRecipe, CountsWhatTheOptimizerReallyKeeps) {
  const Checkup plain = check({"optim.kind=sgd", "optim.momentum=0"}, 1), momentum = check({"optim.kind=sgd"}, 1);
  EXPECT_EQ(plain.stages[0].parts.optimizer, 0);
  EXPECT_DOUBLE_EQ(momentum.stages[0].parts.optimizer, momentum.stages[0].parts.weights);
}

/// Of the tables, 2 x 32 x 64, and of the layers with their norms.
TEST(CheckRecipe, CountsTheTypesOfStates) {
  const auto bytes = [](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"precision.compute=bf16", "train.recompute=none"});
    const Checkup checkup = check(sets, 1);
    EXPECT_THAT(checkup.problems, IsEmpty());
    const MemoryParts& parts = checkup.stages.at(0).parts;
    return parts.weights + parts.gradients + parts.optimizer;
  };
  const Job job = *check({}, 1).job;
  const WeightCounts weights = count_weights(job);
  const double layers = 4 * weights.layer, tables = weights.embedding + weights.head;
  EXPECT_DOUBLE_EQ(bytes({}), 18 * (layers + tables));
  EXPECT_DOUBLE_EQ(bytes({"precision.gradients=bf16"}), 16 * (layers + tables));
  EXPECT_DOUBLE_EQ(bytes({"optim.state_dtype=bf16"}), 14 * (layers + tables));
  EXPECT_DOUBLE_EQ(bytes({"precision.master_weights=none", "optim.state_dtype=bf16"}), 8 * layers + 14 * tables);
  EXPECT_DOUBLE_EQ(bytes({"precision.master_weights=norms-and-biases", "optim.state_dtype=bf16"}),
                   8 * (layers + tables));
}

TEST(CheckRecipe, ProvesThePipelinesSchedule) {
  const Checkup checkup = check({"layout.pp=4", "train.micro_batch_size=4"}, 4);
  ASSERT_THAT(checkup.problems, IsEmpty());
  ASSERT_TRUE(checkup.proof);
  EXPECT_EQ(checkup.proof->micros, 8);
  EXPECT_EQ(checkup.proof->passes, 4 * 8 * 2);
  EXPECT_EQ(checkup.proof->messages, 3 * 8 * 2);
  ASSERT_EQ(checkup.stages.size(), 4);
  EXPECT_EQ(checkup.stages[0].in_flight, 4);  // 1F1B's
  EXPECT_EQ(checkup.stages[3].in_flight, 1);
}

TEST(CheckRecipe, TellsAllProblemsOfModelAndLayout) {
  const Checkup checkup = check({"layout.tp=3", "layout.pp=9"}, 27);
  EXPECT_THAT(checkup.problems, testing::SizeIs(testing::Ge(3)));
  EXPECT_FALSE(checkup.estimate);
}

TEST(CheckRecipe, ABatchOfBrokenRowsNamesAWholeOne) {
  const Checkup broken = check({"batch.global_batch_tokens=1000"}, 1);
  ASSERT_THAT(broken.problems,
              ElementsAre(Field(&config::Problem::hint, "set batch.global_batch_tokens = 960 (15 sequences)")));
  EXPECT_THAT(check({"batch.global_batch_tokens=960"}, 1).problems, IsEmpty());
}

TEST(CheckRecipe, AScheduleThatRefusesNamesWhatItTakes) {
  // Two chunks a rank, or none of its kind.
  const Checkup wrong = check({"layout.pp=2", "pipeline.schedule=zb-v", "pipeline.virtual_stages=3"}, 2);
  ASSERT_THAT(wrong.problems, ElementsAre(Field(&config::Problem::key, "pipeline.schedule")));
  EXPECT_EQ(wrong.problems[0].hint, "set pipeline.virtual_stages = 2");
  EXPECT_THAT(check({"layout.pp=2", "pipeline.schedule=zb-v"}, 2).problems, IsEmpty());
  const Checkup unknown = check({"layout.pp=2", "pipeline.schedule=1f1d"}, 2);
  ASSERT_THAT(unknown.problems, ElementsAre(Field(&config::Problem::hint, "set pipeline.schedule = \"1f1b\"")));
}

TEST(CheckRecipe, TooLittleMemoryNamesChangesThatFit) {
  cost::Hardware small = cost::load_hardware("local");
  const std::vector<std::string> sets{"model.hidden_size=1024", "model.num_heads=16",
                                      "model.num_kv_heads=16",  "model.head_dim=64",
                                      "model.ffn_size=4096",    "batch.global_batch_tokens=65536"};
  const CheckOptions roomy{.ranks = 4, .hardware = small};
  const double needed = check_recipe(tiny(sets), roomy).estimate->memory.peak();
  small.device.memory_gib = needed / 1073741824.0 * 0.8;
  const Checkup full = check_recipe(tiny(sets), {.ranks = 4, .hardware = small});
  ASSERT_THAT(full.problems, ElementsAre(Field(&config::Problem::reason, HasSubstr("rank 0 needs"))));
  // "set a = 1, b = 2": each is a --set.
  std::string hint = full.problems[0].hint;
  ASSERT_TRUE(hint.starts_with("set ")) << hint;
  std::vector<std::string> fixed = sets;
  for (const std::string& part : split(hint.substr(4), ',')) {
    std::string assignment(trimmed(part));
    std::erase_if(assignment, [](char c) { return c == ' ' || c == '"'; });
    fixed.push_back(assignment);
  }
  const Checkup fits = check_recipe(tiny(fixed), {.ranks = 4, .hardware = small});
  EXPECT_THAT(fits.problems, IsEmpty()) << hint;
  // Where it need not fit, nothing is wrong.
  EXPECT_THAT(check_recipe(tiny(sets), {.ranks = 4, .hardware = small, .judge_memory = false}).problems, IsEmpty());
}

TEST(CheckRecipe, NotesWhatIsNotThere) {
  spec::Recipe recipe = tiny();
  recipe.data.synthetic.kind.reset();
  recipe.data.sources = {{.path = "nowhere/shards", .weight = {}}};
  recipe.precision.compute = spec::Precision::kFp64;
  const Checkup checkup = check_recipe(recipe, {.ranks = 1, .hardware = cost::load_hardware("local")});
  EXPECT_THAT(checkup.notes, ElementsAre(HasSubstr("nowhere/shards is not here"), HasSubstr("no fp64")));
  recipe.data.sources.clear();
  recipe.model = {};
  EXPECT_THAT(check_recipe(recipe, {.ranks = 1, .hardware = cost::load_hardware("local")}).problems,
              ElementsAre(Field(&config::Problem::key, "model.family")));
}

}  // namespace
}  // namespace trireme::plan
