// Continuing prompts with a cache of keys and values.
#include "trireme/serve/generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/comm/rank.h"
#include "trireme/device/cuda.h"
#include "trireme/parallel/parallel_groups.h"

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

/// On ranks that are threads; what rank 0 has, which all have.
TokenLists generate(const GenerateRequest& request, int ranks = 1) {
  std::vector<TokenLists> added(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    added[static_cast<std::size_t>(rank.rank())] = serve::generate(request, rank.world());
  });
  for (const TokenLists& of_rank : added) EXPECT_EQ(of_rank, added[0]);
  return added[0];
}

TEST(Generate, GreedyIsTheReferencesContinuation) {
  for (const std::string& name : kCausalFixtures) {
    const TokenLists added = generate(request_for(name));
    EXPECT_TRUE(at::equal(models::as_tensor(added), models::Expected(name)["greedy"])) << name;
  }
}

TEST(Generate, APromptOfSeveralChunksIsContinuedLikeOneThatIsRecomputed) {
  // Longer than a chunk and than every window; each token by a forward pass over all tokens before it, too.
  const auto model = models::load_published(formats::HfDirectory(models::fixture("mistral")), {});
  const at::Tensor ids = models::some_ids(1, kPrefillChunk + 37, model->shape.vocab_size);
  std::vector<std::int64_t> tokens(ids.data_ptr<std::int64_t>(), ids.data_ptr<std::int64_t>() + ids.numel());
  const auto added = continue_prompts(*model, {.prompts = {tokens}, .tokens = 5})[0];
  for (const std::int64_t token : added) {
    const at::Tensor logits = models::logits_of(*model, models::as_tensor({tokens}))[0][-1];
    EXPECT_EQ(logits.argmax().item<std::int64_t>(), token);
    tokens.push_back(token);
  }
}

TEST(Generate, RanksThatSplitTheMatricesGiveTheTokensOfOne) {
  for (const std::string name : {"gpt2", "llama", "mistral", "qwen2_tied", "qwen3"}) {
    GenerateRequest request = request_for(name);
    const TokenLists greedy = generate(request);
    EXPECT_EQ(generate(request, 2), greedy) << name;
    request.sampling.temperature = 1.2;
    request.sampling.seed = 5;
    EXPECT_EQ(generate(request, 2), generate(request)) << name;
  }
}

TEST(Generate, RanksReadTheirShardsAlone) {
  for (const std::string name : {"gpt2", "llama"}) {
    const auto whole = checkpoint::open_model(models::fixture(name), {}).model;
    comm::run_ranks(2, [&](comm::Rank& rank) {
      spec::LayoutConfig layout;
      layout.tp = 2;
      const auto groups = parallel::form(layout, whole->shape, rank.world(), 1, at::kCPU);
      checkpoint::OpenOptions options;
      options.build.parallel = &groups->parallel;
      const auto mine = checkpoint::open_model(models::fixture(name), options).model;
      std::int64_t held = 0;
      for (const nn::Param& param : mine->params) {
        const at::Tensor all = whole->params.at(param.name).value.view({-1}), part = param.value.view({-1});
        held += part.numel();
        for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
          EXPECT_TRUE(at::equal(part.narrow(0, run.local, run.count), all.narrow(0, run.global, run.count)))
              << name << " " << param.name;
        }
      }
      EXPECT_LT(static_cast<double>(held), 0.6 * static_cast<double>(whole->params.elements())) << name;
    });
  }
}

TEST(Generate, AskedForAGpuWithoutOneItSaysSo) {
  std::string why;
  if (device::has_cuda(&why)) GTEST_SKIP() << "there is a GPU";
  GenerateRequest request = request_for("gpt2");
  request.device = spec::DeviceKind::kCuda;
  EXPECT_THROW(generate(request), ConfigError);
}

TEST(Generate, TheSameSeedGivesTheSameTokensWhateverIsBeside) {
  GenerateRequest request = request_for("llama");
  request.sampling.temperature = 1.5;
  request.sampling.seed = 3;
  const TokenLists first = generate(request);
  EXPECT_EQ(generate(request), first);
  request.prompts.resize(1);
  EXPECT_EQ(generate(request)[0], first[0]);
  request.sampling.seed = 4;
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
  GenerateRequest request{.prompts = {prompt}, .tokens = 1, .sampling = {.temperature = 1}};
  for (int draw = 0; draw < kDraws; ++draw) {
    request.sampling.seed = static_cast<std::uint64_t>(draw);
    counts[continue_prompts(*model, request)[0][0]] += 1;
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
  expect_refused(request, "6 tokens and 59 new ones do not fit into the model's context of 64 tokens", "at most 58");
  request.tokens = 58;  // as the hint says
  EXPECT_EQ(generate(request)[0].size(), 58u);
  request = request_for("gpt2");
  request.prompts[1][2] = 96;
  expect_refused(request, "token 96 is outside the model's vocabulary of 96");
  request.prompts[1] = {};
  expect_refused(request, "prompt 1 is empty", "at least one token");
  request = request_for("gpt2");
  request.sampling.top_p = 0;
  expect_refused(request, "top_p 0 ");
  request.sampling.top_p = 1.5;
  expect_refused(request, "top_p 1.5 ");
  request = request_for("gpt2");
  request.sampling.temperature = -1;
  expect_refused(request, "temperature -1 ");
  request = request_for("llama");
  try {
    generate(request, 3);
    FAIL() << "3 ranks cannot split the heads";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("layout.tp"));
  }
  request = request_for("bert");
  expect_refused(request, "does not read from left to right", "GPT-2");
}

}  // namespace
}  // namespace trireme::serve
