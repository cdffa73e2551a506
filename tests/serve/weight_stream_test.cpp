// Weights that are streamed: which layers stay, and the same tokens through an arena a quarter of the model's size.
#include "trireme/serve/weight_stream.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/files.h"
#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/rank_model.h"
#include "trireme/serve/stream_batch.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

TEST(StreamPlan, KeepsWhatFitsBesideTwoBuffers) {
  const std::vector<StreamUnit> units{{"embedding", 50}, {"layers.0", 20}, {"layers.1", 20},
                                      {"layers.2", 20},  {"norm", 1},      {"head", 50}};
  const StreamPlan plan = plan_stream(units, 101);  // of 161: a table is loaded while another is in use
  EXPECT_THAT(plan.resident, testing::ElementsAre("norm"));
  EXPECT_EQ(plan.buffers, 2);
  EXPECT_EQ(plan.buffer_bytes, 50);
  EXPECT_EQ(plan.arena_bytes(), 101);
  EXPECT_EQ(plan.resident_bytes + plan.streamed_bytes, 161);
  EXPECT_TRUE(plan_stream(units, 161).streamed.empty());
  EXPECT_EQ(plan_stream(units, 161).buffers, 0);
  // Both tables: what is left for layers is two buffers.
  EXPECT_THAT(plan_stream(units, 145).streamed, testing::ElementsAre("layers.0", "layers.1", "layers.2"));
  EXPECT_THAT(plan_stream(units, 160).resident, testing::Contains("head"));
}

TEST(StreamPlan, NeverTakesMoreThanTheArena) {
  const Random random(8, "units");
  for (std::uint64_t i = 0; i < 400; ++i) {
    std::vector<StreamUnit> units;
    std::int64_t all = 0, largest = 0;
    for (std::uint64_t n = 0; n < 1 + random.below(9, 40 * i); ++n) {
      units.push_back({"unit" + std::to_string(n), 1 + static_cast<std::int64_t>(random.below(30, 40 * i + n + 1))});
      all += units.back().bytes;
      largest = std::max(largest, units.back().bytes);
    }
    for (std::int64_t arena = 2 * largest; arena <= all + 2; ++arena) {
      const StreamPlan plan = plan_stream(units, arena);
      EXPECT_LE(plan.arena_bytes(), arena);
      EXPECT_EQ(plan.resident_bytes + plan.streamed_bytes, all);
      for (const std::string& name : plan.streamed) {
        EXPECT_LE(std::ranges::find(units, name, &StreamUnit::name)->bytes, plan.buffer_bytes);
      }
      if (arena >= all) {
        EXPECT_EQ(plan.streamed_bytes, 0);
      }
    }
  }
  EXPECT_THROW(plan_stream({{"layers.0", 40}, {"layers.1", 39}}, 70), ConfigError);
}

class Streams : public OwnFolder {
 protected:
  /// A model of many layers, published; its bytes in fp32.
  std::int64_t write_deep_model(spec::Family family, std::int64_t layers) {
    spec::ModelShape shape = models::tiny_shape(family);
    shape.num_layers = layers;
    const auto model = models::build(shape);
    models::fill(*model, nn::Precision::kFp32, 5);
    models::save_published(*model, path_ = folder_ / ("deep" + std::to_string(folders_++)), formats::Dtype::kF32);
    return 4 * model->params.elements();
  }
  TokenLists tokens(std::int64_t arena, std::int64_t batch = 3) {
    GenerateRequest request{.model = path_,
                            .prompts = {{1, 2, 3}, {9}, {4, 8, 15, 16, 23, 42, 7, 7, 7}, {60, 1}, {5, 5}},
                            .tokens = 11,
                            .sampling = {.temperature = 0.7, .seed = 2},
                            .weight_arena_bytes = arena,
                            .batch = batch};
    TokenLists added;
    comm::run_ranks(1, [&](comm::Rank& rank) { added = generate(request, rank.world()); });
    return added;
  }
  fs::path path_;
  int folders_ = 0;
};

