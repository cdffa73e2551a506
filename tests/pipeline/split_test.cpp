#include "trireme/pipeline/split.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/pipeline/support.h"
#include "trireme/base/error.h"
#include "trireme/pipeline/profile.h"

namespace trireme::pipeline {
namespace {

using testing::HasSubstr;

std::vector<std::string> names(int blocks) {
  std::vector<std::string> all{"embedding"};
  for (int i = 0; i < blocks; ++i) all.push_back("layers." + std::to_string(i));
  all.insert(all.end(), {"norm", "head"});
  return all;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message() + " -> " + error.hint();
  }
  return "";
}

TEST(Split, ByCountSharesBlocksAndLeavesTheEndsToTheEnds) {
  EXPECT_EQ(to_text(split_by_count(names(4), 2), names(4)), "0: embedding .. layers.1 | 1: layers.2 .. head");
  EXPECT_EQ(to_text(split_by_count(names(5), 3), names(5)),
            "0: embedding .. layers.0 | 1: layers.1 .. layers.2 | 2: layers.3 .. head");
}

TEST(Split, ByCountHoldsEveryEntryOnceForAllNumbers) {
  for (int blocks = 1; blocks <= 12; ++blocks) {
    for (int chunks = 1; chunks <= blocks + 3; ++chunks) {
      const auto split = split_by_count(names(blocks), chunks);
      EXPECT_EQ(split.size(), static_cast<std::size_t>(chunks));
      EXPECT_NO_THROW(check_split(split, names(blocks))) << blocks << " blocks in " << chunks;
    }
    EXPECT_THAT(message_of([&] { split_by_count(names(blocks), blocks + 4); }), HasSubstr("cannot be cut into"));
  }
}

TEST(Split, AtNamedEntries) {
  const std::vector<std::string> starts{"layers.1", "norm"};
  EXPECT_EQ(to_text(split_at(names(3), starts), names(3)),
            "0: embedding .. layers.0 | 1: layers.1 .. layers.2 | 2: norm .. head");
  const std::vector<std::string> wrong{"layer.1"}, twice{"layers.2", "layers.1"}, first{"embedding"};
  EXPECT_THAT(message_of([&] { split_at(names(3), wrong); }), HasSubstr("layers.1"));
  EXPECT_THAT(message_of([&] { split_at(names(3), twice); }), HasSubstr("the chunk before it begins at \"layers.2\""));
  EXPECT_THAT(message_of([&] { split_at(names(3), first); }), HasSubstr("cannot begin at \"embedding\""));
}

/// The least largest chunk over all ways to cut, tried one by one.
double best_split_by_trying(const std::vector<double>& costs, std::size_t first, int chunks) {
  if (chunks == 1) {
    double sum = 0;
    for (std::size_t i = first; i < costs.size(); ++i) sum += costs[i];
    return sum;
  }
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t end = first + 1; end + static_cast<std::size_t>(chunks) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, best_split_by_trying(costs, end, chunks - 1)));
  }
  return best;
}

TEST(Split, ByCostIsTheBestOfAllSplits) {
  for (int entries = 1; entries <= 10; ++entries) {
    for (int chunks = 1; chunks <= entries; ++chunks) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        std::vector<double> costs;
        for (int i = 0; i < entries; ++i) {
          costs.push_back(static_cast<double>(number(seed, static_cast<std::uint64_t>(i), 10)));  // zeros too
        }
        const Split split = split_by_cost(costs, chunks);
        ASSERT_NO_THROW(check_split(split, std::vector<std::string>(costs.size(), "x")));
        double largest = 0;
        for (const LayerRange& stretch : split) largest = std::max(largest, cost_of(stretch, costs));
        EXPECT_EQ(largest, best_split_by_trying(costs, 0, chunks));
      }
    }
  }
}

TEST(Split, ByCostEvensOutWhatTheLargestLeavesOpen) {
  // The 10 decides the largest; the four ones could still be cut 3+1.
  EXPECT_EQ(split_by_cost(std::vector<double>{10, 1, 1, 1, 1}, 3), (Split{{0, 1}, {1, 3}, {3, 5}}));
}

TEST(Split, SaysWhichEntryIsMissingOrTwice) {
  EXPECT_THAT(message_of([] { check_split({{0, 2}, {3, 5}}, names(2)); }), HasSubstr("layers.1 is in no chunk"));
  EXPECT_THAT(message_of([] {
                check_split({{0, 2}, {1, 5}}, names(2));
              }),
              HasSubstr("layers.0 is in chunk 0 and again in chunk 1"));
  EXPECT_THAT(message_of([] { check_split({{0, 2}, {2, 2}, {2, 5}}, names(2)); }), HasSubstr("chunk 1"));
  EXPECT_THAT(message_of([] { check_split({{0, 2}, {2, 4}}, names(2)); }), HasSubstr("head is in no chunk"));
}

