// The inference engine on a GPU: the tokens of the CPU, with CUDA graphs and without.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/gpu/support.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/quantise_model.h"

namespace trireme::gpu {
namespace {

using serve::EngineOptions;
using serve::EngineRequest;
using serve::GeneratedToken;
using serve::InferenceEngine;

spec::ModelShape served_shape(spec::Family family) {
  spec::ModelShape shape = spec::family_shape(family);
  shape.num_layers = 2;
  shape.hidden_size = 128;
  shape.num_heads = 4;
  shape.num_kv_heads = family == spec::Family::kGpt2 ? 4 : 2;
  shape.head_dim = 32;
  shape.ffn_size = 256;
  shape.max_seq_len = 256;
  shape.vocab_size = 320;
  shape.num_encoder_layers = 0;
  if (family == spec::Family::kMistral) shape.window = 20;
  return shape;
}

/// Weights so large that logits lie far apart: two devices then agree on the largest.
std::unique_ptr<models::Model> served_model(spec::Family family, at::Device device, nn::Precision precision) {
  auto model = models::build(served_shape(family));
  nn::initialise(model->params, precision, 5, device);
  for (nn::Param& param : model->params) {
    if (param.placement.shape.size() == 2) {
      param.value.copy_(normal_tensor(param.value.sizes(), at::kFloat, param.name, 0.15));
    }
  }
  return model;
}

std::vector<EngineRequest> served_requests(std::size_t count, bool drawn) {
  const Random random(11, "requests");
  std::vector<EngineRequest> requests;
  for (std::size_t i = 0; i < count; ++i) {
    EngineRequest request{.id = i, .max_new_tokens = 1 + static_cast<std::int64_t>(random.below(24, 3 * i))};
    const auto length = static_cast<std::size_t>(1 + random.below(70, 3 * i + 1));
    const std::size_t like = i % 3 == 2 ? i - 1 : i;  // every third begins as the one before
    for (std::size_t at = 0; at < length; ++at) {
      request.prompt.push_back(static_cast<std::int64_t>(random.below(320, 1000 * (like + 1) + at)));
    }
    if (drawn && i % 4 == 1) request.sampling = {.temperature = 0.7, .top_p = 0.9, .seed = i};
    if (drawn && i % 4 == 2) request.sampling = {.frequency_penalty = 0.5};
    if (drawn && i % 4 == 3) request.sampling = {.temperature = 1, .top_k = 5, .min_p = 0.05, .seed = i};
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::vector<std::int64_t>> answers_of(InferenceEngine& engine, std::vector<EngineRequest> requests) {
  std::vector<std::vector<std::int64_t>> answers(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_token = [&, i](const GeneratedToken& token) { answers[i].push_back(token.token); };
    EXPECT_EQ(engine.add(std::move(requests[i])), std::nullopt);
  }
  while (!engine.idle()) engine.step();
  engine.scheduler().check();
  return answers;
}

const std::vector<spec::Family> kServed = {spec::Family::kGpt2, spec::Family::kLlama, spec::Family::kMistral,
                                           spec::Family::kQwen2, spec::Family::kQwen3};

TEST(GpuEngine, SixtyFourMixedRequestsHaveTheTokensOfTheCpu) {
  for (const spec::Family family : kServed) {
    SCOPED_TRACE(static_cast<int>(family));
    const auto here = served_model(family, at::kCPU, nn::Precision::kFp32);
    const auto there = served_model(family, gpu(), nn::Precision::kFp32);
    const EngineOptions options{.max_batch_tokens = 96, .max_sequences = 24, .prefill_chunk = 32, .kv_tokens = 1024};
    InferenceEngine on_cpu(*here, options), on_gpu(*there, options);
    const auto requests = served_requests(64, /*drawn=*/true);
    const auto expected = answers_of(on_cpu, requests), actual = answers_of(on_gpu, requests);
    std::size_t differ = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      differ += expected[i] != actual[i];
      if (requests[i].sampling.temperature <= 0) {
        EXPECT_EQ(expected[i], actual[i]) << "request " << i;
      }
    }
    EXPECT_LE(differ, 1U);  // a draw may fall between two tokens whose weights differ in their last bits
    EXPECT_GT(on_gpu.captured_graphs(), 0U);
  }
}

TEST(GpuEngine, GraphsAndSingleLaunchesGiveTheSameTokens) {
  for (const nn::Precision precision : {nn::Precision::kFp32, nn::Precision::kBf16}) {
    for (const spec::Family family : kServed) {
      SCOPED_TRACE(static_cast<int>(family));
      const auto model = served_model(family, gpu(), precision);
      EngineOptions options{.max_sequences = 8, .prefill_chunk = 64, .kv_tokens = 2048};
      InferenceEngine replays(*model, options);
      options.cuda_graphs = false;
      InferenceEngine launches(*model, options);
      const auto requests = served_requests(24, /*drawn=*/false);
      EXPECT_EQ(answers_of(replays, requests), answers_of(launches, requests));
      EXPECT_GT(replays.captured_graphs(), 0U);
      EXPECT_EQ(launches.captured_graphs(), 0U);
      // A second round through graphs that are there.
      EXPECT_EQ(answers_of(replays, requests), answers_of(launches, requests));
    }
  }
}

TEST(GpuEngine, TokensDoNotDependOnWhatIsBeside) {
  const auto model = served_model(spec::Family::kLlama, gpu(), nn::Precision::kFp32);
  const auto requests = served_requests(16, /*drawn=*/false);
  InferenceEngine together(*model, {.max_sequences = 16, .kv_tokens = 2048});
  const auto answers = answers_of(together, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    InferenceEngine alone(*model, {.max_sequences = 1, .kv_tokens = 256, .prefix_cache = false});
    EXPECT_EQ(answers_of(alone, {requests[i]})[0], answers[i]) << "request " << i;
  }
}

TEST(GpuEngine, SpeculationGivesTheSameTokens) {
  const auto model = served_model(spec::Family::kLlama, gpu(), nn::Precision::kFp32);
  const auto requests = served_requests(12, /*drawn=*/false);
  InferenceEngine plain(*model, {.kv_tokens = 2048}), guesses(*model, {.kv_tokens = 2048});
  guesses.set_drafter(serve::ngram_drafter({.most = 3}));
  EXPECT_EQ(answers_of(plain, requests), answers_of(guesses, requests));
}

/// A sequence alone is computed by the kernel that streams weights where rows are long, two by that for few rows.
TEST(GpuEngine, OneSequenceHasTheLogitsOfTwo) {
  spec::ModelShape shape = served_shape(spec::Family::kLlama);
  shape.hidden_size = 256, shape.head_dim = 64, shape.ffn_size = 8192;
  for (const auto format : {kernels::WeightFormat::kInt8, kernels::WeightFormat::kInt4, kernels::WeightFormat::kE4m3}) {
    SCOPED_TRACE(static_cast<int>(format));
    const auto model = models::build(shape);  // anew: weights in fewer bits take the place of the model's
    nn::initialise(model->params, nn::Precision::kBf16, 5, gpu());
    const auto few = serve::quantise_model(*model, {.format = format});
    const auto run = [&](std::size_t sequences) {
      std::vector<std::vector<float>> rows;  // of the first
      InferenceEngine engine(*model, {.kv_tokens = 1024, .quantised = &few});
      for (std::size_t i = 0; i < sequences; ++i) {
        EngineRequest request{.id = i, .prompt = {5, 17, 300, 4}, .max_new_tokens = 20};
        request.on_logits = [&rows, i](std::span<const float> logits) {
          if (i == 0) rows.emplace_back(logits.begin(), logits.end());
        };
        EXPECT_EQ(engine.add(std::move(request)), std::nullopt);
      }
      while (!engine.idle()) engine.step();
      return rows;
    };
    const auto alone = run(1), both = run(2);
    std::size_t step = 0;
    for (bool same = true; same && step < alone.size() && step < both.size(); ++step) {
      const auto &a = alone[step], &b = both[step];
      float most = 0, off = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        most = std::max(most, std::abs(a[i]));
        off = std::max(off, std::abs(a[i] - b[i]));
      }
      EXPECT_LE(off, 0.03F * most) << "step " << step;
      same = std::ranges::max_element(a) - a.begin() == std::ranges::max_element(b) - b.begin();
    }
    EXPECT_GE(step, 4U);
  }
}

TEST(GpuEngine, WeightsInFewerBitsGiveTheTokensOfTheCpusSameWeights) {
  for (const auto format : {kernels::WeightFormat::kInt8, kernels::WeightFormat::kInt4, kernels::WeightFormat::kE4m3}) {
    SCOPED_TRACE(static_cast<int>(format));
    const auto here = served_model(spec::Family::kLlama, at::kCPU, nn::Precision::kFp32);
    const auto there = served_model(spec::Family::kLlama, gpu(), nn::Precision::kFp32);
    const auto few_here = serve::quantise_model(*here, {.format = format});
    const auto few_there = serve::quantise_model(*there, {.format = format});
    EXPECT_EQ(few_here.size(), 8U);
    InferenceEngine on_cpu(*here, {.kv_tokens = 1024, .quantised = &few_here});
    InferenceEngine on_gpu(*there, {.kv_tokens = 1024, .quantised = &few_there});
    const auto requests = served_requests(8, /*drawn=*/false);
    EXPECT_EQ(answers_of(on_cpu, requests), answers_of(on_gpu, requests));
    // In bf16 the kernels for few rows take them; tokens may differ from fp32's, but come out.
    const auto narrow = served_model(spec::Family::kLlama, gpu(), nn::Precision::kBf16);
    const auto few = serve::quantise_model(*narrow, {.format = format});
    InferenceEngine in_bf16(*narrow, {.kv_tokens = 1024, .quantised = &few});
    const auto answers = answers_of(in_bf16, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(answers[i].size(), static_cast<std::size_t>(requests[i].max_new_tokens));
    }
  }
}

}  // namespace
}  // namespace trireme::gpu
