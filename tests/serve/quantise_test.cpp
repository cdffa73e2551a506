// Matrices in fewer bits: the engine computes with exactly what they stand for.
#include "trireme/serve/quantise_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/errors.h"
#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/serve/engine.h"

namespace trireme::serve {
namespace {

using kernels::QuantiseWeight;
using kernels::WeightFormat;

struct Quantised {
  std::vector<std::int64_t> tokens;
  std::vector<float> logits;  // of the last token
};

Quantised continue_with(models::Model& model, const nn::QuantisedWeights* quantised) {
  Engine engine(model, {.prefill_chunk = 4, .kv_tokens = 64, .quantised = quantised});
  Quantised out;
  EngineRequest request{.id = 1, .prompt = {3, 1, 4, 1, 5, 9, 2}, .max_new_tokens = 8};
  request.on_token = [&](const GeneratedToken& token) { out.tokens.push_back(token.token); };
  request.on_logits = [&](std::span<const float> row) { out.logits.assign(row.begin(), row.end()); };
  EXPECT_EQ(engine.add(std::move(request)), std::nullopt);
  while (!engine.idle()) engine.step();
  return out;
}

TEST(QuantiseModel, ComputesWithWhatTheFewBitsStandFor) {
  for (const spec::Family family : {spec::Family::kGpt2, spec::Family::kLlama}) {
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kE4m3}) {
      SCOPED_TRACE(static_cast<int>(format));
      const QuantiseWeight how{.format = format, .group = 12};
      auto few = models::build(models::tiny_shape(family)), plain = models::build(models::tiny_shape(family));
      models::fill(*few, nn::Precision::kFp32, 3);
      models::fill(*plain, nn::Precision::kFp32, 3);
      std::size_t matrices = 0;
      for (nn::Param& param : plain->params) {
        if (!is_quantised(param)) continue;
        ++matrices;
        param.value.copy_(kernels::dequantise_weight(kernels::quantise_weight(param.value, how)));
      }
      EXPECT_EQ(matrices, static_cast<std::size_t>(4 * few->shape.num_layers));
      const nn::QuantisedWeights weights = quantise_model(*few, how);
      EXPECT_EQ(weights.size(), matrices);
      for (const auto& [param, weight] : weights) EXPECT_EQ(param->value.numel(), 0) << param->name;
      const Quantised actual = continue_with(*few, &weights), expected = continue_with(*plain, nullptr);
      EXPECT_EQ(actual.tokens, expected.tokens);
      ASSERT_EQ(actual.logits.size(), expected.logits.size());
      for (std::size_t i = 0; i < actual.logits.size(); ++i) {
        EXPECT_NEAR(actual.logits[i], expected.logits[i], 2e-4 * (1 + std::abs(expected.logits[i])));
      }
    }
  }
}

TEST(QuantiseModel, NamesTheMatrixThatGroupsDoNotDivide) {
  auto model = models::build(models::tiny_shape(spec::Family::kLlama));
  models::fill(*model, nn::Precision::kFp32, 3);
  try {
    quantise_model(*model, {.format = WeightFormat::kInt4, .group = 7});
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("layers.0.attention.qkv.weight"));
    EXPECT_THAT(error.what(), testing::HasSubstr("groups of 7"));
  }
}

}  // namespace
}  // namespace trireme::serve
