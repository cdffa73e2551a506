#include "trireme/spec/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <set>

#include "tests/spec/contradiction.h"

namespace trireme::spec {
namespace {

using namespace std::chrono_literals;
using config::Problem;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Recipe, EmptyIsARunOnOneRank) {
  const Recipe recipe = load_recipe({}).value;
  EXPECT_EQ(recipe, Recipe());
  EXPECT_EQ(recipe.comm.transport, Transport::kAuto);
  EXPECT_EQ(recipe.comm.ranks, std::nullopt);
  EXPECT_EQ(recipe.comm.deadline, 10min);
  EXPECT_EQ(recipe.comm.flight_recorder_calls, 1000);
  EXPECT_THAT(find_problems(recipe), IsEmpty()) << "the defaults must go together";
}

TEST(Recipe, IsReadFromTomlAndSet) {
  const auto [recipe, origins] = load_recipe({.file = "x.toml",
                                              .text = "[comm]\ntransport = \"emulated\"\nranks = 4\n"
                                                      "[emulated]\nbandwidth = \"100 Gbit/s\"\nlatency = \"5us\"\n",
                                              .sets = {"comm.deadline=30s", "log.level=debug"}});
  EXPECT_EQ(recipe.comm.transport, Transport::kEmulated);
  EXPECT_EQ(recipe.comm.ranks, 4);
  EXPECT_EQ(recipe.comm.deadline, 30s);
  EXPECT_EQ(recipe.emulated.bandwidth, 12'500'000'000);
  EXPECT_EQ(recipe.emulated.latency, 5us);
  EXPECT_EQ(recipe.log.level, LogLevel::kDebug);
  EXPECT_EQ(origins.at("comm.ranks"), "x.toml:3");
}

TEST(Recipe, WritesBackAsTheSame) {
  Recipe recipe;
  recipe.run = {.name = "a run", .seed = 7, .out = "/tmp/x"};
  recipe.comm = {.transport = Transport::kEmulated, .ranks = 6, .ranks_per_node = 3, .deadline = 90s, .spin = 0s};
  recipe.emulated.latency = 1500ns;
  EXPECT_EQ(load_recipe({.text = config::to_toml(recipe)}).value, recipe);
}

TEST(Recipe, EveryKeyHasAMeaning) {
  const std::function<void(const config::Schema&)> check = [&](const config::Schema& schema) {
    for (const auto& field : schema.fields) EXPECT_FALSE(field.meaning.empty()) << field.name;
    for (const auto& part : schema.parts) {
      EXPECT_FALSE(part.schema->meaning.empty()) << part.name;
      check(*part.schema);
    }
  };
  check(recipe_schema());
}

/// The reason why a recipe with one key is refused.
std::string refusal(const std::string& assignment) {
  try {
    (void)load_recipe({.sets = {assignment}});
  } catch (const config::ProblemsError& error) {
    return error.problems().front().reason;
  }
  return "";
}

TEST(Recipe, KeysThatWereRenamedNameTheirSuccessor) {
  const std::vector<std::pair<std::string, std::string>> renamed = {
      {"model.width", "model.hidden_size"},
      {"model.inner", "model.ffn_size"},
      {"model.vocabulary", "model.vocab_size"},
      {"model.positions", "model.max_seq_len"},
      {"model.layers", "model.num_layers"},
      {"model.encoder_layers", "model.num_encoder_layers"},
      {"model.heads", "model.num_heads"},
      {"model.kv_heads", "model.num_kv_heads"},
      {"model.head_size", "model.head_dim"},
      {"model.rotary.low_frequency", "model.rotary.low_freq_factor"},
      {"model.rotary.high_frequency", "model.rotary.high_freq_factor"},
      {"model.rotary.original_positions", "model.rotary.original_max_position_embeddings"},
      {"data.sequence", "data.seq_len"},
      {"data.source_sequence", "data.source_seq_len"},
      {"data.synthetic.vocabulary", "data.synthetic.vocab_size"},
      {"batch.size", "batch.global_batch_tokens"},
      {"train.microbatch", "train.micro_batch_size"},
      {"train.capture", "train.cuda_graphs"},
      {"train.tune", "train.gemm_autotune"},
      {"train.remake_norms", "train.recompute_norms"},
      {"train.keep_active", "train.save_mlp_activations"},
      {"precision.products", "precision.gemm"},
      {"precision.products_keep", "precision.gemm_exclude"},
      {"precision.masters", "precision.master_weights"},
      {"layout.offload_delay", "layout.delayed_update"},
      {"layout.shares", "layout.dp_batch_weights"},
      {"layout.cp_inner", "layout.cp_ulysses"},
      {"layout.keep_gathered", "layout.sp_save_gathered"},
      {"optim.states", "optim.state_dtype"},
      {"optim.clip", "optim.grad_clip_norm"},
      {"checkpoint.failures", "checkpoint.mtbf"},
      {"health.not_finite", "health.non_finite"},
      {"health.most_skips", "health.max_skips"},
      {"schedule.kind", "lr_schedule"},
      {"latent.query_rank", "model.mla"},
  };
  for (const auto& [before, now] : renamed) {
    EXPECT_EQ(refusal(before + "=1"), fmt::format("unknown key; did you mean \"{}\"?", now)) << before;
  }
}

/// Names of other programs lead to ours, from whichever section they stand in.
TEST(Recipe, NamesOfOtherProgramsLeadToOurs) {
  const std::vector<std::pair<std::string, std::string>> foreign = {
      {"optim.lr", "optim.learning_rate"},
      {"train.lr", "optim.learning_rate"},
      {"lr", "optim.learning_rate"},
      {"model.n_layer", "model.num_layers"},
      {"model.num_hidden_layers", "model.num_layers"},
      {"model.n_embd", "model.hidden_size"},
      {"model.rope_theta", "model.rotary.base"},
      {"model.block_size", "data.seq_len"},
      {"data.block_size", "data.seq_len"},
      {"train.max_iters", "train.steps"},
      {"train.max_steps", "train.steps"},
      {"optim.grad_clip", "optim.grad_clip_norm"},
      {"train.max_grad_norm", "optim.grad_clip_norm"},
      {"train.batch_size", "batch.global_batch_tokens"},
      {"train.per_device_train_batch_size", "train.micro_batch_size"},
      {"train.grad_accum_steps", "train.gradient_accumulation_steps"},
      {"layout.tensor_model_parallel_size", "layout.tp"},
      {"train.eval_interval", "eval.every"},
      {"train.out_dir", "run.out"},
      {"train.warmup_iters", "lr_schedule.warmup"},
      {"optimizer.lr", "optim"},
      {"training.steps", "train"},
      {"mla.q_lora_rank", "model.mla"},
      {"moe.num_experts", "experts"},
  };
  for (const auto& [theirs, ours] : foreign) {
    EXPECT_EQ(refusal(theirs + "=1"), fmt::format("unknown key; did you mean \"{}\"?", ours)) << theirs;
  }
  // Each leads to a key or section that is there, and is none itself.
  const auto is_key = [](const std::string& key) {
    const config::Schema* schema = &recipe_schema();
    const auto names = split(key, '.');
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (i + 1 == names.size() && (schema->find_field(names[i]) || schema->find_part(names[i]))) return true;
      const config::Part* part = schema->find_part(names[i]);
      if (part == nullptr) return false;
      schema = part->schema.get();
    }
    return false;
  };
  EXPECT_GT(recipe_schema().foreign.size(), 150u);
  std::set<std::string> seen;
  for (const auto& [name, key] : recipe_schema().foreign) {
    EXPECT_TRUE(is_key(key)) << name << " leads to " << key;
    EXPECT_TRUE(seen.insert(name).second) << name << " is listed twice";
  }
}

TEST(Recipe, TheKeysOfASectionAreListedOnce) {
  try {
    (void)load_recipe({.text = "[eval]\nxxxxxxxxxx = 1\nyyyyyyyyyy = 2\nzzzzzzzzzz = 3\n"});
    FAIL() << "unknown keys";
  } catch (const config::ProblemsError& error) {
    ASSERT_EQ(error.problems().size(), 3u);
    EXPECT_EQ(error.problems()[0].reason, "unknown key; the keys of [eval] are every, samples and weights");
    EXPECT_EQ(error.problems()[1].reason, "unknown key; the keys of [eval] are listed above");
    EXPECT_EQ(error.problems()[2].reason, "unknown key; the keys of [eval] are listed above");
  }
}

TEST(Recipe, NothingAfterTheEqualsSignEmptiesAList) {
  const std::string text =
      "[data]\ntokenizer = \"bytes\"\n[[data.sources]]\npath = \"a\"\n[[data.sources]]\npath = \"b\"\n"
      "[train]\nfreeze = [\"head.*\"]\n";
  const Recipe recipe = load_recipe({.text = text, .sets = {"data.sources=", "train.freeze="}}).value;
  EXPECT_TRUE(recipe.data.sources.empty());
  EXPECT_TRUE(recipe.train.freeze.empty());
}

TEST(Recipe, TheServersSectionIsReservedAndSaysWhereItsOptionsAre) {
  EXPECT_EQ(refusal("serve.kind=1"),
            "is reserved for the inference server, which takes flags so far: trireme serve --help");
}

/// Each contradiction is found under its key, and following the hint resolves it.
struct Contradiction {
  const char* name;
  std::vector<std::string> sets;
  const char* key;
  const char* reason;
  std::vector<std::string> fix;  // what the hint says, as --set
  const char* hint;
};

class Contradictions : public testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, AreFoundAndTheirHintHelps) {
  const Contradiction& given = GetParam();
  expect_contradiction(given.sets, {given.key, given.reason, given.hint}, given.fix);
}

