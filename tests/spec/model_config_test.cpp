// The [model] section, and the recipes of published models.
#include "trireme/spec/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelShape shape_from(const std::string& text) { return shape_of(load_recipe({.text = text}).value.model).value(); }

TEST(ModelConfig, WithoutAFamilyIsNoModel) {
  EXPECT_EQ(shape_of(Recipe().model), std::nullopt);
  try {
    (void)load_recipe({.text = "[model]\nnum_layers = 3\n"});
    FAIL() << "layers of nothing";
  } catch (const config::ProblemsError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_EQ(error.problems()[0].key, "model");
    EXPECT_THAT(error.problems()[0].hint, HasSubstr("model.family = \"gpt2\""));
  }
  EXPECT_EQ(shape_from("[model]\nnum_layers = 3\nfamily = \"gpt2\"\n").num_layers, 3);  // as the hint says
}

TEST(ModelConfig, ChangesWhatIsGivenAndKeepsTheRest) {
  ModelShape expected = family_shape(Family::kLlama);
  EXPECT_EQ(shape_from("[model]\nfamily = \"llama\"\n"), expected);
  expected.num_layers = 2;
  expected.activation = Activation::kGelu;
  expected.tied = true;
  expected.rotary.scaling = RotaryScaling::kYarn;
  expected.rotary.factor = 4;
  EXPECT_EQ(shape_from("[model]\nfamily = \"llama\"\nnum_layers = 2\nactivation = \"gelu\"\ntied = true\n"
                       "[model.rotary]\nscaling = \"yarn\"\nfactor = 4\n"),
            expected);
}

TEST(ModelConfig, SaysEveryMemberOfAShape) {
  // Every member at a value that no family has: none is forgotten on the way there and back.
  ModelShape shape = family_shape(Family::kQwen3);
  shape.vocab_size = 11, shape.max_seq_len = 13, shape.hidden_size = 17, shape.num_layers = 19,
  shape.num_encoder_layers = 23;
  shape.num_heads = 10, shape.num_kv_heads = 5, shape.head_dim = 26, shape.ffn_size = 29, shape.segments = 31;
  shape.norm = NormKind::kLayer, shape.epsilon = 0.125, shape.norm_first = false;
  shape.activation = Activation::kRelu, shape.gated = false;
  shape.attention_bias = shape.output_bias = shape.mlp_bias = true;
  shape.query_key_norm = false, shape.causal = false, shape.position_kind = PositionKind::kSinusoidal;
  shape.rotary = {2, RotaryScaling::kLinear, 3, 4, 5, 6, 7, 8, 9, false, 10, 11};
  shape.mla = {.q_lora_rank = 43, .kv_lora_rank = 47, .qk_rope_head_dim = 48, .v_head_dim = 53};
  shape.window = 37, shape.window_layers = WindowLayers::kFrom, shape.window_from = 41;
  shape.tied = false, shape.embedding_scale = true;
  shape.mtp_depth = 3, shape.mtp_loss_weight = 0.875;
  shape.dropout = 0.5, shape.attention_dropout = 0.25, shape.label_smoothing = 0.375, shape.z_loss = 0.0625;
  shape.init_std = 0.75, shape.scaled_residual_init = true;
  EXPECT_EQ(shape_of(config_of(shape)), shape);
  EXPECT_EQ(config::to_toml(shape_of(config_of(shape)) ? config_of(shape) : ModelConfig()),
            config::to_toml(config_of(shape)));
  // All 50 members beside the family differ; a new one must be added to visit_pairs() and here.
  EXPECT_EQ(differences(shape, family_shape(Family::kQwen3)).size(), 50u);
}

TEST(ModelConfig, OfAFamilyIsItsNameAlone) {
  for (const auto& [name, family] : enum_names(std::type_identity<Family>())) {
    EXPECT_EQ(config_of(family_shape(family)), ModelConfig{.family = family}) << name;
  }
}

TEST(ModelConfig, DifferencesAreNamedAsInARecipe) {
  ModelShape shape = family_shape(Family::kLlama);
  EXPECT_THAT(differences(shape, shape), IsEmpty());
  shape.window = 4;
  shape.rotary.factor = 2.5;
  EXPECT_THAT(differences(shape, family_shape(Family::kLlama)), ElementsAre("window = 4", "rotary.factor = 2.5"));
}

TEST(ModelConfig, ProblemsOfTheShapeAreProblemsOfTheRecipe) {
  try {
    (void)load_recipe(
        {.file = "x.toml", .text = "[model]\nfamily = \"gpt2\"\nhidden_size = 1024\nnum_heads = 12\nhead_dim = 64\n"});
    FAIL() << "twelve heads of 64 in a hidden size of 1,024";
  } catch (const config::ProblemsError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_EQ(error.problems()[0].key, "model.num_heads");
    EXPECT_THAT(error.problems()[0].reason, HasSubstr("12 heads of dimension 64 make 768, but hidden_size is 1024"));
    EXPECT_THAT(error.problems()[0].hint, HasSubstr("set model.num_heads = 16 and model.num_kv_heads = 16"));
  }
  EXPECT_NO_THROW((void)load_recipe(
      {.text = "[model]\nfamily = \"gpt2\"\nhidden_size = 1024\nnum_heads = 16\nnum_kv_heads = 16\nhead_dim = 64\n"}));
}

