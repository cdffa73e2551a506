// A KV cache in FP8: it takes the memory that is planned, loses little, and bits still depend on nobody else.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/rank_model.h"

namespace trireme::serve {
namespace {

using nn::KvCacheType;

std::unique_ptr<models::Model> some_model(spec::Family family, nn::Precision precision = nn::Precision::kFp32) {
  auto model = models::build(models::tiny_shape(family));
  models::fill(*model, precision, 3);
  return model;
}

std::vector<EngineRequest> some_requests(std::size_t count, std::int64_t vocab) {
  const Random random(31, "requests");
  std::vector<EngineRequest> requests;
  for (std::size_t i = 0; i < count; ++i) {
    EngineRequest request{.id = i, .max_new_tokens = 3 + static_cast<std::int64_t>(i % 9), .choice = i};
    const std::size_t like = i % 3 == 2 ? i - 1 : i;  // every third begins as the one before
    for (std::size_t at = 0; at < 1 + random.below(40, 2 * i); ++at)
      request.prompt.push_back(
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(vocab), 1000 * (like + 1) + at)));
    request.sampling = {.temperature = 0.4 * static_cast<double>(i % 3), .seed = i};
    requests.push_back(std::move(request));
  }
  return requests;
}

using Rows = std::vector<std::vector<float>>;  // the logits of each token
std::vector<Rows> logits_of(InferenceEngine& engine, std::vector<EngineRequest> requests) {
  std::vector<Rows> rows(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&, i](std::span<const float> row) { rows[i].emplace_back(row.begin(), row.end()); };
    EXPECT_EQ(engine.add(std::move(requests[i])), std::nullopt);
  }
  while (!engine.idle()) {
    engine.step();
    engine.scheduler().check();
  }
  return rows;
}

/// Of each request with an engine to itself, its prompt in one piece.
std::vector<Rows> logits_alone(models::Model& model, const std::vector<EngineRequest>& requests) {
  std::vector<Rows> rows;
  for (const EngineRequest& request : requests) {
    InferenceEngine engine(model, {.kv_tokens = 80, .kv_cache = KvCacheType::kE4m3, .prefix_cache = false});
    rows.push_back(logits_of(engine, {request})[0]);
  }
  return rows;
}

/// Chunks, the prefix cache, preemption and offload: the same bits as alone, for heads, windows and latents.
TEST(Fp8KvCache, BitsDependOnTheSequenceAlone) {
  for (const spec::Family family : {spec::Family::kLlama, spec::Family::kMistral, spec::Family::kDeepseekV3}) {
    const auto model = some_model(family);
    const auto requests = some_requests(24, model->shape.vocab_size);
    const auto alone = logits_alone(*model, requests);
    for (const std::int64_t chunk : {1, 7, 64}) {
      InferenceEngine engine(
          *model, {.max_sequences = 9, .prefill_chunk = chunk, .kv_tokens = 2048, .kv_cache = KvCacheType::kE4m3});
      EXPECT_EQ(logits_of(engine, requests), alone) << "chunks of " << chunk;
    }
    // Few blocks: sequences are preempted and computed again.
    InferenceEngine few(*model,
                        {.max_sequences = 9, .prefill_chunk = 16, .kv_tokens = 112, .kv_cache = KvCacheType::kE4m3});
    EXPECT_EQ(logits_of(few, requests), alone);
    if (family == spec::Family::kMistral) continue;  // windows are not offloaded
    EXPECT_GT(few.scheduler().totals().preemptions, 0);
    InferenceEngine offloads(*model, {.max_sequences = 9,
                                      .prefill_chunk = 16,
                                      .kv_tokens = 112,
                                      .kv_offload_tokens = 512,
                                      .kv_cache = KvCacheType::kE4m3});
    EXPECT_EQ(logits_of(offloads, requests), alone);
    EXPECT_GT(offloads.scheduler().totals().restored_tokens, 0);
  }
}

TEST(Fp8KvCache, TakesTheBytesThatArePlanned) {
  for (const spec::Family family : {spec::Family::kLlama, spec::Family::kDeepseekV3}) {
    for (const auto precision : {nn::Precision::kFp32, nn::Precision::kBf16}) {
      const auto model = some_model(family, precision);
      for (const KvCacheType type : {KvCacheType::kSame, KvCacheType::kE4m3}) {
        InferenceEngine engine(*model, {.kv_tokens = 160, .kv_cache = type});
        EngineRequest request{.id = 1, .prompt = {1, 2, 3}, .max_new_tokens = 2};
        EXPECT_EQ(engine.add(request), std::nullopt);
        while (!engine.idle()) engine.step();
        std::int64_t bytes = 0;
        for (nn::KvCache::Layer& layer : engine.kv_cache().layers) {
          for (const at::Tensor* tensor : layer.tensors())
            if (tensor->defined()) bytes += static_cast<std::int64_t>(tensor->nbytes());
        }
        EXPECT_EQ(bytes, 160 * nn::kv_bytes_per_token(model->shape, precision == nn::Precision::kBf16 ? 2 : 4, type));
      }
    }
  }
  // Published sizes: Llama 3 8B in bf16 128 KiB a token, and here 64 and a 32nd of it; DeepSeek-V3 1,152 bytes a layer,
  // and here 576 and nine scales.
  spec::ModelShape llama = spec::family_shape(spec::Family::kLlama);
  llama.num_layers = 32, llama.num_kv_heads = 8, llama.head_dim = 128;
  EXPECT_EQ(nn::kv_bytes_per_token(llama, 2, KvCacheType::kSame), 131072);
  EXPECT_EQ(nn::kv_bytes_per_token(llama, 2, KvCacheType::kE4m3), 65536 + 2048);
  const spec::ModelShape v3 = spec::family_shape(spec::Family::kDeepseekV3);
  EXPECT_EQ(nn::kv_bytes_per_token(v3, 2, KvCacheType::kSame), 61 * 1152);
  EXPECT_EQ(nn::kv_bytes_per_token(v3, 2, KvCacheType::kE4m3), 61 * (576 + 9 * 4));
}

