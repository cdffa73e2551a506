// Matrices in fewer bits: the engine computes with exactly what they stand for.
#include "trireme/models/quantised_tensors.h"
#include "trireme/serve/quantise_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/errors.h"
#include "tests/files.h"
#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank.h"
#include "trireme/models/matrix_codec.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/rank_model.h"

namespace trireme::serve {
namespace {

using kernels::QuantiseWeight;
using kernels::WeightFormat;

struct Quantised {
  std::vector<std::int64_t> tokens;
  std::vector<float> logits;  // of the last token
};

Quantised continue_with(models::Model& model, const nn::QuantisedWeights* quantised) {
  InferenceEngine engine(model, {.prefill_chunk = 4, .kv_tokens = 64, .quantised = quantised});
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
        if (!models::is_quantisable(param)) continue;
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

class QuantisedFolder : public OwnFolder {};

TEST_F(QuantisedFolder, GeneratesWhatItsCodesStandForOnOneRankAndOnTwo) {
  using models::CodecOptions;
  for (const std::string name : {"llama", "gpt2"}) {
    for (const CodecOptions& how :
         {CodecOptions{.format = WeightFormat::kInt8}, CodecOptions{.format = WeightFormat::kE4m3},
          CodecOptions{.format = WeightFormat::kInt4, .group = 8}}) {
      SCOPED_TRACE(name + std::to_string(static_cast<int>(how.format)));
      const auto model = models::load_published(formats::HfDirectory(models::fixture(name)), {});
      const auto path = folder_ / (name + std::to_string(static_cast<int>(how.format)));
      const auto read = [](const nn::Param& param, std::int64_t begin, std::int64_t end) {
        return param.master.view({-1}).narrow(0, begin, end - begin);
      };
      models::save_published(*model, path, formats::Dtype::kF32, read, {}, models::make_codec(how).get());
      const GenerateRequest request{.model = path, .prompts = {{1, 2, 3, 4}, {50, 60}}, .tokens = 8};
      const auto generated = [&](int ranks) {
        TokenLists added;
        comm::run_ranks(ranks, [&](comm::Rank& rank) {
          auto mine = generate(request, rank.world());
          if (rank.rank() == 0) added = std::move(mine);
        });
        return added;
      };
      const auto plain = models::load_published(formats::HfDirectory(path), {});  // dequantised
      EXPECT_EQ(generated(1), continue_prompts(*plain, request));
      if (name == "llama" && how.format == WeightFormat::kInt4) {  // 20 of 40 inputs
        EXPECT_THAT(message_of([&] { generated(2); }), testing::HasSubstr("no whole groups of 8"));
      } else {
        EXPECT_EQ(generated(2), generated(1));
      }
      comm::run_ranks(1, [&](comm::Rank& rank) {
        const auto opened = open_rank_model({.model = path}, rank.world());
        ASSERT_NE(opened->quantised(), nullptr);
        EXPECT_EQ(opened->quantised()->size(), static_cast<std::size_t>(4 * opened->model().shape.num_layers));
        EXPECT_THROW(open_rank_model({.model = path, .weights = WeightBits::kInt8}, rank.world()), ConfigError);
      });
    }
  }
}

TEST_F(QuantisedFolder, RoundsAsTheModelIsWhenItIsOpenedWithTheSameBits) {
  const GenerateRequest request{.model = models::fixture("llama"),
                                .prompts = {{1, 2, 3, 4}, {50, 60}},
                                .tokens = 8,
                                .weights = WeightBits::kInt8};
  auto model = models::load_published(formats::HfDirectory(models::fixture("llama")), {});
  const auto path = folder_ / "int8";
  const auto read = [](const nn::Param& param, std::int64_t begin, std::int64_t end) {
    return param.master.view({-1}).narrow(0, begin, end - begin);
  };
  models::save_published(*model, path, formats::Dtype::kF32, read, {},
                         models::make_codec({.format = WeightFormat::kInt8}).get());
  comm::run_ranks(1, [&](comm::Rank& rank) {
    GenerateRequest stored = request;
    stored.model = path;
    stored.weights = WeightBits::kSame;
    EXPECT_EQ(generate(stored, rank.world()), generate(request, rank.world()));
  });
}

/// The head's matrix in fewer bits: logits are those of what the codes stand for, tied or not, on one rank and on two.
TEST(QuantiseModel, LogitsComeFromTheHeadsCodes) {
  for (const std::string name : {"qwen2_tied", "llama"}) {
    const GenerateRequest request{
        .model = models::fixture(name), .prompts = {{1, 2, 3, 4}, {50, 60}}, .tokens = 8, .lm_head = WeightBits::kInt8};
    auto model = models::load_published(formats::HfDirectory(request.model), {});
    const bool tied = model->shape.tied;
    for (const models::NamedLayer& entry : model->layers) {
      if (entry.name != "head") continue;
      nn::QuantisedWeights quantised;
      quantise_head(*model, {.format = WeightFormat::kInt8}, quantised);
      ASSERT_EQ(quantised.size(), 1u);
      nn::Param& weight = *entry.params.front();
      EXPECT_EQ(weight.value.numel() > 0, tied) << "an embedding that is tied keeps its values";
      if (tied) continue;  // a plain model cannot have other numbers in its head than in its table
      weight.value = weight.master = kernels::dequantise_weight(quantised.at(&weight));
    }
    const auto on = [&](int ranks) {
      TokenLists added;
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        auto mine = generate(request, rank.world());
        if (rank.rank() == 0) added = std::move(mine);
      });
      return added;
    };
    const TokenLists generated = on(1);
    EXPECT_EQ(on(2), generated);
    if (!tied) {
      EXPECT_EQ(generated, continue_prompts(*model, request));
    }
    GenerateRequest plain = request;
    plain.lm_head = WeightBits::kSame;
    comm::run_ranks(1,
                    [&](comm::Rank& rank) { EXPECT_EQ(generate(plain, rank.world())[0].size(), generated[0].size()); });
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
