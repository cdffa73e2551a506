// Continuing prompts with a cache of keys and values.
#include "trireme/serve/generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/serve/probe.h"

namespace trireme::serve {
namespace {

using models::kCausalFixtures;
using testing::HasSubstr;

TokenLists prompts(std::size_t tokens) {
  TokenLists lists = formats::read_token_lists(models::fixture("ids.json"), true);
  for (auto& list : lists) list.resize(tokens);
  return lists;
}

GenerateRequest request_for(const std::string& name) {
  return {.model = models::fixture(name), .prompts = prompts(6), .tokens = 12};
}

TEST(Generate, GreedyIsTheReferencesContinuation) {
  for (const std::string& name : kCausalFixtures) {
    const TokenLists added = generate(request_for(name));
    EXPECT_TRUE(at::equal(models::as_tensor(added), models::Expected(name)["greedy"])) << name;
  }
}

TEST(Generate, TheCacheGivesTheLogitsOfFullRecomputation) {
  for (const std::string& name : kCausalFixtures) {
    const auto model = models::load_published(formats::HfDirectory(models::fixture(name)), {});
    const at::Tensor ids = models::fixture_ids();
    const at::Tensor whole = models::logits_of(*model, ids);
    nn::KvCache cache;
    cache.capacity = ids.size(1);
    nn::Context context;
    context.cache = &cache;
    // In pieces of several lengths: a prompt, single tokens, and more at once.
    for (const std::int64_t length : {5, 1, 1, 4, 1, 12}) {
      context.sequence = nn::plain_sequence(ids.size(0), length, cache.length);
      const at::Tensor piece = model->forward({ids.narrow(1, cache.length, length).contiguous()}, context, nullptr);
      EXPECT_LE(models::largest(piece, whole.narrow(1, cache.length, length)), 1e-5) << name << " at " << cache.length;
      cache.length += length;
    }
    context.sequence = nn::plain_sequence(ids.size(0), 1, cache.length);
    EXPECT_THROW(model->forward({ids.narrow(1, 0, 1).contiguous()}, context, nullptr), ConfigError) << "beyond it";
  }
}

TEST(Generate, AWindowBoundsTheCacheHoweverTokensCome) {
  const at::Tensor ids = models::fixture_ids();
  for (const std::string name : {"mistral", "qwen2_window"}) {
    const auto model = models::load_published(formats::HfDirectory(models::fixture(name)), {});
    const at::Tensor whole = models::logits_of(*model, ids);
    const std::int64_t window = model->shape.window;
    for (const std::vector<std::int64_t>& pieces : std::vector<std::vector<std::int64_t>>{
             std::vector<std::int64_t>(24, 1), {24}, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, {3, 20, 1}, {7, 5, 5, 7}}) {
      nn::KvCache cache;
      cache.capacity = 24;
      nn::Context context;
      context.cache = &cache;
      for (const std::int64_t length : pieces) {
        context.sequence = nn::plain_sequence(ids.size(0), length, cache.length);
        const at::Tensor piece = model->forward({ids.narrow(1, cache.length, length).contiguous()}, context, nullptr);
        EXPECT_LE(models::largest(piece, whole.narrow(1, cache.length, length)), 1e-5)
            << name << ": " << length << " at " << cache.length;
        cache.length += length;
      }
      for (std::int64_t layer = 0; layer < model->shape.num_layers; ++layer) {
        const bool windowed = spec::window_of(model->shape, layer) > 0;
        EXPECT_EQ(cache.layers.at(layer).keys.size(1), windowed ? window : 24) << name << " layer " << layer;
      }
    }
  }
}

TEST(Generate, TheSameSeedGivesTheSameTokensWhateverIsBeside) {
  GenerateRequest request = request_for("llama");
  request.temperature = 1.5;
  request.seed = 3;
  const TokenLists first = generate(request);
  EXPECT_EQ(generate(request), first);
  request.prompts.resize(1);
  EXPECT_EQ(generate(request)[0], first[0]);
  request.seed = 4;
  EXPECT_NE(generate(request)[0], first[0]);
}

TEST(Generate, DrawsFromTheModelsOwnProbabilities) {
  // One token after one prompt, by many seeds: its frequencies are the softmax of the reference's logits.
  const auto model = models::load_published(formats::HfDirectory(models::fixture("gpt2")), {});
  const auto prompt = prompts(6)[0];
  const at::Tensor logits = models::Expected("gpt2")["logits"].select(0, 0).select(0, 5);
  const at::Tensor expected = at::softmax(logits.to(at::kDouble), 0);
  constexpr int kDraws = 2000;
  at::Tensor counts = at::zeros_like(expected);
  GenerateRequest request{.tokens = 1, .temperature = 1};
  for (int draw = 0; draw < kDraws; ++draw) {
    request.seed = static_cast<std::uint64_t>(draw);
    counts[continue_prompt(*model, prompt, 0, request)[0]] += 1;
  }
  // Pearson's statistic over the tokens that are expected often enough: far below 1.7 times its degrees of freedom.
  const at::Tensor often = expected * kDraws > 5;
  const at::Tensor terms = ((counts - expected * kDraws).pow(2) / (expected * kDraws)).masked_select(often);
  EXPECT_LT(terms.sum().item<double>(), 1.7 * static_cast<double>(terms.numel()));
  EXPECT_GT(terms.numel(), 10);
}

TEST(Generate, StopsAfterAStopTokenAndTellsEachTokenAtOnce) {
  GenerateRequest request = request_for("mistral");
  const TokenLists whole = generate(request);
  request.stop = {whole[0][4]};
  TokenLists told(2);
  request.on_token = [&](std::size_t sequence, std::int64_t token) { told.at(sequence).push_back(token); };
  const TokenLists added = generate(request);
  const auto first = std::find(whole[0].begin(), whole[0].end(), whole[0][4]) + 1;
  EXPECT_EQ(added[0], std::vector<std::int64_t>(whole[0].begin(), first));
  EXPECT_EQ(told, added);
  request.tokens = 0;
  EXPECT_EQ(generate(request), TokenLists(2));
}

TEST(Generate, GoesOnInBfloat16) {
  GenerateRequest request = request_for("qwen3");
  request.precision = GeneratePrecision::kBf16;
  const TokenLists added = generate(request);
  EXPECT_EQ(added[0].size(), 12u);
  EXPECT_EQ(generate(request), added);
}

void expect_refused(const GenerateRequest& request, const std::string& reason, const std::string& hint = "") {
  try {
    generate(request);
    FAIL() << "was taken instead of: " << reason;
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr(reason));
    EXPECT_THAT(error.hint(), HasSubstr(hint));
  }
}

TEST(Generate, RefusesWhatCannotBe) {
  GenerateRequest request = request_for("gpt2");
  request.tokens = 59;
  expect_refused(request, "6 tokens and 59 new ones do not fit into the model's 64 positions", "at most 58");
  request.tokens = 58;  // as the hint says
  EXPECT_EQ(generate(request)[0].size(), 58u);
  request = request_for("gpt2");
  request.prompts[1][2] = 96;
  expect_refused(request, "token 96 is outside the model's vocabulary of 96");
  request.prompts[1] = {};
  expect_refused(request, "prompt 1 is empty", "at least one token");
  request = request_for("gpt2");
  request.top_p = 0;
  expect_refused(request, "top_p 0 ");
  request.top_p = 1.5;
  expect_refused(request, "top_p 1.5 ");
  request = request_for("gpt2");
  request.temperature = -1;
  expect_refused(request, "temperature -1 ");
  request = request_for("bert");
  expect_refused(request, "does not read from left to right", "GPT-2");
}

}  // namespace
}  // namespace trireme::serve