/// The parts of all ranks are the model: every parameter somewhere, with the numbers it has in the whole.
TEST(Stage, PartsOfAllRanksMakeUpTheModel) {
  for (const auto family :
       {spec::Family::kGpt2, spec::Family::kLlama, spec::Family::kBert, spec::Family::kTransformer}) {
    for (const auto recompute : {nn::RecomputeKind::kNone, nn::RecomputeKind::kSqrt, nn::RecomputeKind::kEvery}) {
      const spec::ModelShape shape = small_shape(family, 5);
      const models::BuildOptions options{.recompute = {.kind = recompute}};
      const auto whole = models::build(shape, options);
      nn::initialise(whole->params, nn::Precision::kFp64, 1);
      const auto table = schedule::build("1f1b", {.ranks = 4, .micros = 2});
      const Split split = split_by_count(chain_names(shape, options), 4);
      std::map<std::string, int> holders;
      std::size_t entries = 0;
      for (int rank = 0; rank < 4; ++rank) {
        Stage stage = build_stage({.shape = shape, .table = table, .split = split, .rank = rank, .build = options});
        nn::initialise(stage.model->params, nn::Precision::kFp64, 1);
        entries += stage.model->layers.size();
        for (const nn::Param& param : stage.model->params) {
          ++holders[param.name];
          EXPECT_TRUE(at::equal(param.master, whole->params.at(param.name).master)) << param.name;
        }
        for (const ParamHolders& held : stage.param_holders) {
          const bool listed = std::ranges::find(held.ranks, rank) != held.ranks.end();
          EXPECT_EQ(listed, stage.model->params.find(held.param) != nullptr) << held.param << " on " << rank;
        }
      }
      EXPECT_EQ(entries, whole->layers.size());
      EXPECT_EQ(holders.size(), whole->params.size());
      // The table of tokens: embedding and head where they are tied; the original's encoder reads it too.
      const int tables = family == spec::Family::kTransformer ? 3 : shape.tied ? 2 : 1;
      for (const auto& [name, count] : holders) {
        EXPECT_EQ(count, name == "embedding.tokens.weight" ? tables : 1) << name;
      }
    }
  }
}

TEST(Stage, BalancedBySizeIsNoWorseThanByCount) {
  const spec::ModelShape shape = small_shape(spec::Family::kGpt2, 7);
  const std::vector<double> costs = parameter_costs(shape);
  const auto largest = [&](const Split& split) {
    double most = 0;
    for (const LayerRange& stretch : split) most = std::max(most, cost_of(stretch, costs));
    return most;
  };
  for (int chunks = 1; chunks <= 8; ++chunks) {
    EXPECT_LE(largest(split_by_cost(costs, chunks)), largest(split_by_count(chain_names(shape), chunks)));
  }
}

/// A large vocabulary makes the head the costliest entry.
TEST(Profile, FindsWhatCostsMost) {
  spec::ModelShape shape = small_shape(spec::Family::kLlama, 4);
  shape.vocab_size = 65536;
  const auto model = models::build(shape);
  nn::initialise(model->params, nn::Precision::kFp32, 1);
  const Problem problem{.shape = shape};
  const auto profile = profile_entries(*model, [&] { return make_micro(problem, 1); });
  ASSERT_EQ(profile.size(), model->layers.size());
  const auto tokens = static_cast<double>(make_micro(problem, 1).inputs.front().numel());
  for (std::size_t i = 0; i + 1 < profile.size(); ++i) {
    EXPECT_GT(profile[i].seconds, 0) << model->layers[i].name;
    EXPECT_EQ(profile[i].activation_bytes, tokens * 8 * 4) << model->layers[i].name;  // width, float
  }
  EXPECT_EQ(profile.back().weight_bytes, 65536 * 8 * 4);
  for (const nn::Param& param : model->params) EXPECT_TRUE(param.gradient_empty);
  const Split split = split_by_cost(seconds_of(profile), 2);
  EXPECT_NO_THROW(check_split(split, chain_names(shape)));
  EXPECT_GE(split[1].begin, 4u) << to_text(split, chain_names(shape));  // the head outweighs all blocks
}

TEST(Stage, NamesAnEntryThatTheModelHasNot) {
  EXPECT_THAT(message_of([] { models::build(small_shape(spec::Family::kGpt2, 2), {.only = {{"layers.7"}}}); }),
              HasSubstr("layers.7"));
}

}  // namespace
}  // namespace trireme::pipeline
