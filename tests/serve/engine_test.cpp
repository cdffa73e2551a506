// The engine: what a request gets does not depend on what is beside it, how it is chunked, cached or preempted.
#include "trireme/serve/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/models/support.h"
#include "trireme/base/error.h"

namespace trireme::serve {
namespace {

/// Tokens and the bits of the logits that they were drawn from.
struct Answered {
  std::vector<std::int64_t> tokens;
  std::vector<std::vector<float>> logits;
  bool operator==(const Answered& other) const {
    if (tokens != other.tokens || logits.size() != other.logits.size()) return false;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i].size() != other.logits[i].size() ||
          std::memcmp(logits[i].data(), other.logits[i].data(), logits[i].size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }
};

std::unique_ptr<models::Model> tiny_model(spec::Family family, nn::Precision precision = nn::Precision::kFp32) {
  auto model = models::build(models::tiny_shape(family));
  models::fill(*model, precision, 3);
  return model;
}

/// Mixed lengths, settings and stop tokens; every third begins as the one before.
std::vector<EngineRequest> mixed_requests(std::size_t count, const spec::ModelShape& shape) {
  const Random random(7, "requests");
  std::vector<EngineRequest> requests;
  for (std::size_t i = 0; i < count; ++i) {
    EngineRequest request{.id = i, .max_new_tokens = 1 + static_cast<std::int64_t>(random.below(12, 5 * i))};
    const auto length = static_cast<std::size_t>(1 + random.below(30, 5 * i + 1));
    const std::size_t like = i % 3 == 2 ? i - 1 : i;
    for (std::size_t at = 0; at < length; ++at) {
      request.prompt.push_back(static_cast<std::int64_t>(
          random.below(static_cast<std::uint64_t>(shape.vocab_size), 1000 * (like + 1) + at)));
    }
    request.sampling = {.temperature = 0.5 * static_cast<double>(i % 4), .seed = i / 2};
    if (i % 5 == 0) request.sampling.top_k = 7;
    if (i % 5 == 1) request.sampling.top_p = 0.8;
    if (i % 5 == 2) request.sampling.frequency_penalty = 0.7;
    request.choice = i;
    if (i % 7 == 0) request.stop_tokens = {4, 5, 6};
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Answered> answer(InferenceEngine& engine, std::vector<EngineRequest> requests) {
  std::vector<Answered> answers(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_token = [&, i](const GeneratedToken& token) { answers[i].tokens.push_back(token.token); };
    requests[i].on_logits = [&, i](std::span<const float> row) {
      answers[i].logits.emplace_back(row.begin(), row.end());
    };
    EXPECT_EQ(engine.add(std::move(requests[i])), std::nullopt);
  }
  while (!engine.idle()) {
    engine.step();
    engine.scheduler().check();
  }
  for (std::size_t group = 0; group < engine.scheduler().pool().groups(); ++group) {
    EXPECT_EQ(engine.scheduler().pool().count(group).held, 0);
  }
  return answers;
}

/// Each request with an engine to itself, its prompt in one piece.
std::vector<Answered> answer_alone(models::Model& model, const std::vector<EngineRequest>& requests) {
  std::vector<Answered> answers;
  for (const EngineRequest& request : requests) {
    InferenceEngine engine(model, {.kv_tokens = 64, .prefix_cache = false});
    answers.push_back(answer(engine, {request})[0]);
  }
  return answers;
}

std::string first_difference(const std::vector<Answered>& ours, const std::vector<Answered>& alone) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!(ours[i] == alone[i]))
      return "request " + std::to_string(i) + (ours[i].tokens == alone[i].tokens ? ", bits" : "");
  }
  return "none";
}

TEST(InferenceEngine, SixtyFourMixedRequestsHaveTheBitsThatEachHasAlone) {
  for (const spec::Family family : {spec::Family::kLlama, spec::Family::kMistral}) {
    const auto model = tiny_model(family);
    const auto requests = mixed_requests(64, model->shape);
    const auto alone = answer_alone(*model, requests);
    for (const std::int64_t chunk : {1, 7, 64, 512}) {
      InferenceEngine engine(*model, {.max_sequences = 24, .prefill_chunk = chunk, .kv_tokens = 4096});
      EXPECT_EQ(first_difference(answer(engine, requests), alone), "none") << "chunks of " << chunk;
      // The last ones again: the prefix cache has their prompts.
      const std::int64_t cached = engine.scheduler().totals().cached_tokens;
      const std::vector<EngineRequest> late(requests.end() - 12, requests.end());
      EXPECT_EQ(first_difference(answer(engine, late), {alone.end() - 12, alone.end()}), "none") << chunk << ", cached";
      EXPECT_GE(engine.scheduler().totals().cached_tokens, cached + 3 * 16) << "chunks of " << chunk;
    }
  }
}

TEST(InferenceEngine, PreemptionChangesNothing) {
  const auto model = tiny_model(spec::Family::kLlama);
  const auto requests = mixed_requests(40, model->shape);
  const auto alone = answer_alone(*model, requests);
  InferenceEngine engine(*model,
                         {.max_batch_tokens = 40, .max_sequences = 12, .prefill_chunk = 16, .kv_tokens = 8 * 16});
  EXPECT_EQ(first_difference(answer(engine, requests), alone), "none");
  EXPECT_GT(engine.scheduler().totals().preemptions, 3);
}

TEST(InferenceEngine, AnOffloadedKvCacheChangesNothingAndSavesRecomputation) {
  for (const spec::Family family : {spec::Family::kLlama, spec::Family::kDeepseekV3}) {
    const auto model = tiny_model(family);
    const auto requests = mixed_requests(40, model->shape);
    const auto alone = answer_alone(*model, requests);
    std::vector<std::int64_t> computed;
    for (const std::int64_t offload : {0, 4 * 16, 64 * 16}) {
      InferenceEngine engine(*model, {.max_batch_tokens = 40,
                                      .max_sequences = 12,
                                      .prefill_chunk = 16,
                                      .kv_tokens = 8 * 16,
                                      .kv_offload_tokens = offload,
                                      .prefix_cache = false});
      EXPECT_EQ(first_difference(answer(engine, requests), alone), "none") << offload;
      EXPECT_GT(engine.scheduler().totals().preemptions, 3);
      EXPECT_EQ(engine.scheduler().offloaded_blocks(), 0);
      computed.push_back(engine.scheduler().totals().prefill_tokens);
    }
    EXPECT_LT(computed[1], computed[0]);
    EXPECT_LE(computed[2], computed[1]);
  }
}

TEST(InferenceEngine, HoldsForEveryFamilyAndForBfloat16) {
  for (const spec::Family family : {spec::Family::kGpt2, spec::Family::kQwen3, spec::Family::kDeepseekV3}) {
    for (const nn::Precision precision : {nn::Precision::kFp32, nn::Precision::kBf16}) {
      const auto model = tiny_model(family, precision);
      const auto requests = mixed_requests(12, model->shape);
      InferenceEngine engine(*model, {.max_sequences = 8, .prefill_chunk = 11, .kv_tokens = 1024});
      EXPECT_EQ(first_difference(answer(engine, requests), answer_alone(*model, requests)), "none")
          << static_cast<int>(family) << (precision == nn::Precision::kBf16 ? " bf16" : " fp32");
    }
  }
}

TEST(InferenceEngine, IsTheModelsForwardPass) {
  const auto model = tiny_model(spec::Family::kLlama);
  auto requests = mixed_requests(10, model->shape);
  for (EngineRequest& request : requests) {
    request.sampling = {};
    request.stop_tokens.clear();
  }
  InferenceEngine engine(*model, {.max_sequences = 5, .prefill_chunk = 9, .kv_tokens = 1024});
  const auto answers = answer(engine, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<std::int64_t> tokens = requests[i].prompt;
    tokens.insert(tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    const at::Tensor whole = models::logits_of(*model, models::as_tensor({tokens}))[0];
    for (std::size_t n = 0; n < answers[i].logits.size(); ++n) {
      const auto row = static_cast<std::int64_t>(requests[i].prompt.size() + n) - 1;
      const at::Tensor ours = at::empty({whole.size(1)}, at::kFloat);
      std::memcpy(ours.data_ptr(), answers[i].logits[n].data(), answers[i].logits[n].size() * sizeof(float));
      EXPECT_LE(models::largest(ours, whole[row]), 2e-4) << "request " << i << " token " << n;
    }
  }
}

TEST(InferenceEngine, ManyRequestsShareSteps) {
  const auto model = tiny_model(spec::Family::kLlama);
  auto requests = mixed_requests(32, model->shape);
  for (EngineRequest& request : requests) request.max_new_tokens = 8;
  for (EngineRequest& request : requests) request.stop_tokens.clear();
  InferenceEngine engine(*model, {.max_batch_tokens = 2048, .max_sequences = 32, .kv_tokens = 4096});
  answer(engine, requests);
  EXPECT_EQ(engine.scheduler().totals().steps, 8);  // 32 prompts in the first, then one token each
}

TEST(InferenceEngine, ACancelledRequestIsSilentAndItsBlocksAreFree) {
  const auto model = tiny_model(spec::Family::kLlama);
  InferenceEngine engine(*model, {.kv_tokens = 256});
  int told = 0;
  EngineRequest request{.id = 5, .prompt = {1, 2, 3}, .max_new_tokens = 20};
  request.on_token = [&](const GeneratedToken& token) {
    if (++told == 4) {
      EXPECT_TRUE(engine.cancel(token.id));
    }
  };
  ASSERT_EQ(engine.add(request), std::nullopt);
  while (!engine.idle()) engine.step();
  EXPECT_EQ(told, 4);
  EXPECT_EQ(engine.scheduler().pool().count(0).held, 0);
  EXPECT_FALSE(engine.cancel(5));
  ASSERT_EQ(engine.add({.id = 6, .prompt = {1, 2, 3}, .max_new_tokens = 20}), std::nullopt);
  engine.step();
  EXPECT_TRUE(engine.cancel(6));
  EXPECT_TRUE(engine.idle());
  EXPECT_THAT(engine.add({.id = 7, .prompt = {1}, .max_new_tokens = 1000}).value(), testing::HasSubstr("KV cache"));
}

/// Says what it is told to, whatever the text.
class ScriptedDrafter final : public TextDrafter {
 public:
  explicit ScriptedDrafter(std::function<std::vector<std::int64_t>(std::span<const std::int64_t>)> say)
      : say_(std::move(say)) {}
  std::vector<std::int64_t> continue_text(std::span<const std::int64_t> tokens, std::size_t) override {
    return say_(tokens);
  }
  std::size_t depth() const override { return 4; }

 private:
  std::function<std::vector<std::int64_t>(std::span<const std::int64_t>)> say_;
};

TEST(Speculation, GivesTheVeryTokensAndBitsThatComeWithoutIt) {
  const auto model = tiny_model(spec::Family::kLlama);
  for (const double temperature : {0.0, 0.7, 1.5}) {
    auto requests = mixed_requests(12, model->shape);
    for (EngineRequest& request : requests) {
      request.sampling.temperature = temperature;
      request.max_new_tokens = 12;
    }
    const auto alone = answer_alone(*model, requests);
    // One that knows, one that is always wrong, one that guesses, and n-grams.
    const auto oracle = [&](std::span<const std::int64_t> tokens) {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        std::vector<std::int64_t> whole = requests[i].prompt;
        whole.insert(whole.end(), alone[i].tokens.begin(), alone[i].tokens.end());
        if (whole.size() <= tokens.size() || !std::equal(tokens.begin(), tokens.end(), whole.begin())) continue;
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(tokens.size());
        return std::vector<std::int64_t>(begin, std::min(begin + 4, whole.end()));
      }
      return std::vector<std::int64_t>{};
    };
    const auto wrong = [](std::span<const std::int64_t>) { return std::vector<std::int64_t>{60, 60, 60}; };
    const auto chance = [](std::span<const std::int64_t> tokens) {
      return std::vector<std::int64_t>{tokens.back(), static_cast<std::int64_t>(tokens.size()) % 61, 3};
    };
    std::vector<std::int64_t> steps;
    for (const int kind : {0, 1, 2, 3}) {
      InferenceEngine engine(*model, {.max_sequences = 6, .prefill_chunk = 13, .kv_tokens = 1024});
      if (kind == 0) engine.set_drafter(std::make_unique<ScriptedDrafter>(oracle));
      if (kind == 1) engine.set_drafter(std::make_unique<ScriptedDrafter>(wrong));
      if (kind == 2) engine.set_drafter(std::make_unique<ScriptedDrafter>(chance));
      if (kind == 3) engine.set_drafter(ngram_drafter({.most = 3, .least = 1}));
      EXPECT_EQ(first_difference(answer(engine, requests), alone), "none")
          << "drafter " << kind << " at " << temperature;
      steps.push_back(engine.scheduler().totals().steps);
      if (kind == 0) {
        // But for those behind a stop token, and of a prompt that another one begins like.
        EXPECT_GT(engine.scheduler().totals().accepted_drafts, engine.scheduler().totals().drafts * 9 / 10);
      }
      if (kind == 1) {
        EXPECT_GT(engine.scheduler().totals().drafts, engine.scheduler().totals().accepted_drafts);
      }
    }
    EXPECT_LT(2 * steps[0], steps[1]);  // five tokens a step in place of one
  }
}

TEST(Speculation, NgramsProposeWhatFollowedLastTime) {
  const auto drafter = ngram_drafter({.most = 3, .longest = 3, .least = 2});
  const std::vector<std::int64_t> text{1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 1, 2, 3};
  EXPECT_THAT(drafter->continue_text(text, 3), testing::ElementsAre(7, 8, 1));
  EXPECT_THAT(drafter->continue_text(text, 1), testing::ElementsAre(7));
  EXPECT_TRUE(drafter->continue_text(std::vector<std::int64_t>{1, 2, 3, 4}, 3).empty());
  EXPECT_TRUE(drafter->continue_text(std::vector<std::int64_t>{1}, 3).empty());
}

}  // namespace
}  // namespace trireme::serve
