// Generation over ranks: stages, replicas and experts over replicas give the tokens of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/files.h"
#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank.h"
#include "trireme/serve/batch.h"
#include "trireme/serve/followed_engine.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/pipeline_step.h"
#include "trireme/serve/rank_model.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

/// Of mixed lengths: some are prefill of several steps while others decode.
TokenLists mixed_prompts(std::size_t count) {
  const Random random(23, "prompts");
  TokenLists prompts(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t at = 0; at < 1 + random.below(24, i); ++at) {
      prompts[i].push_back(static_cast<std::int64_t>(random.below(96, 100 * (i + 1) + at)));
    }
  }
  return prompts;
}

GenerateRequest spread_request(const std::string& name, std::size_t prompts) {
  return {.model = models::fixture(name), .prompts = mixed_prompts(prompts), .tokens = 9, .batch = 4};
}

/// The same on every rank.
TokenLists on_ranks(const GenerateRequest& request, int ranks) {
  std::vector<TokenLists> added(static_cast<std::size_t>(ranks));
  comm::run_ranks(
      ranks, [&](comm::Rank& rank) { added[static_cast<std::size_t>(rank.rank())] = generate(request, rank.world()); });
  for (const TokenLists& of_rank : added) EXPECT_EQ(of_rank, added[0]);
  return added[0];
}

TEST(DealOut, GivesStretchesOfAboutAsManyTokens) {
  const auto dealt = [](std::vector<std::int64_t> lens, std::int64_t micros) { return deal_out(lens, micros); };
  EXPECT_EQ(dealt({1, 1, 1, 1}, 2), (std::vector<MicroRange>{{0, 2}, {2, 2}}));
  EXPECT_EQ(dealt({1, 1}, 4), (std::vector<MicroRange>{{0, 1}, {1, 1}}));
  EXPECT_EQ(dealt({9}, 4), (std::vector<MicroRange>{{0, 1}}));
  const Random random(3, "lens");
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::vector<std::int64_t> lens;
    for (std::uint64_t n = 0; n < 1 + random.below(12, 50 * i); ++n) {
      lens.push_back(1 + static_cast<std::int64_t>(random.below(20, 50 * i + n + 1)));
    }
    const auto micros = 1 + static_cast<std::int64_t>(random.below(6, 50 * i + 40));
    std::size_t next = 0;
    const auto ranges = dealt(lens, micros);
    EXPECT_LE(static_cast<std::int64_t>(ranges.size()), micros);
    for (const MicroRange& range : ranges) {
      EXPECT_EQ(range.first, next);
      EXPECT_GT(range.count, 0u);
      next += range.count;
    }
    EXPECT_EQ(next, lens.size());
  }
}

TEST(ParallelGeneration, StagesGiveTheTokensOfOneRank) {
  for (const std::string name : {"llama", "gpt2", "mistral", "qwen2_tied", "qwen3_moe"}) {
    SCOPED_TRACE(name);
    GenerateRequest request = spread_request(name, 7);
    const TokenLists expected = on_ranks(request, 1);
    request.layout.pp = 2;
    EXPECT_EQ(on_ranks(request, 2), expected);
    request.layout.micros = 1;
    EXPECT_EQ(on_ranks(request, 2), expected);
    request.layout.micros = 0;
    request.sampling = {.temperature = 1.1, .top_p = 0.9, .seed = 4};
    const TokenLists drawn = on_ranks(request, 2);
    request.layout.pp = 1;
    EXPECT_EQ(on_ranks(request, 1), drawn);
  }
}