/// [experts] without num_experts beside a folder: its experts with the keys that are given. A default cannot be told
/// from a key that is not given, so it is refused, unless the section stands there whole, as `recipe show` prints it.
TEST(ModelConfig, SingleKeysOfExpertsChangeThoseOfAFolder) {
  const auto load = [](const std::string& experts) {
    return load_recipe({.text = "[model]\ninit_from = \"mixtral\"\n[experts]\n" + experts}).value;
  };
  ModelShape stored = family_shape(Family::kMistral);
  stored.experts = {.num_experts = 8, .top_k = 2, .norm_topk_prob = false, .aux_loss_weight = 0.02};
  const ModelShape shape = with_keys(stored, load("aux_loss_weight = 0.1\nnode_ranks = 4\n").model);
  Experts expected = stored.experts;
  expected.aux_loss_weight = 0.1, expected.node_ranks = 4;
  EXPECT_EQ(shape.experts, expected);
  EXPECT_EQ(with_keys(stored, ModelConfig{}).experts, stored.experts);
  const auto refused = [&](const std::string& experts) -> std::vector<config::Problem> {
    try {
      (void)load(experts);
    } catch (const config::ProblemsError& error) {
      return error.problems();
    }
    return {};
  };
  const auto problems = refused("aux_loss_weight = 0.0\nnode_ranks = 4\n");
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].key, "experts.aux_loss_weight");
  EXPECT_THAT(problems[0].hint, HasSubstr("num_experts"));
  EXPECT_THAT(refused("num_experts = 8\ntop_k = 2\naux_loss_weight = 0.0\n"), IsEmpty());
  EXPECT_EQ(load("num_experts = 0\naux_loss_weight = 0.1\ntop_k = 1\n").model.experts.aux_loss_weight, 0.1);
  // Without a folder nothing would use them.
  EXPECT_THROW((void)load_recipe({.text = "[model]\nfamily = \"mistral\"\n[experts]\naux_loss_weight = 0.1\n"}),
               config::ProblemsError);
}

/// What is not given follows from what is, not from the family's smallest published model.
TEST(ModelConfig, SizesThatAreLeftOutAreDerived) {
  const ModelShape llama = shape_from("[model]\nfamily = \"llama\"\nhidden_size = 96\nnum_heads = 4\n");
  EXPECT_EQ(llama.head_dim, 24);
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_EQ(llama.ffn_size, 336);  // 3.5, as Llama 3 8B and 70B
  EXPECT_EQ(shape_from("[model]\nfamily = \"llama\"\nhidden_size = 8192\nnum_heads = 64\n").ffn_size, 28672);
  const ModelShape gpt = shape_from("[model]\nfamily = \"gpt2\"\nhidden_size = 1600\n");
  EXPECT_EQ(gpt.num_heads, 25);  // of 64, as GPT-2 XL
  EXPECT_EQ(gpt.head_dim, 64);
  EXPECT_EQ(gpt.ffn_size, 6400);
  const ModelShape narrow = shape_from("[model]\nfamily = \"qwen2\"\nhidden_size = 96\n");
  EXPECT_EQ(narrow.num_heads * narrow.head_dim, 96);
  EXPECT_EQ(narrow.ffn_size % 16, 0);
  EXPECT_EQ(shape_from("[model]\nfamily = \"llama\"\nhidden_size = 512\nnum_heads = 8\nnum_kv_heads = 2\n"
                       "head_dim = 32\nffn_size = 1000\n")
                .ffn_size,
            1000);  // what is given stays
  // Only the number of layers: nothing that others follow from.
  ModelShape deep = family_shape(Family::kLlama);
  deep.num_layers = 80;
  EXPECT_EQ(shape_from("[model]\nfamily = \"llama\"\nnum_layers = 80\n"), deep);
}

TEST(ModelConfig, HeadsThatDoNotDivideTheHiddenSizeAreNamedWithSomeThatDo) {
  try {
    (void)load_recipe({.text = "[model]\nfamily = \"llama\"\nhidden_size = 96\nnum_heads = 5\n"});
    FAIL() << "five heads of 19.2";
  } catch (const config::ProblemsError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_EQ(error.problems()[0].key, "model.num_heads");
    EXPECT_THAT(error.problems()[0].reason, HasSubstr("5 does not divide hidden_size = 96"));
    EXPECT_EQ(error.problems()[0].hint, "set model.num_heads = 4");
  }
  EXPECT_NO_THROW((void)load_recipe({.text = "[model]\nfamily = \"llama\"\nhidden_size = 96\nnum_heads = 4\n"}));
}

