// Ways of rows between ranks: by nodes, in slices of tensor-parallel ranks, to copies of experts. Each gives what the
// plain way gives, and the bytes that its formula says.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "tests/nn/moe/moe_cases.h"
#include "trireme/comm/rank.h"
#include "trireme/nn/moe/dispatch.h"
#include "trireme/nn/moe/expert_copies.h"
#include "trireme/nn/moe/fp8_rows.h"

namespace trireme::nn::moe {
namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Counts the bytes that each rank sends to each other one.
class CountingExchange final : public RowExchange {
 public:
  explicit CountingExchange(comm::Group& group) : exchange_(group) {}
  int ranks() const override { return exchange_.ranks(); }
  int rank() const override { return exchange_.rank(); }
  std::vector<std::int64_t> gather_counts(std::span<const std::int64_t> mine) override {
    return exchange_.gather_counts(mine);
  }
  at::Tensor exchange(const at::Tensor& rows, std::span<const std::int64_t> send,
                      std::span<const std::int64_t> receive) override {
    const std::int64_t row = (rows.dim() > 1 ? rows.size(1) : 1) * rows.element_size();
    for (int to = 0; to < ranks(); ++to) {
      if (to != rank()) bytes_to[to] += send[static_cast<std::size_t>(to)] * row;
    }
    return exchange_.exchange(rows, send, receive);
  }
  std::map<int, std::int64_t> bytes_to;

 private:
  AllToAllExchange exchange_;
};

/// Tokens of one rank, each with experts of its own, as home rows.
struct Routed {
  std::vector<std::vector<std::int64_t>> experts;  // by token
  std::vector<std::int64_t> counts;
  at::Tensor token = {}, number = {};
};
Routed route_some(int rank, std::int64_t tokens, std::int64_t experts, std::int64_t top_k) {
  Routed routed{.experts = {}, .counts = std::vector<std::int64_t>(static_cast<std::size_t>(experts), 0)};
  const Random draws(21, "choices");
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::set<std::int64_t> chosen;
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < top_k; ++i)
      chosen.insert(static_cast<std::int64_t>(
          draws.below(static_cast<std::uint64_t>(experts), static_cast<std::uint64_t>(rank * 1000 + token) * 100 + i)));
    for (const std::int64_t expert : chosen) rows.emplace_back(expert, token);
    routed.experts.emplace_back(chosen.begin(), chosen.end());
  }
  std::ranges::sort(rows);
  routed.token = at::empty({static_cast<std::int64_t>(rows.size())}, at::kLong);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    routed.token.mutable_data_ptr<std::int64_t>()[i] = rows[i].second;
    ++routed.counts[static_cast<std::size_t>(rows[i].first)];
  }
  routed.number = routed.token + (static_cast<std::int64_t>(rank) << 32);
  return routed;
}

/// Over all tokens: other nodes that each has experts on, and rows between ranks of one node.
TEST(NodeRoute, CrossesOnceForEachNodeAndGivesTheSameRows) {
  constexpr std::int64_t kExperts = 16, kTopK = 5, kWidth = 3;
  for (const auto& [ranks, node] : {std::pair{4, 2}, {8, 2}, {8, 4}}) {
    for (const std::int64_t limit : {1000, 7}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks in nodes of " << node << ", passes of " << limit);
      comm::run_ranks(ranks, [&](comm::Rank& self) {
        comm::Group& world = self.world();
        const int me = world.rank();
        const std::int64_t tokens = 9 + me % 3 - (me == 1 ? 9 : 0);  // a rank with few, one with none
        const std::int64_t mine = std::max<std::int64_t>(0, tokens);
        const Routed routed = route_some(me, mine, kExperts, kTopK);
        CountingExchange flat(world), by_node(world);
        const auto plan = plan_dispatch(flat.gather_counts(routed.counts), ranks, me, limit);
        at::Tensor x = at::empty({mine, kWidth}, at::kDouble);
        Random(3, "rows").fill_normal(static_cast<std::uint64_t>(me) * 1000,
                                      std::span(x.data_ptr<double>(), static_cast<std::size_t>(x.numel())));
        std::map<int, std::int64_t> crossed;
        for (const DispatchPass& pass : plan) {
          const Dispatch plain(flat, pass, {routed.token, routed.number});
          const Dispatch nodes(by_node, pass, {routed.token, routed.number}, node);
          by_node.bytes_to.clear();  // of what says who gets what
          EXPECT_TRUE(at::equal(nodes.tokens_to_experts(x), plain.tokens_to_experts(x)));
          EXPECT_TRUE(at::equal(nodes.token_numbers(), plain.token_numbers()));
          for (const auto& [to, bytes] : by_node.bytes_to) crossed[to / node] += bytes;
          // The formula, of this pass: distinct other nodes of each token.
          std::map<int, std::set<std::int64_t>> wanted;  // by node
          for (std::size_t to = 0; to < pass.send.size(); ++to) {
            for (std::int64_t i = pass.send_first[to]; i < pass.send_first[to] + pass.send[to]; ++i)
              wanted[static_cast<int>(to) / node].insert(routed.token[i].item<std::int64_t>());
          }
          for (int other = 0; other < ranks / node; ++other) {
            if (other == me / node) continue;
            EXPECT_EQ(crossed[other], static_cast<std::int64_t>(wanted[other].size()) * kWidth * 8);
          }
          crossed.clear();
        }
      });
    }
  }
}