/// A model that has learned something: the mean loss over a text whose keys it reads from FP8 rises by less than 0.3 %.
TEST(Fp8KvCache, OfATrainedModelCostsLessThanAThirdOfAPercentOfTheLoss) {
  const auto model = some_model(spec::Family::kLlama);
  const Random random(9, "text");
  const auto text_of = [&](std::uint64_t seed, std::int64_t length) {  // each token mostly follows from the one before
    std::vector<std::int64_t> text{static_cast<std::int64_t>(random.below(61, seed * 1000))};
    while (static_cast<std::int64_t>(text.size()) < length) {
      const std::uint64_t at = seed * 1000 + 2 * text.size();
      text.push_back(random.uniform(at) < 0.8 ? (text.back() * 5 + 3) % 61
                                              : static_cast<std::int64_t>(random.below(61, at + 1)));
    }
    return text;
  };
  const auto tensor_of = [](const std::vector<std::int64_t>& numbers) {
    return at::tensor(at::IntArrayRef(numbers), at::kLong).unsqueeze(0);
  };
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> moments;
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 300; ++step) {
    const auto text = text_of(step, 49);
    nn::Context context;
    context.sequence = nn::plain_sequence(1, 48);
    context.targets = tensor_of({text.begin() + 1, text.end()});
    context.gradient_scale = 1.0 / 48;
    nn::Tape tape;
    last = model->forward({tensor_of({text.begin(), text.end() - 1})}, context, &tape).item<double>();
    if (step == 0) first = last;
    model->backward(context, tape);
    for (nn::Param& param : model->params) {  // Adam
      auto& [mean, square] = moments[param.name];
      if (!mean.defined()) mean = at::zeros_like(param.gradient), square = at::zeros_like(param.gradient);
      mean.lerp_(param.gradient, 0.1);
      square.lerp_(param.gradient * param.gradient, 0.01);
      param.value.sub_(mean / (square.sqrt() + 1e-6), 0.01);
      param.gradient_empty = true;
    }
  }
  ASSERT_LT(last, 0.75 * first) << "it has not learned";
  const auto loss_over = [&](KvCacheType type) {
    double sum = 0;
    for (std::uint64_t seed = 5000; seed < 5008; ++seed) {
      const auto text = text_of(seed, 49);
      nn::KvCache cache{.groups = nn::kv_cache_groups(model->shape, {.max_tokens = 48, .max_query_len = 48}),
                        .type = type};
      nn::BlockManager::Tables tables{{.blocks = {2, 0, 1}}};
      const nn::SequenceStep step{.context_len = 0, .query_len = 48, .tables = tables};
      nn::KvBatch batch = nn::make_kv_batch(cache, {&step, 1});
      batch.invariant = true;  // every query reads the cache
      std::vector<std::int64_t> rows(48);
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
      batch.last_rows = at::tensor(at::IntArrayRef(rows), at::kLong);
      nn::Context context;
      context.kv_batch = &batch;
      context.sequence = nn::packed_sequence(batch);
      const at::Tensor logits = model->next_logits(tensor_of({text.begin(), text.end() - 1}), context);
      sum += at::cross_entropy_loss(logits.to(at::kDouble), tensor_of({text.begin() + 1, text.end()}).squeeze(0))
                 .item<double>();
    }
    return sum / 8;
  };
  const double exact = loss_over(KvCacheType::kSame), codes = loss_over(KvCacheType::kE4m3);
  EXPECT_NE(exact, codes);
  EXPECT_LT(std::abs(codes / exact - 1), 0.003) << exact << " became " << codes;
}

TEST(Fp8KvCache, OfRanksGivesTheTokensOfOne) {
  GenerateRequest request{.model = models::fixture("llama"),
                          .prompts = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}, {9}, {60, 1}},
                          .tokens = 9,
                          .kv_cache = KvCacheDtype::kFp8,
                          .batch = 2};
  const auto on_ranks = [&](int ranks) {
    TokenLists added;
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      auto mine = generate(request, rank.world());
      if (rank.rank() == 0) added = std::move(mine);
    });
    return added;
  };
  const TokenLists expected = on_ranks(1);
  EXPECT_EQ(on_ranks(2), expected) << "tp 2";
  request.layout.pp = 2;
  EXPECT_EQ(on_ranks(2), expected) << "pp 2";
  request.layout.pp = 1;
  request.speculation = {.kind = DraftKind::kNgram, .most = 3};
  EXPECT_EQ(on_ranks(1), expected) << "with guesses";
}

TEST(Fp8KvCache, OfAGpuIsRefusedWithAReason) {
  comm::run_ranks(1, [](comm::Rank& rank) {
    try {
      open_rank_model(
          {.model = models::fixture("llama"), .device = spec::DeviceKind::kCuda, .kv_cache = KvCacheDtype::kFp8},
          rank.world());
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::HasSubstr("an FP8 KV cache is read on the CPU so far"));
    }
  });
}

}  // namespace
}  // namespace trireme::serve