TEST_F(Streams, AModelFourTimesTheArenaGivesTheSameTokens) {
  for (const spec::Family family : {spec::Family::kLlama, spec::Family::kGpt2, spec::Family::kQwen2}) {
    const std::int64_t bytes = write_deep_model(family, 24);
    const TokenLists expected = tokens(0);
    for (const std::int64_t part : {4, 3, 2}) EXPECT_EQ(tokens(bytes / part), expected) << part;
    EXPECT_EQ(tokens(bytes / 4, 1), expected) << "one at a time";
    EXPECT_EQ(tokens(2 * bytes), expected) << "everything stays";
  }
}

TEST(BalanceBatch, ComputesForAboutAsLongAsItLoads) {
  for (const double load : {1e-3, 0.1, 7.0}) {
    for (const double each : {1e-4, 3e-3, 0.02, 1.0}) {
      for (const std::int64_t most : {1, 7, 100, 512}) {
        const BalancedBatch batch =
            balance_batch(most, [&](std::int64_t n) { return std::max(load, each * static_cast<double>(n)); });
        const double share = each * static_cast<double>(batch.sequences) / load;
        SCOPED_TRACE(fmt::format("load {} each {} most {}: {}", load, each, most, batch.sequences));
        EXPECT_TRUE(share >= 0.7 || 10 * batch.sequences >= 7 * most);
        EXPECT_TRUE(share < 1.4 || batch.sequences == 1);
        EXPECT_LE(batch.sequences, most);
        EXPECT_EQ(batch.trials.front().sequences, 1);
      }
    }
  }
  // A trial beside which something else ran, three times as long as it would be.
  for (const std::int64_t slow : {1, 2, 8, 16}) {
    const BalancedBatch batch = balance_batch(
        512, [&](std::int64_t n) { return (n == slow ? 3.0 : 1.0) * std::max(0.5, 0.01 * static_cast<double>(n)); });
    EXPECT_EQ(batch.sequences, 64) << slow;
  }
  // Steps whose time hardly depends on the batch take as many as there are.
  EXPECT_EQ(balance_batch(100, [](std::int64_t) { return 1.0; }).sequences, 100);
}

TEST_F(Streams, ABatchThatNobodyAsksForIsTheBalance) {
  const std::int64_t bytes = write_deep_model(spec::Family::kLlama, 24);
  EXPECT_EQ(tokens(bytes / 4, /*batch=*/0), tokens(0));
  EXPECT_EQ(tokens(0, /*batch=*/0), tokens(0));
  comm::run_ranks(1, [&](comm::Rank& rank) {
    const auto model = open_rank_model({.model = path_, .weight_arena_bytes = bytes / 4}, rank.world());
    std::string about;
    EXPECT_EQ(batch_of(3, *model, 64, 32, about), 3);
    EXPECT_EQ(about, "");
    const std::int64_t chosen = batch_of(0, *model, 5, 32, about);
    EXPECT_TRUE(1 <= chosen && chosen <= 5) << chosen;
    EXPECT_THAT(about, testing::HasSubstr(fmt::format("batch: {} sequences", chosen)));
    EXPECT_EQ(batch_of(0, *model, 64, std::int64_t{1} << 50, about), 1) << "more than memory has";
    std::string nothing;
    const auto whole = open_rank_model({.model = path_, .weight_arena_bytes = 2 * bytes}, rank.world());
    EXPECT_EQ(batch_of(0, *whole, 64, 32, nothing), kDefaultBatch) << "nothing is streamed";
    const auto plain = open_rank_model({.model = path_}, rank.world());
    EXPECT_EQ(batch_of(0, *plain, 64, 32, nothing), kDefaultBatch);
    EXPECT_EQ(nothing, "");
  });
}