INSTANTIATE_TEST_SUITE_P(
    All, Contradictions,
    testing::Values(
        Contradiction{"MoreRanksPerNodeThanRanks",
                      {"comm.ranks=4", "comm.ranks_per_node=8"},
                      "comm.ranks_per_node",
                      "is 8, more than the 4 ranks",
                      {"comm.ranks_per_node=4"},
                      "set comm.ranks_per_node = 4"},
        Contradiction{"SpinBeyondDeadline",
                      {"comm.deadline=1s", "comm.spin=2s"},
                      "comm.spin",
                      "is 2s, but comm.deadline = 1s",
                      {"comm.spin=500ms"},
                      "set comm.spin = \"500ms\""},
        Contradiction{"EmulatedNotUsed",
                      {"comm.transport=threads", "emulated.latency=1ms"},
                      "emulated",
                      "comm.transport = \"threads\" does not use it",
                      {"comm.transport=emulated"},
                      "set comm.transport = \"emulated\""},
        Contradiction{"NameIsNoFolder",
                      {"run.name=a/b"},
                      "run.name",
                      "\"a/b\" cannot be the name of a folder",
                      {"run.name=a-b"},
                      "letters, digits"},
        Contradiction{"NoOut", {"run.out="}, "run.out", "is empty", {"run.out=runs"}, "set run.out = \"runs\""},
        Contradiction{
            "NoAlgorithm", {"comm.algorithm="}, "comm.algorithm", "is empty", {"comm.algorithm=auto"}, "\"auto\""}),
    [](const auto& given) { return given.param.name; });