TEST(NodeRoute, SavesWhatTheExpertsOfATokenShare) {
  comm::run_ranks(4, [&](comm::Rank& self) {
    const Routed routed = route_some(self.rank(), 40, 16, 6);
    CountingExchange flat(self.world()), by_node(self.world());
    const auto plan = plan_dispatch(flat.gather_counts(routed.counts), 4, self.rank(), 1 << 20);
    const at::Tensor x = at::ones({40, 64}, at::kFloat);
    const Dispatch plain(flat, plan[0], {routed.token, routed.number});
    const Dispatch nodes(by_node, plan[0], {routed.token, routed.number}, 2);
    flat.bytes_to.clear(), by_node.bytes_to.clear();
    plain.tokens_to_experts(x), nodes.tokens_to_experts(x);
    std::int64_t plainly = 0, once = 0;
    for (const auto& [to, bytes] : flat.bytes_to) plainly += to / 2 != self.rank() / 2 ? bytes : 0;
    for (const auto& [to, bytes] : by_node.bytes_to) once += to / 2 != self.rank() / 2 ? bytes : 0;
    EXPECT_GT(plainly, 2 * once) << "six experts over two nodes: three rows become one";
    EXPECT_LE(once, 40 * 64 * 4);
  });
}

struct LayerRun {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
};
LayerRun run_layer(BuiltMoe& built, const MoeCase& c, std::int64_t first, std::int64_t count) {
  Context context = moe_context(c, first, count);
  Tape tape;
  LayerRun run;
  run.y = built.layer->forward(moe_input(c, first, count), context, &tape);
  run.dx = built.layer->backward(moe_input(c, first, count, "dy"), context, tape);
  for (Param& param : built.params) run.gradients[param.name] = param.gradient;
  return run;
}

MoeCase some_case() {
  return {.name = "mixtral",
          .config = {.num_experts = 8, .top_k = 3, .num_shared_experts = 1, .aux_loss_weight = 0.3, .arena = 100},
          .samples = 8,
          .length = 5};
}

TEST(HierarchicalAllToAll, GivesTheBitsOfTheFlatOneInTheLayer) {
  for (const double arena : {100.0, 1.0}) {
    MoeCase c = some_case();
    c.config.arena = arena;
    comm::run_ranks(4, [&](comm::Rank& self) {
      const auto flat = build_moe(c, Precision::kFp64, &self.world());
      MoeCase with = c;
      with.config.node_ranks = 2;
      const auto nodes = build_moe(with, Precision::kFp64, &self.world());
      const LayerRun a = run_layer(*flat, c, self.rank() * 2, 2), b = run_layer(*nodes, with, self.rank() * 2, 2);
      EXPECT_TRUE(at::equal(a.y, b.y));
      EXPECT_TRUE(at::equal(a.dx, b.dx));
      for (const auto& [name, gradient] : a.gradients) EXPECT_TRUE(at::equal(gradient, b.gradients.at(name))) << name;
    });
  }
}