/// DeepSpeed's hybrid schedule: two micro-batches a stage while prompts are read, one a stage in decode.
TEST(ParallelGeneration, StagesHaveFewerMicroBatchesInDecode) {
  comm::run_ranks(2, [&](comm::Rank& rank) {
    const auto model = open_rank_model({.model = models::fixture("llama"), .layout = {.pp = 2}}, rank.world());
    EngineOptions options{.max_sequences = 8, .kv_tokens = 8 * 32};
    model->set_up(options);
    InferenceEngine engine(model->model(), options);
    for (RequestId id = 0; id < 8; ++id) {
      EXPECT_EQ(engine.add({.id = id, .prompt = {1, 2, 3}, .max_new_tokens = 3}), std::nullopt);
    }
    comm::Group& stages = *model->pipeline.group;
    std::vector<std::uint64_t> sent;
    while (!engine.idle()) {
      stages.reset_counters();
      engine.step();
      sent.push_back(stages.counters(comm::Op::kSend).calls);
    }
    if (stages.rank() == 0) {
      EXPECT_THAT(sent, testing::ElementsAre(4, 2, 2));
    }
  });
}

TEST(ParallelGeneration, StagesOfTensorRanksAndReplicasGiveTheTokensOfOneRank) {
  GenerateRequest request = spread_request("llama", 7);
  const TokenLists expected = on_ranks(request, 1);
  request.layout = {.pp = 2};
  EXPECT_EQ(on_ranks(request, 4), expected) << "tp 2 pp 2";
  request.layout = {.dp = 3};
  EXPECT_EQ(on_ranks(request, 3), expected) << "dp 3";
  request.layout = {.pp = 2, .dp = 2};
  EXPECT_EQ(on_ranks(request, 8), expected) << "tp 2 pp 2 dp 2";
  request.layout = {.dp = 2};
  request.prompts.resize(1);  // the other replica has nothing to do
  EXPECT_EQ(on_ranks(request, 2), (TokenLists{expected[0]}));
}

TEST(ParallelGeneration, ExpertsOverReplicasGiveTheTokensOfOneRank) {
  for (const std::string name : {"qwen3_moe", "qwen2_moe", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    GenerateRequest request = spread_request(name, 7);
    const TokenLists expected = on_ranks(request, 1);
    request.layout = {.dp = 2, .ep = 2};
    EXPECT_EQ(on_ranks(request, 2), expected);
    EXPECT_EQ(on_ranks(request, 4), expected) << "tp 2";
    request.prompts.resize(1);  // the other replica's experts are needed all the same
    EXPECT_EQ(on_ranks(request, 2), (TokenLists{expected[0]}));
  }
}

/// Expert slicing, the coordinated all-to-all, and copies.
TEST(ParallelGeneration, ExpertsOverTensorRanksGiveTheTokensOfOneRank) {
  for (const std::string name : {"qwen3_moe", "qwen2_moe", "deepseek_v3"}) {
    GenerateRequest request = spread_request(name, 7);
    const TokenLists expected = on_ranks(request, 1);
    for (const auto how : {ExpertsOverTp::kSlices, ExpertsOverTp::kTokens, ExpertsOverTp::kCopies}) {
      SCOPED_TRACE(name + " " + std::to_string(static_cast<int>(how)));
      request.experts = how;
      request.layout = {};
      EXPECT_EQ(on_ranks(request, 2), expected) << "tp 2";
      request.layout = {.dp = 2, .ep = 2};
      EXPECT_EQ(on_ranks(request, 4), expected) << "tp 2, experts over 2 replicas";
      request.layout = {.pp = 2};
      EXPECT_EQ(on_ranks(request, 4), expected) << "tp 2 pp 2";
    }
  }
}

TEST(ParallelGeneration, SlicedExpertsTakeTheirShareOfTheMemory) {
  for (const std::string name : {"qwen3_moe", "deepseek_v3"}) {
    const auto elements_of = [&](ExpertsOverTp how, int ranks, int dp) {
      std::vector<std::int64_t> elements(static_cast<std::size_t>(ranks));
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        const auto model = open_rank_model(
            {.model = models::fixture(name), .experts = how, .layout = {.dp = dp, .ep = dp}}, rank.world());
        for (const nn::Param& param : model->model().params)
          if (param.name.find(".experts.") != std::string::npos)
            elements[static_cast<std::size_t>(rank.rank())] += param.value.numel();
      });
      return elements;
    };
    const std::int64_t all = elements_of(ExpertsOverTp::kDefault, 1, 1)[0];
    EXPECT_THAT(elements_of(ExpertsOverTp::kDefault, 2, 1), testing::Each(all / 2));
    EXPECT_THAT(elements_of(ExpertsOverTp::kSlices, 4, 2), testing::Each(all / 4));
    EXPECT_THAT(elements_of(ExpertsOverTp::kTokens, 2, 1), testing::Each(all));
    EXPECT_THAT(elements_of(ExpertsOverTp::kTokens, 4, 2), testing::Each(all / 2));
  }
}