TEST(Recipe, EnvironmentVariablesBeatTheFileAndAreBeatenBySet) {
  unsetenv("TRIREME_COMM_ALGORITHM");
  setenv("TRIREME_COMM_DEADLINE", "45s", 1);
  config::Input input{.file = "x.toml", .text = "[comm]\ndeadline = \"30s\"\n", .environment = recipe_environment()};
  const auto [recipe, origins] = load_recipe(input);
  EXPECT_EQ(recipe.comm.deadline, 45s);
  EXPECT_EQ(origins.at("comm.deadline"), "TRIREME_COMM_DEADLINE");
  input.sets = {"comm.deadline=60s"};
  EXPECT_EQ(load_recipe(input).value.comm.deadline, 60s);

  setenv("TRIREME_COMM_DEADLINE", "soon", 1);
  try {
    (void)load_recipe({.environment = recipe_environment()});
    FAIL();
  } catch (const config::ProblemsError& error) {
    EXPECT_THAT(error.problems(), ElementsAre(Field(&Problem::where, "TRIREME_COMM_DEADLINE")));
  }
  unsetenv("TRIREME_COMM_DEADLINE");
  EXPECT_THAT(recipe_environment(), IsEmpty());
}

TEST(Recipe, AllContradictionsAreReportedTogether) {
  Recipe recipe;
  recipe.comm = {.ranks = 2, .ranks_per_node = 3, .deadline = 1s, .spin = 1s};
  recipe.emulated.latency = 1ms;
  EXPECT_THAT(find_problems(recipe), ElementsAre(Field(&Problem::key, "comm.ranks_per_node"),
                                                 Field(&Problem::key, "comm.spin"), Field(&Problem::key, "emulated")));
}

}  // namespace
}  // namespace trireme::spec