/// Tensor-parallel ranks have the same tokens. Each dispatches an equal slice to the experts' ranks, among those of its
/// own place, and the outputs are gathered: gradients of experts add up over all, others are equal.
TEST(SlicesOverTp, EqualOneRank) {
  MoeCase c = some_case();
  c.config.slice_over_tp = true;
  const auto serial = build_moe(c, Precision::kFp64);
  const LayerRun all = run_layer(*serial, c, 0, c.samples);
  std::mutex mutex;
  std::map<std::string, at::Tensor> sums;
  comm::run_ranks(4, [&](comm::Rank& self) {
    comm::Group& world = self.world();
    const auto tensor = world.split(world.rank() / 2, world.rank(), "tp"),
               experts = world.split(world.rank() % 2, world.rank(), "ep");
    const ParallelContext parallel{.tensor = tensor.get()};
    const auto built = build_moe(c, Precision::kFp64, experts.get(), parallel);
    const std::int64_t first = experts->rank() * 4;
    tensor->reset_counters();
    experts->reset_counters();
    const LayerRun mine = run_layer(*built, c, first, 4);
    const std::lock_guard lock(mutex);
    EXPECT_LE(largest_difference(mine.y, all.y.narrow(0, first, 4)), 1e-13);
    EXPECT_LE(largest_difference(mine.dx, all.dx.narrow(0, first, 4)), 1e-13);
    // An all-gather of outputs forward and one of gradients backward, each of all tokens; calls do not grow with ep.
    const std::int64_t tokens = 4 * c.length;
    EXPECT_EQ(tensor->counters(comm::Op::kAllGather).calls, 2U);
    EXPECT_EQ(tensor->counters(comm::Op::kAllGather).bytes, static_cast<std::uint64_t>(2 * tokens * c.hidden * 8));
    for (Param& param : built->params) {
      const std::string key = param.name + (param.name.starts_with("experts") ? std::to_string(experts->rank()) : "");
      const at::Tensor gradient = param.name.starts_with("experts") ? param.gradient : param.gradient / 2;
      at::Tensor& sum = sums[key];
      sum = sum.defined() ? sum + gradient : gradient.clone();
    }
  });
  for (const auto& [name, gradient] : all.gradients) {
    if (!name.starts_with("experts")) {
      EXPECT_LE(largest_difference(sums.at(name), gradient), 1e-13) << name;
      continue;
    }
    for (const int rank : {0, 1})
      EXPECT_LE(largest_difference(sums.at(name + std::to_string(rank)), gradient.narrow(0, rank * 4, 4)), 1e-13)
          << name;
  }
}

TEST(Fp8Rows, AreWithinHalfAStepOfEachBlocksLargest) {
  at::Tensor rows = at::empty({7, 256}, at::kFloat);
  Random(5, "rows").fill_normal(0, std::span(rows.data_ptr<float>(), static_cast<std::size_t>(rows.numel())));
  rows.select(0, 3).narrow(0, 0, 128).mul_(1e4);  // an outlier leaves its neighbours' block alone
  rows.select(0, 4).zero_();
  const at::Tensor bytes = to_fp8_rows(rows);
  EXPECT_EQ(bytes.size(1), fp8_row_bytes(256));
  EXPECT_EQ(bytes.size(1), 256 + 8);
  const at::Tensor back = from_fp8_rows(bytes, at::kFloat);
  const at::Tensor blocks = rows.view({7, 2, 128}), most = blocks.abs().amax({2}, true);
  // Codes have three bits behind the leading one, and below 2^-6 of a scale of 448 steps of 2^-9.
  const at::Tensor bound = blocks.abs() / 16 + most / 448 * std::ldexp(1, -10) + 1e-30;
  EXPECT_TRUE(((back.view({7, 2, 128}) - blocks).abs() <= bound * 1.0001).all().item<bool>());
  EXPECT_LE(((from_fp8_rows(to_fp8_rows(back), at::kFloat) - back).abs() / (back.abs() + 1e-30)).max().item<double>(),
            1e-6)
      << "what was rounded stays";
}

