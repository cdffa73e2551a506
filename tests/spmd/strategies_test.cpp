// Two hundred random legal strategies of each of nine small graphs equal the whole graph under autograd, and exchange
// what was listed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "nets.h"
#include "outcome.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/random_strategy.h"

namespace trireme::spmd {
namespace {

using ::testing::IsEmpty;

struct SmallNet {
  const char* name;
  pg::Graph (*build)();
  bool has_halos = false;  ///< windows on sizes that divide; those of AlexNet are odd
};

constexpr pg::TransformerShape kBlock{
    .batch = 4, .seq_len = 4, .layers = 1, .hidden = 8, .heads = 4, .vocab = 8, .positions = 4};

// With every operator of the families: RMS norms of layers and of heads, rotary positions, groups of queries, a window,
// a gated MLP, a head of its own.
pg::Graph llama_block() {
  spec::ModelShape shape = spec::family_shape(spec::Family::kQwen3);
  shape.vocab_size = 8, shape.max_seq_len = 8, shape.hidden_size = 8, shape.num_layers = 1, shape.num_heads = 4;
  shape.num_kv_heads = 2, shape.head_dim = 4, shape.ffn_size = 8, shape.window = 3, shape.tied = false;
  return pg::decoder("llama", shape, 4);
}

const SmallNet kNets[] = {
    {"mlp", [] { return perceptron(); }},
    {"alexnet", [] { return pg::alexnet({.batch = 2, .size = 64, .classes = 4, .width = 32}); }},
    {"resnet_block", [] { return residual_block(); }, true},
    {"inception_block", [] { return inception_block(); }, true},
    {"lstm", [] { return pg::lstm_language_model({.batch = 4, .steps = 2, .layers = 2, .hidden = 4, .vocab = 8}); }},
    {"bert_block", [] { return pg::bert("bert", kBlock); }},
    {"gpt_block", [] { return pg::gpt("gpt", kBlock); }},
    {"llama_block", [] { return llama_block(); }},
    {"moe_block", [] { return pg::moe({.groups = 4, .tokens = 4, .hidden = 8, .heads = 2, .ffn = 8, .experts = 4}); }},
};

class RandomStrategies : public ::testing::TestWithParam<SmallNet> {};

void expect_equal_strategies(const SmallNet& net, std::uint64_t count) {
  const pg::Graph both = with_backward(with_dtype(net.build(), pg::DType::kFp64));
  const Values start = start_values(both, 1);
  const Reference reference = run_reference(both, start, 5, 0);
  std::vector<pg::Strategy> strategies;
  std::set<std::string> different;
  for (std::uint64_t i = 0; i < count; ++i) {
    strategies.push_back(random_strategy(both, layout::parse_mesh("a=2 b=2"), i));
    ASSERT_THAT(find_problems(both, strategies.back()), IsEmpty());
    different.insert(to_text(both, strategies.back()));
  }
  EXPECT_GT(different.size(), count * 9 / 10);
  bool any_halo = false;
  const std::vector<Outcome> outcomes = run_strategies(both, strategies, start, reference);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string text = fmt::format("strategy {}\n{}", i, to_text(both, strategies[i]));
    ASSERT_NEAR(outcomes[i].loss, outcomes[i].expected, 1e-9) << text;
    ASSERT_LT(outcomes[i].worst, 1e-9) << outcomes[i].parameter << " of " << text;
    ASSERT_GT(outcomes[i].compared, 3U) << text;
    ASSERT_THAT(outcomes[i].deviations, IsEmpty()) << text;
    any_halo = any_halo || outcomes[i].has_halo;
  }
  EXPECT_EQ(any_halo, net.has_halos);
}

TEST_P(RandomStrategies, EqualTheWholeGraphAndExchangeWhatWasListed) { expect_equal_strategies(GetParam(), 200); }

INSTANTIATE_TEST_SUITE_P(OfSmallNets, RandomStrategies, ::testing::ValuesIn(kNets),
                         [](const auto& net) { return std::string(net.param.name); });

}  // namespace
}  // namespace trireme::spmd
