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
[train]
steps = 100
[checkpoint]
every = 0
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
  EXPECT_DOUBLE_EQ(checkup.stages[0].parts().weights, 4 * weights);    // fp32
  EXPECT_DOUBLE_EQ(checkup.stages[0].parts().optimizer, 8 * weights);  // AdamW's moments; fp32 needs no masters
  EXPECT_GT(checkup.estimate->step_seconds(), 0);
}

TEST(CheckRecipe, CountsWhatTheOptimizerReallyKeeps) {
  const Checkup plain = check({"optim.kind=sgd", "optim.momentum=0"}, 1), momentum = check({"optim.kind=sgd"}, 1);
  EXPECT_EQ(plain.stages[0].parts().optimizer, 0);
  EXPECT_DOUBLE_EQ(momentum.stages[0].parts().optimizer, momentum.stages[0].parts().weights);
}

/// Of the tables, 2 x 32 x 64, and of the layers with their norms.
TEST(CheckRecipe, CountsTheTypesOfStates) {
  const auto bytes = [](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"precision.compute=bf16", "train.recompute=none"});
    const Checkup checkup = check(sets, 1);
    EXPECT_THAT(checkup.problems, IsEmpty());
    const MemoryParts parts = checkup.stages.at(0).parts();
    return parts.weights + parts.gradients + parts.optimizer;
  };
  const Job job = *check({}, 1).job;
  const WeightCounts weights = count_weights(job);
  const double vectors = 4 * weights.layer_vectors + weights.head_vectors;  // 9 norms of 64
  EXPECT_EQ(vectors, 9 * 64);
  const double layers = 4 * (weights.layer - weights.layer_vectors);
  const double tables = weights.embedding + weights.head - weights.head_vectors;
  EXPECT_DOUBLE_EQ(bytes({}), 18 * (layers + tables + vectors));
  EXPECT_DOUBLE_EQ(bytes({"precision.gradients=bf16"}), 16 * (layers + tables) + 18 * vectors);
  EXPECT_DOUBLE_EQ(bytes({"optim.state_dtype=bf16"}), 14 * (layers + tables + vectors));
  EXPECT_DOUBLE_EQ(bytes({"precision.master_weights=none", "optim.state_dtype=bf16"}),
                   8 * layers + 14 * (tables + vectors));
  EXPECT_DOUBLE_EQ(bytes({"precision.master_weights=norms-and-biases", "optim.state_dtype=bf16"}),
                   8 * (layers + tables) + 14 * vectors);
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

/// What a layout keeps on the host, context parallelism's kind and FP8 are seen in the figures.
TEST(CheckRecipe, ReadsOffloadContextKindAndFp8) {
  const std::vector<std::string> sets{"model.hidden_size=1024", "model.num_heads=16",  "model.num_kv_heads=16",
                                      "model.head_dim=64",      "model.ffn_size=4096", "precision.compute=bf16"};
  const auto with = [&](const std::vector<std::string>& more, int ranks) {
    std::vector<std::string> all = sets;
    all.insert(all.end(), more.begin(), more.end());
    const Checkup checkup = check(all, ranks, "dgx-h100");
    EXPECT_THAT(checkup.problems, IsEmpty());
    return *checkup.estimate;
  };
  const Estimate here = with({}, 1), there = with({"layout.offload=optimizer"}, 1);
  EXPECT_LT(there.memory.peak(), here.memory.peak());
  EXPECT_GT(there.memory.host, 0);
  EXPECT_GT(there.step_seconds(), here.step_seconds());
  const double gather = with({"layout.cp=4"}, 4).step_seconds(),
               ring = with({"layout.cp=4", "layout.cp_kind=ring"}, 4).step_seconds(),
               ulysses = with({"layout.cp=4", "layout.cp_kind=ulysses"}, 4).step_seconds();
  EXPECT_NE(gather, ring);
  EXPECT_NE(gather, ulysses);
  EXPECT_NE(ring, ulysses);
  const Estimate fp8 = with({"precision.gemm=fp8"}, 1);
  EXPECT_LT(fp8.time.work.matmul, here.time.work.matmul);
  EXPECT_GT(fp8.memory.fullest[MemoryUse::kFp8Weights], 0);
}

/// The cases in which a check once said "it can run" and the trainer refused.
TEST(CheckRecipe, SeesWhatTheTrainerRefuses) {
  const auto keys = [](const std::vector<std::string>& sets, int ranks) {
    std::vector<std::string> found;
    for (const config::Problem& problem : check(sets, ranks).problems) found.push_back(problem.key);
    return found;
  };
  const std::vector<std::string> apart{"model.tied=false", "train.hash_every=0"};
  const auto with = [&](std::vector<std::string> sets) {
    sets.insert(sets.begin(), apart.begin(), apart.end());
    sets.emplace_back("layout.pp=2");
    return sets;
  };
  EXPECT_THAT(keys(with({"pipeline.schedule=pipedream-2bw", "layout.tp=2"}), 4), IsEmpty());
  EXPECT_THAT(keys(with({"pipeline.schedule=pipedream", "train.micro_batch_size=1"}), 2), IsEmpty());
  EXPECT_THAT(check(with({"pipeline.schedule=pipedream-2bw", "precision.compute=fp16"}), 2, "dgx-h100").problems,
              IsEmpty());
  EXPECT_THAT(keys(with({"pipeline.schedule=spectrain"}), 2), ElementsAre("optim.kind"));
  EXPECT_THAT(keys(with({"pipeline.schedule=zb-h2", "pipeline.drain_every=2", "layout.zero=1"}), 4), IsEmpty());
  EXPECT_THAT(keys(with({"pipeline.schedule=zb-h2", "pipeline.drain_every=2", "layout.zero=3"}), 4), IsEmpty());
  EXPECT_THAT(keys(with({"pipeline.schedule=pipedream-2bw", "layout.zero=3"}), 4), IsEmpty());
  EXPECT_THAT(keys({"layout.pp=2", "pipeline.schedule=pipedream", "model.tied=true", "train.hash_every=0"}, 2),
              IsEmpty());
  EXPECT_THAT(keys({"train.recompute=budget", "train.recompute_gb=1e-6", "train.micro_batch_size=1"}, 1),
              ElementsAre("train.recompute_gb"));
  EXPECT_THAT(keys(with({"pipeline.drain_every=3", "checkpoint.every=10"}), 2), ElementsAre("checkpoint.every"));
  EXPECT_THAT(keys(with({"train.micro_batch_size=64", "layout.zero=3"}), 4), IsEmpty());
}

TEST(CheckRecipe, WantsALengthAndAModel) {
  spec::Recipe recipe = tiny();
  recipe.train.steps.reset();
  EXPECT_THAT(check_recipe(recipe, {.ranks = 1, .hardware = cost::load_hardware("local")}).problems,
              ElementsAre(Field(&config::Problem::key, "train.steps")));
  recipe.model = {};
  EXPECT_THAT(check_recipe(recipe, {.ranks = 1, .hardware = cost::load_hardware("local")}).problems,
              ElementsAre(Field(&config::Problem::key, "model.family")));
}

}  // namespace
}  // namespace trireme::plan