/// The same function under every layout, since rows that stay are rounded too; a quarter of the bytes of float, and a
/// half of bfloat16's but for scales.
TEST(Fp8Dispatch, IsTheSameUnderEveryLayoutAndNearTheExact) {
  MoeCase c = some_case();
  c.hidden = 128;
  c.config.dispatch_precision = spec::DispatchPrecision::kFp8;
  const auto serial = build_moe(c, Precision::kFp64);
  const LayerRun all = run_layer(*serial, c, 0, c.samples);
  MoeCase plain = c;
  plain.config.dispatch_precision = spec::DispatchPrecision::kSame;
  const auto exact = build_moe(plain, Precision::kFp64);
  const LayerRun exactly = run_layer(*exact, plain, 0, c.samples);
  const double away = ((all.y - exactly.y).norm() / exactly.y.norm()).item<double>();
  EXPECT_GT(away, 1e-4);
  EXPECT_LT(away, 0.05);
  const double bound = 1e-13 * (1 + all.y.abs().max().item<double>() + all.dx.abs().max().item<double>() +
                                all.gradients.at("experts.in").abs().max().item<double>() +
                                all.gradients.at("experts.out").abs().max().item<double>());
  std::mutex mutex;
  for (const std::int64_t node : {0, 2}) {
    MoeCase with = c;
    with.config.node_ranks = node;
    comm::run_ranks(4, [&](comm::Rank& self) {
      const auto built = build_moe(with, Precision::kFp64, &self.world());
      const LayerRun mine = run_layer(*built, with, self.rank() * 2, 2);
      const std::lock_guard lock(mutex);
      EXPECT_LE(largest_difference(mine.y, all.y.narrow(0, self.rank() * 2, 2)), bound);
      EXPECT_LE(largest_difference(mine.dx, all.dx.narrow(0, self.rank() * 2, 2)), bound);
      for (const char* name : {"experts.in", "experts.out"})
        EXPECT_LE(largest_difference(mine.gradients.at(name), all.gradients.at(name).narrow(0, self.rank() * 2, 2)),
                  bound);
    });
  }
}

TEST(ExpertCopies, CarryWeightsThereAndGradientsBack) {
  // Rank 0 has experts 0 and 1 and a copy of 2, rank 1 has 2 and 3 and a copy of 0.
  comm::run_ranks(2, [&](comm::Rank& self) {
    AllToAllExchange exchange(self.world());
    const ExpertCopies copies(exchange, 4, {2, 0});
    EXPECT_EQ(copies.slots(), 6);
    EXPECT_EQ(copies.slot_of(1, 5), 1);
    EXPECT_EQ(copies.slot_of(0, 4), 0);
    EXPECT_EQ(copies.slot_of(0, 5), 5);
    const at::Tensor own = at::arange(8, at::kDouble).view({2, 4}) + 100 * self.rank();
    const at::Tensor all = copies.with_copies(own);
    EXPECT_TRUE(at::equal(all.narrow(0, 0, 2), own));
    EXPECT_EQ(all[2][1].item<double>(), self.rank() == 0 ? 101 : 1);
    at::Tensor sum = at::ones({2, 4}, at::kDouble);
    copies.add_to_owners(at::full({3, 4}, self.rank() + 1.0, at::kDouble), sum, /*fresh=*/false);
    const double other = 2 - self.rank();
    EXPECT_EQ(sum[0][3].item<double>(), 1 + (self.rank() + 1) + other);
    EXPECT_EQ(sum[1][3].item<double>(), 1 + (self.rank() + 1));
  });
}

TEST(ExpertCopies, ChangeTheLayerByRoundingAtMost) {
  for (const int ranks : {2, 4}) {
    for (const double arena : {100.0, 1.0}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, arena " << arena);
      MoeCase c = some_case();
      c.config.arena = arena;
      c.config.expert_dropout = 0.3;  // drawn by expert and token, wherever they meet
      c.config.redundant_experts = 2 * ranks;
      c.config.rebalance_every = 1;
      const auto serial = build_moe(c, Precision::kFp64);
      const LayerRun all = run_layer(*serial, c, 0, c.samples);
      std::mutex mutex;
      comm::run_ranks(ranks, [&](comm::Rank& self) {
        const auto built = build_moe(c, Precision::kFp64, &self.world());
        const std::int64_t each = c.samples / ranks, first = self.rank() * each, own = 8 / ranks;
        // Loads of a step before, as if these had been counted.
        built->balance.advance(/*taken=*/true, [](std::span<std::int64_t> counts) {
          std::ranges::copy(std::vector<std::int64_t>{100, 1, 50, 1, 1, 40, 1, 3}, counts.begin());
        });
        EXPECT_GE(std::ranges::max(built->balance.begin()->copies), 0);
        const LayerRun mine = run_layer(*built, c, first, each);
        const std::lock_guard lock(mutex);
        EXPECT_LE(largest_difference(mine.y, all.y.narrow(0, first, each)), 1e-13);
        EXPECT_LE(largest_difference(mine.dx, all.dx.narrow(0, first, each)), 1e-13);
        for (const char* name : {"experts.in", "experts.out"})
          EXPECT_LE(
              largest_difference(mine.gradients.at(name), all.gradients.at(name).narrow(0, self.rank() * own, own)),
              1e-13)
              << name;
      });
    }
  }
}