TEST(ParallelGeneration, SpeculationAndStagesGiveTheTokensOfOneRank) {
  GenerateRequest request = spread_request("llama", 5);
  request.sampling = {.temperature = 0.8, .seed = 6};
  const TokenLists expected = on_ranks(request, 1);
  for (const DraftKind kind : {DraftKind::kNgram, DraftKind::kModel}) {
    request.speculation = {.kind = kind, .most = 3, .model = models::fixture("llama")};
    request.layout.pp = 2;
    EXPECT_EQ(on_ranks(request, 2), expected);
    request.layout.pp = 1;
    EXPECT_EQ(on_ranks(request, 2), expected) << "tp 2";
  }
}

TEST(ParallelGeneration, WhatDoesNotGoTogetherIsNamed) {
  const auto refused = [](const GenerateRequest& request, int ranks, const std::string& why) {
    try {
      on_ranks(request, ranks);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::HasSubstr(why));
    }
  };
  GenerateRequest request = spread_request("llama", 2);
  request.layout = {.dp = 2, .ep = 2};
  refused(request, 2, "the model has no experts");
  request.layout = {.pp = 2};
  refused(request, 3, "3 ranks are no multiple of pp 2 x dp 1");
  request.layout = {.pp = 3};
  refused(request, 3, "3 pipeline stages");
  request.layout = {};
  request.experts = ExpertsOverTp::kTokens;
  refused(request, 2, "this model has none");
  request = spread_request("qwen3_moe", 2);
  request.layout = {.pp = 2, .dp = 2, .ep = 2};
  refused(request, 4, "do not go together");
}

class Batches : public OwnFolder {};

std::map<std::int64_t, nlohmann::json> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::map<std::int64_t, nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_TRUE(lines.emplace(json.at("index").get<std::int64_t>(), json).second) << "twice";
  }
  return lines;
}

TEST_F(Batches, OfReplicasHaveTheLinesOfOneRank) {
  for (const std::string name : {"llama", "qwen3_moe"}) {
    const fs::path input = folder_ / "in.jsonl";
    {
      std::ofstream file(input);
      for (const auto& prompt : mixed_prompts(13)) {
        file << nlohmann::json{{"prompt", prompt}, {"max_tokens", 7}, {"temperature", 1}, {"ignore_eos", true}} << "\n";
      }
      file << R"({"prompt": []})"
           << "\n";  // refused, by one replica
    }
    BatchRequest request{.model = {.model = models::fixture(name)}, .input = input, .batch = 3};
    const auto run = [&](const std::string& output, int ranks) {
      request.output = folder_ / (name + output);
      std::vector<BatchResult> results(static_cast<std::size_t>(ranks));
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        results[static_cast<std::size_t>(rank.rank())] = generate_batch(request, rank.world());
      });
      for (const BatchResult& result : results) {
        EXPECT_EQ(result.failed, 1);
        EXPECT_EQ(result.new_tokens, 13 * 7);
      }
      return lines_of(request.output);
    };
    const auto alone = run("one", 1);
    EXPECT_EQ(alone.size(), 14u);
    request.model.layout.dp = 2;
    EXPECT_EQ(run("two", 2), alone);
    if (name == "qwen3_moe") {
      request.model.layout.ep = 2;
      EXPECT_EQ(run("shared", 2), alone);
    }
  }
}

