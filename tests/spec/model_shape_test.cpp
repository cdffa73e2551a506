#include "trireme/spec/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::spec {
namespace {

using testing::HasSubstr;

std::int64_t total(const ModelShape& shape) { return count_parameters(shape).total(); }

ModelShape gpt(std::int64_t layers, std::int64_t width, std::int64_t heads) {
  ModelShape shape = family_shape(Family::kGpt2);
  shape.num_layers = layers;
  shape.hidden_size = width;
  shape.num_heads = shape.num_kv_heads = heads;
  shape.head_dim = width / heads;
  shape.ffn_size = 4 * width;
  return shape;
}

TEST(ParameterCount, IsThePublishedOneOfGpt2) {
  EXPECT_EQ(total(gpt(12, 768, 12)), 124'439'808);
  EXPECT_EQ(total(gpt(24, 1024, 16)), 354'823'168);
  EXPECT_EQ(total(gpt(36, 1280, 20)), 774'030'080);
  EXPECT_EQ(total(gpt(48, 1600, 25)), 1'557'611'200);
}

TEST(ParameterCount, IsThePublishedOneOfGpt3) {
  ModelShape shape = gpt(96, 12288, 96);
  shape.max_seq_len = 2048;
  EXPECT_NEAR(static_cast<double>(total(shape)), 174.6e9, 0.05e9);  // table D.1 of the paper: 174,600M
}

TEST(ParameterCount, IsThePublishedOneOfLlama) {
  ModelShape shape = family_shape(Family::kLlama);
  EXPECT_EQ(total(shape), 8'030'261'248);
  shape.hidden_size = 8192, shape.num_layers = 80, shape.num_heads = 64, shape.ffn_size = 28672;
  EXPECT_EQ(total(shape), 70'553'706'496);
  shape.hidden_size = 16384, shape.num_layers = 126, shape.num_heads = 128, shape.ffn_size = 53248;
  EXPECT_EQ(total(shape), 405'853'388'800);
}

TEST(ParameterCount, IsThePublishedOneOfMistralAndQwen) {
  EXPECT_EQ(total(family_shape(Family::kMistral)), 7'241'732'096);
  EXPECT_EQ(total(family_shape(Family::kQwen2)), 494'032'768);
  EXPECT_EQ(total(family_shape(Family::kQwen3)), 596'049'920);
}

/// DeepSeek-V3's dense part, and the head that predicts a second token.
ModelShape deepseek_v3() {
  ModelShape shape = family_shape(Family::kLlama);
  shape.vocab_size = 129280, shape.hidden_size = 7168, shape.num_layers = 61, shape.ffn_size = 18432;
  shape.num_heads = shape.num_kv_heads = 128, shape.head_dim = 128;
  shape.mla = {.q_lora_rank = 1536, .kv_lora_rank = 512, .qk_rope_head_dim = 64, .v_head_dim = 128};
  return shape;
}

TEST(ParameterCount, OfLatentAttentionIsDeepSeeks) {
  const ModelShape shape = deepseek_v3();
  // 7168 x 1536 + 1536 + 1536 x 24576 + 7168 x 576 + 512 + 512 x 32768 + 16384 x 7168, two norms, and the MLP.
  const std::int64_t attention = 11'010'048 + 1536 + 37'748'736 + 4'128'768 + 512 + 16'777'216 + 117'440'512;
  const std::int64_t mlp = 3 * 7168 * std::int64_t{18432};
  EXPECT_EQ(count_parameters(shape).layers, 61 * (attention + 2 * 7168 + mlp));
  // Queries from the hidden state itself.
  ModelShape direct = shape;
  direct.mla.q_lora_rank = 0;
  EXPECT_EQ(count_parameters(direct).layers - count_parameters(shape).layers,
            61 * (7168 * std::int64_t{24576} - 11'010'048 - 1536 - 37'748'736));
  // A module: a layer, a projection of two hidden states, three norms.
  ModelShape further = shape;
  further.mtp_depth = 2;
  EXPECT_EQ(count_parameters(further).mtp, 2 * (attention + 2 * 7168 + mlp + 2 * 7168 * std::int64_t{7168} + 3 * 7168));
  EXPECT_EQ(total(further) - total(shape), count_parameters(further).mtp);
}

TEST(ModelShape, RefusesLatentAttentionThatCannotBe) {
  const auto problem = [](auto change) {
    ModelShape shape = deepseek_v3();
    change(shape);
    const auto found = find_problems(shape);
    return found.empty() ? std::string("none") : found[0].key + ": " + found[0].reason + " -> " + found[0].hint;
  };
  using testing::AllOf;
  EXPECT_EQ(problem([](ModelShape&) {}), "none");
  EXPECT_THAT(problem([](ModelShape& s) { s.mla.qk_rope_head_dim = 63; }),
              AllOf(HasSubstr("model.mla.qk_rope_head_dim"), HasSubstr("63"), HasSubstr("= 64")));
  EXPECT_THAT(problem([](ModelShape& s) { s.mla.v_head_dim = 193; }),
              AllOf(HasSubstr("model.mla.v_head_dim"), HasSubstr("192"), HasSubstr("= 128")));
  EXPECT_THAT(problem([](ModelShape& s) { s.num_kv_heads = 8; }),
              AllOf(HasSubstr("model.num_kv_heads"), HasSubstr("128"), HasSubstr("= 128")));
  EXPECT_THAT(problem([](ModelShape& s) { s.mla.kv_lora_rank = 0; }), HasSubstr("mla.kv_lora_rank"));
  EXPECT_THAT(problem([](ModelShape& s) { s.attention_bias = true; }), HasSubstr("set model.attention_bias = false"));
  EXPECT_THAT(problem([](ModelShape& s) { s.position_kind = PositionKind::kSinusoidal; }), HasSubstr("RoPE"));
  EXPECT_THAT(problem([](ModelShape& s) { s.mtp_depth = s.max_seq_len; }),
              AllOf(HasSubstr("model.mtp_depth"), HasSubstr("set model.mtp_depth = 1")));
  EXPECT_THAT(problem([](ModelShape& s) { s.mtp_depth = 1, s.causal = false; }), HasSubstr("causal"));
}

TEST(ParameterCount, IsThePublishedOneOfBert) {
  ModelShape shape = family_shape(Family::kBert);
  EXPECT_EQ(total(shape), 109'514'298);
  shape.hidden_size = 1024, shape.num_layers = 24, shape.num_heads = shape.num_kv_heads = 16, shape.ffn_size = 4096;
  EXPECT_EQ(total(shape), 335'174'458);
}

TEST(ParameterCount, IsNearThePublishedOneOfTheOriginalTransformer) {
  // Table 3 of the paper gives 65 and 213 million, rounded, for vocabularies of about 37,000.
  ModelShape shape = family_shape(Family::kTransformer);
  EXPECT_NEAR(static_cast<double>(total(shape)), 65e6, 3e6);
  shape.hidden_size = 1024, shape.num_heads = shape.num_kv_heads = 16, shape.ffn_size = 4096;
  EXPECT_NEAR(static_cast<double>(total(shape)), 213e6, 5e6);
}

TEST(FlopCount, IsTheFormulaOfTheMegatronPaper) {
  // 24 B s l h^2 (1 + s/6h + V/12lh) forward (Narayanan et al. 2021, appendix); with the mask, attention is half of it.
  const ModelShape shape = gpt(12, 768, 12);
  const double s = 1024, l = 12, h = 768, v = 50257;
  const FlopCount count = count_flops(shape, 1024);
  EXPECT_DOUBLE_EQ(count.projections, 24 * s * l * h * h);
  EXPECT_DOUBLE_EQ(count.head, 2 * s * h * v);
  EXPECT_DOUBLE_EQ(count.attention, 4 * l * h * s * (s + 1) / 2);
}

TEST(FlopCount, AWindowMakesAttentionLinear) {
  ModelShape shape = gpt(2, 64, 2);
  shape.window = 8;
  std::int64_t pairs = 0;
  for (int query = 0; query < 100; ++query) {
    for (int key = 0; key < 100; ++key) pairs += key <= query && key > query - 8;
  }
  EXPECT_DOUBLE_EQ(count_flops(shape, 100).attention, 2 * 4.0 * 64 * static_cast<double>(pairs));
  shape.window_layers = WindowLayers::kOdd;
  EXPECT_DOUBLE_EQ(count_flops(shape, 100).attention, 4.0 * 64 * (static_cast<double>(pairs) + 100 * 101 / 2));
}

TEST(ModelShape, ProblemsNameTheFieldAndSayWhatFits) {
  ModelShape shape = family_shape(Family::kLlama);
  EXPECT_TRUE(find_problems(shape).empty());
  shape.num_kv_heads = 12;
  shape.head_dim = 127;
  const auto problems = find_problems(shape);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].key, "model.num_kv_heads");
  EXPECT_THAT(problems[0].reason, HasSubstr("12 does not divide num_heads = 32"));
  shape.num_kv_heads = 8;  // as the hint says
  EXPECT_THAT(problems[0].hint, HasSubstr("num_kv_heads = 8"));
  EXPECT_EQ(problems[1].key, "model.head_dim");
  shape.head_dim = 128;
  EXPECT_TRUE(find_problems(shape).empty());
  shape.num_layers = 0;
  shape.dropout = 1;
  EXPECT_EQ(find_problems(shape).size(), 2u);
}

TEST(ModelShape, EveryFamilyIsSound) {
  for (const auto& [name, family] : enum_names(std::type_identity<Family>())) {
    EXPECT_TRUE(find_problems(family_shape(family)).empty()) << name;
    EXPECT_EQ(family_shape(family).family, family) << name;
  }
}

TEST(Window, GptThreeAlternates) {
  ModelShape shape = gpt(4, 64, 2);
  shape.window = 16;
  shape.window_layers = WindowLayers::kOdd;
  EXPECT_EQ(window_of(shape, 0), 0);
  EXPECT_EQ(window_of(shape, 1), 16);
  shape.window_layers = WindowLayers::kFrom;
  shape.window_from = 2;
  EXPECT_EQ(window_of(shape, 1), 0);
  EXPECT_EQ(window_of(shape, 3), 16);
}

}  // namespace
}  // namespace trireme::spec