/// Rank 0 has experts 3 and 1 and a copy of 2, rank 1 has 0 and 2 and a copy of 3.
TEST(ExpertCopies, FollowExpertsThatHaveMoved) {
  comm::run_ranks(2, [&](comm::Rank& self) {
    AllToAllExchange exchange(self.world());
    const ExpertCopies copies(exchange, 4, {2, 3}, {3, 1, 0, 2});
    EXPECT_EQ(copies.slot_of(3, 4), 0);
    EXPECT_EQ(copies.slot_of(3, 5), 5);
    EXPECT_EQ(copies.slot_of(1, 5), 1);
    EXPECT_EQ(copies.slot_of(0, 5), 3);
    EXPECT_EQ(copies.slot_of(2, 4), 4);
    EXPECT_EQ(copies.slot_of(2, 5), 2);
    EXPECT_EQ(copies.experts_here(),
              (self.rank() == 0 ? std::vector<std::int64_t>{3, 1, 2} : std::vector<std::int64_t>{0, 2, 3}));
    const at::Tensor own = at::arange(8, at::kDouble).view({2, 4}) + 100 * self.rank();
    const at::Tensor all = copies.with_copies(own);
    EXPECT_EQ(all[2][1].item<double>(), self.rank() == 0 ? 105 : 1) << "2 is rank 1's second, 3 is rank 0's first";
    const ExpertCopies none(exchange, 4, {}, {3, 1, 0, 2});
    EXPECT_FALSE(none.any());
    EXPECT_EQ(none.slots(), 4);
    EXPECT_EQ(none.slot_of(2, 7), 3);
  });
}

/// A zipf stream over 16 experts whose hot ones lie together, as they do when numbers follow frequency: the busiest of
/// four ranks goes from 3 times the mean to what its hottest expert alone makes, and with copies below that.
TEST(Balance, MovesExpertsOfASkewedStreamApart) {
  for (const std::int64_t room : {0, 1}) {
    Balance balance;
    ExpertLoads loads{.layer = "mlp", .counts = std::vector<std::int64_t>(16, 0), .last = {}};
    loads.policy = {.every = 3, .ranks = 4, .room = room, .moves = true};
    ExpertLoads& kept = balance.add(std::move(loads));
    std::vector<double> worst;
    for (int step = 0; step < 9; ++step) {
      for (std::size_t expert = 0; expert < 16; ++expert)
        kept.counts[expert] = 1000 / static_cast<std::int64_t>(expert + 1) + step % 2;
      const std::vector<LayerLoads> told = balance.advance(/*taken=*/true, {"mlp"}, 16, {});
      const auto sum = static_cast<double>(std::reduce(told[0].ranks.begin(), told[0].ranks.end()));
      worst.push_back(4 * static_cast<double>(std::ranges::max(told[0].ranks)) / sum);
      EXPECT_EQ(told[0].moved > 0, step == 2) << "once; then nothing is gained";
      if (kept.next_order.empty()) continue;
      EXPECT_GT(told[0].busiest_before, 2.4);
      kept.moved();
    }
    EXPECT_GT(worst[2], 2.4);
    // The hottest with the three coldest: 1 + 1/16 + 1/15 + 1/14 of 3.38 over four ranks.
    EXPECT_GT(worst[3], room == 0 ? 1.40 : 1.0);
    EXPECT_LT(worst[3], room == 0 ? 1.44 : 1.34);
    EXPECT_LE(worst[8], worst[4] + 0.02);
  }
}

TEST(ExpertCopies, AreChosenFromTheLoadsOfSeveralSteps) {
  Balance balance;
  ExpertLoads loads{.layer = "mlp", .counts = {0, 0, 0, 0}, .last = {}};
  loads.policy = {.every = 2, .ranks = 2, .room = 1};
  ExpertLoads& kept = balance.add(std::move(loads));
  kept.counts = {50, 1, 1, 1};
  balance.advance(/*taken=*/true);
  EXPECT_TRUE(kept.copies.empty());
  kept.counts = {1, 1, 90, 1};
  balance.advance(/*taken=*/true);
  EXPECT_EQ(kept.copies, (std::vector<std::int64_t>{2, 0}));
}

}  // namespace
}  // namespace trireme::nn::moe