TEST_F(Streams, LoadsEachLayerOnceAStepAndHoldsTheArenaAlone) {
  const std::int64_t bytes = write_deep_model(spec::Family::kLlama, 24);
  comm::run_ranks(1, [&](comm::Rank& rank) {
    const auto model = open_rank_model({.model = path_, .weight_arena_bytes = bytes / 4}, rank.world());
    std::int64_t resident = 0;
    for (const nn::Param& param : model->model().params) resident += static_cast<std::int64_t>(param.value.nbytes());
    EXPECT_LE(resident, bytes / 4);
    EngineOptions options{.kv_tokens = 64};
    model->set_up(options);
    InferenceEngine engine(model->model(), options);
    EXPECT_EQ(engine.add({.id = 1, .prompt = {1, 2, 3}, .max_new_tokens = 6}), std::nullopt);
    std::int64_t steps = 0;
    for (; !engine.idle(); ++steps) engine.step();
    const WeightStream::Totals totals = model->stream->totals();
    const std::int64_t streamed = bytes - resident;
    EXPECT_GE(totals.bytes, (steps - 1) * streamed);
    EXPECT_LE(totals.bytes, (steps + 1) * streamed);  // two layers ahead at the most
    // By Little's law, up to the two layers that are in buffers still.
    const QueueReading queue = model->stream->queue();
    EXPECT_GE(queue.arrivals, totals.loads);
    EXPECT_LE(queue.arrivals - queue.departures, 2);
    EXPECT_GE(queue.departures, totals.loads - 2);
    EXPECT_LE(queue.length(), 2.0);
    EXPECT_GE(queue.occupancy, queue.sojourn - 1e-9);
    EXPECT_LE(queue.occupancy, queue.sojourn + 2 * queue.seconds);
    EXPECT_NEAR(queue.blocked, totals.wait_seconds, 0.01 + 0.1 * totals.wait_seconds);
  });
}

TEST_F(Streams, InBfloat16GivesTheSameTokens) {
  write_deep_model(spec::Family::kLlama, 12);
  GenerateRequest request{.model = path_, .prompts = {{1, 2, 3}}, .tokens = 9, .precision = GeneratePrecision::kBf16};
  const auto run = [&] {
    TokenLists added;
    comm::run_ranks(1, [&](comm::Rank& rank) { added = generate(request, rank.world()); });
    return added;
  };
  const TokenLists expected = run();
  request.weight_arena_bytes = 60000;
  EXPECT_EQ(run(), expected);
}

TEST_F(Streams, ALoaderThatFailsIsAnErrorOfTheStep) {
  const std::int64_t bytes = write_deep_model(spec::Family::kLlama, 24);
  comm::run_ranks(1, [&](comm::Rank& rank) {
    const auto model = open_rank_model({.model = path_, .weight_arena_bytes = bytes / 4}, rank.world());
    // The same plan on a smaller model's folder: layers that the loader asks for are not there.
    write_deep_model(spec::Family::kLlama, 2);
    const auto other = std::make_shared<const checkpoint::StoredWeights>(path_);
    const StreamPlan plan = plan_stream(stream_units(model->model(), 4), bytes / 4);
    WeightStream stream(model->model(), plan, other, {});
    EngineOptions options{.kv_tokens = 64, .weights = &stream};
    InferenceEngine engine(model->model(), options);
    EXPECT_EQ(engine.add({.id = 1, .prompt = {1, 2, 3}, .max_new_tokens = 6}), std::nullopt);
    EXPECT_ANY_THROW({
      while (!engine.idle()) engine.step();
    });
  });
}

TEST_F(Streams, WhatDoesNotGoTogetherIsNamed) {
  const std::int64_t bytes = write_deep_model(spec::Family::kLlama, 8);
  const auto refused = [&](ModelRequest request, int ranks, const std::string& why) {
    request.model = path_;
    request.weight_arena_bytes = bytes / 2;
    try {
      comm::run_ranks(ranks, [&](comm::Rank& rank) { open_rank_model(request, rank.world()); });
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::HasSubstr(why));
    }
  };
  refused({.weights = WeightBits::kInt8}, 1, "quantised weights are not streamed");
  refused({}, 2, "streamed by one rank");
}

}  // namespace
}  // namespace trireme::serve