TEST(FollowedEngine, OrdersReadBackAsTheyWere) {
  EngineRequest request{.id = (1ULL << 63) + 5, .prompt = {1, 2, 95}, .max_new_tokens = 17, .choice = 3};
  request.sampling = {.temperature = 0.1 + 0.2,
                      .top_k = 4,
                      .top_p = 1.0 / 3,
                      .min_p = 0.01,
                      .presence_penalty = -0.5,
                      .frequency_penalty = 0.25,
                      .repetition_penalty = 1.1,
                      .logit_bias = {{3, -100.0}, {70, 1e-3}},
                      .seed = ~0ULL};
  request.stop_tokens = {0, 4};
  request.logprobs = 2;
  request.salt = std::string("a\0\xff", 3);
  const EngineOrders orders{.requests = {request}, .cancels = {4, 1}};
  const EngineOrders again = orders_of(to_text(orders));
  ASSERT_EQ(again.requests.size(), 1u);
  EXPECT_EQ(again.cancels, orders.cancels);
  EXPECT_FALSE(again.end);
  const EngineRequest& got = again.requests[0];
  EXPECT_EQ(std::tie(got.id, got.prompt, got.max_new_tokens, got.choice, got.stop_tokens, got.logprobs, got.salt),
            std::tie(request.id, request.prompt, request.max_new_tokens, request.choice, request.stop_tokens,
                     request.logprobs, request.salt));
  EXPECT_EQ(got.sampling, request.sampling);
  EXPECT_TRUE(orders_of(to_text(EngineOrders{.end = true})).end);
  EXPECT_EQ(to_text(EngineOrders{}), "");
}

/// Rank 0 is asked in the middle of everything, cancels, and ends; the others have the same scheduler at the end.
TEST(FollowedEngine, RanksThatFollowTakeTheStepsOfTheFirst) {
  const auto prompts = mixed_prompts(8);
  for (const RankLayout& layout : {RankLayout{}, RankLayout{.pp = 2}}) {
    std::map<std::int64_t, std::vector<std::int64_t>> alone, told;
    const auto request_of = [&](std::int64_t i, auto& into) {
      EngineRequest request{.id = static_cast<RequestId>(i),
                            .prompt = prompts[static_cast<std::size_t>(i)],
                            .max_new_tokens = 8,
                            .sampling = {.temperature = 0.9, .seed = 3},
                            .choice = 1};
      request.on_token = [&into, i](const GeneratedToken& token) { into[i].push_back(token.token); };
      return request;
    };
    comm::run_ranks(2, [&](comm::Rank& rank) {
      const auto model = open_rank_model({.model = models::fixture("llama"), .layout = layout}, rank.world());
      EngineOptions options{.max_sequences = 3, .prefill_chunk = 7, .kv_tokens = 256};
      model->set_up(options);
      InferenceEngine engine(model->model(), options);
      if (rank.rank() != 0) return follow(engine, rank.world());
      for (std::int64_t round = 0; round < 8 || !engine.idle(); ++round) {
        EngineOrders orders;
        if (round < 8) orders.requests.push_back(request_of(round, told));
        if (round == 5) orders.cancels.push_back(4);
        tell_followers(rank.world(), orders);
        for (EngineRequest& request : orders.requests) EXPECT_EQ(engine.add(std::move(request)), std::nullopt);
        for (const RequestId id : orders.cancels) engine.cancel(id);
        if (!engine.idle()) engine.step();
      }
      tell_followers(rank.world(), {});
      tell_followers(rank.world(), {.end = true});
    });
    comm::run_ranks(1, [&](comm::Rank& rank) {
      const auto model = open_rank_model({.model = models::fixture("llama")}, rank.world());
      InferenceEngine engine(model->model(), {.max_sequences = 3, .prefill_chunk = 7, .kv_tokens = 256});
      for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(engine.add(request_of(i, alone)), std::nullopt);
      while (!engine.idle()) engine.step();
    });
    told.erase(4);
    alone.erase(4);
    EXPECT_EQ(told, alone);
  }
}

}  // namespace
}  // namespace trireme::serve