TEST(ModelConfig, AShapeInALine) {
  EXPECT_EQ(shape_text(shape_from("[model]\nfamily = \"llama\"\nhidden_size = 96\nnum_heads = 4\nnum_kv_heads = 2\n"
                                  "num_layers = 3\nvocab_size = 2048\nmax_seq_len = 256\n")),
            "llama, 3 layers, hidden_size 96, 4 heads of 24 (2 for keys and values), ffn_size 336, vocab_size 2048, "
            "max_seq_len 256");
}

struct Published {
  double parameters, within;  ///< `within`: how far the published count is rounded
};
const std::map<std::string, Published> kPublished = {
    {"gpt2-124m", {124'439'808, 0}},    {"gpt2-355m", {354'823'168, 0}},     {"gpt2-774m", {774'030'080, 0}},
    {"gpt2-1.5b", {1'557'611'200, 0}},  {"gpt3-175b", {174.6e9, 0.05e9}},    {"gpt3-125m", {125e6, 0.5e6}},
    {"gpt3-350m", {356e6, 0.5e6}},      {"gpt3-760m", {760e6, 0.5e6}},       {"gpt3-1.3b", {1320e6, 5e6}},
    {"gpt3-2.7b", {2650e6, 5e6}},       {"gpt3-6.7b", {6660e6, 5e6}},        {"gpt3-13b", {12850e6, 5e6}},
    {"llama3-8b", {8'030'261'248, 0}},  {"llama3-70b", {70'553'706'496, 0}}, {"llama3-405b", {405'853'388'800, 0}},
    {"mistral-7b", {7'241'732'096, 0}}, {"bert-large", {335'174'458, 0}},    {"transformer-base", {65e6, 3e6}},
    {"transformer-big", {213e6, 5e6}},  {"qwen2.5-0.5b", {494'032'768, 0}},  {"qwen3-0.6b", {596'049'920, 0}},
};

TEST(Recipes, OfPublishedModelsHaveTheirParameters) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRIREME_RECIPES "/models")) {
    const std::string name = entry.path().stem().string();
    const Recipe recipe = load_recipe({.file = entry.path().string()}).value;
    EXPECT_EQ(recipe.run.name, name);
    const auto shape = shape_of(recipe.model);
    ASSERT_TRUE(shape) << name;
    ASSERT_TRUE(kPublished.contains(name)) << name << " has no published count here";
    const auto& [parameters, within] = kPublished.at(name);
    EXPECT_NEAR(static_cast<double>(count_parameters(*shape).total()), parameters, within) << name;
    ++found;
  }
  EXPECT_EQ(found, kPublished.size());
}

/// Table 2.1 of GPT-3: batches of 0.5M to 3.2M tokens, in whole sequences, at rates that fall with the size.
TEST(Recipes, OfGpt3HaveItsBatchAndLearningRate) {
  const std::map<std::string, std::pair<double, double>> table = {
      {"125m", {0.5, 6e-4}}, {"350m", {0.5, 3e-4}}, {"760m", {0.5, 2.5e-4}}, {"1.3b", {1, 2e-4}},
      {"2.7b", {1, 1.6e-4}}, {"6.7b", {2, 1.2e-4}}, {"13b", {2, 1e-4}},      {"175b", {3.2, 0.6e-4}}};
  for (const auto& [size, published] : table) {
    const Recipe recipe = load_recipe({.file = TRIREME_RECIPES "/models/gpt3-" + size + ".toml"}).value;
    EXPECT_EQ(recipe.optim.learning_rate, published.second) << size;
    EXPECT_NEAR(static_cast<double>(recipe.batch.global_batch_tokens) / (1024 * 1000), published.first,
                0.05 * published.first)
        << size;
    EXPECT_EQ(recipe.batch.global_batch_tokens % recipe.data.seq_len, 0) << size;
    EXPECT_EQ(*recipe.batch.start % recipe.data.seq_len, 0) << size;
    EXPECT_TRUE(*recipe.batch.over >= 4'000'000'000 && *recipe.batch.over <= 12'000'000'000) << size;
  }
}

/// Found by mutating recipes: such numbers once took for ever to find a hint for.
TEST(ModelShape, SizesBeyondReasonAreRefusedAtOnce) {
  ModelShape shape = family_shape(Family::kLlama);
  shape.num_heads = std::int64_t{1} << 62;
  shape.num_kv_heads = shape.num_heads - 1;
  const auto problems = find_problems(shape);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0].key, "model.num_heads");
  EXPECT_EQ(problems[1].key, "model.num_kv_heads");
}

}  // namespace
}  // namespace trireme::spec
