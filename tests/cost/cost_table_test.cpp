#include "trireme/cost/cost_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "trireme/base/error.h"

namespace trireme::cost {
namespace {

using testing::HasSubstr;

TransportCost published() {
  const LinkCost link{.alpha = 5e-6, .beta = 1 / 25e9, .gamma = 1 / 200e9};
  return {.links = {link, link}};
}

TEST(Choose, CrossesOverWhereTheFormulasCross) {
  // lg p (alpha + n beta + n gamma) = 2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma, solved for n.
  const TransportCost costs = published();
  const LinkCost& link = costs.links.inside;
  for (const int ranks : {4, 8, 64, 512}) {
    const double lg = std::log2(ranks), rest = (ranks - 1.0) / ranks;
    const double crossing = lg * link.alpha / ((lg - 2 * rest) * link.beta + (lg - rest) * link.gamma);
    const auto chosen = [&](double bytes) {
      constexpr Algorithm kCandidates[] = {Algorithm::kRing, Algorithm::kHalvingDoubling,
                                           Algorithm::kRecursiveDoubling};
      return choose(Collective::kAllReduce, {ranks, 1}, bytes, kCandidates, costs);
    };
    EXPECT_EQ(chosen(0.99 * crossing), Algorithm::kRecursiveDoubling) << ranks;
    EXPECT_EQ(chosen(1.01 * crossing), Algorithm::kHalvingDoubling) << ranks;
  }
}

TEST(Choose, TakesTheCheapestForEveryOperationAndSize) {
  const CostTable table;
  for (const auto& [transport, costs] : table.transports()) {
    for (const Collective op : all_collectives()) {
      for (const Topology topology : {Topology{2, 1}, Topology{7, 1}, Topology{16, 4}}) {
        for (double bytes = 1; bytes < 1e9; bytes *= 8) {
          const Algorithm best = choose(op, topology, bytes, all_algorithms(), costs);
          const double seconds = costs.predict(op, best, topology, bytes);
          EXPECT_TRUE(std::isfinite(seconds)) << transport << " " << name(op);
          for (const Algorithm other : all_algorithms())
            EXPECT_LE(seconds, costs.predict(op, other, topology, bytes)) << name(best) << " " << name(other);
        }
      }
    }
  }
}

TEST(Choose, KeepsTheOrderOfTheCandidatesAmongEquals) {
  // Pairwise and linear exchange the same bytes in the same number of messages.
  constexpr Algorithm kOneWay[] = {Algorithm::kPairwise, Algorithm::kLinear};
  constexpr Algorithm kOtherWay[] = {Algorithm::kLinear, Algorithm::kPairwise};
  EXPECT_EQ(choose(Collective::kAllToAll, {4, 1}, 1e6, kOneWay, published()), Algorithm::kPairwise);
  EXPECT_EQ(choose(Collective::kAllToAll, {4, 1}, 1e6, kOtherWay, published()), Algorithm::kLinear);
}

TEST(TransportCost, PricesMeasuredAlgorithmsByTheirMeasurements) {
  TransportCost costs = published();
  EXPECT_TRUE(std::isinf(costs.predict(Collective::kAllReduce, Algorithm::kDirect, {4, 1}, 1e6)));
  costs.measured[{Algorithm::kDirect, Collective::kAllReduce}] = {.alpha = 1e-6, .beta = 1e-9};
  EXPECT_DOUBLE_EQ(costs.predict(Collective::kAllReduce, Algorithm::kDirect, {4, 1}, 1e6), 2e-6 + 1.5e-3);
  // A formula keeps its form and takes the fitted constants.
  costs.measured[{Algorithm::kRing, Collective::kAllGather}] = {.alpha = 1e-6, .beta = 1e-9};
  EXPECT_DOUBLE_EQ(costs.predict(Collective::kAllGather, Algorithm::kRing, {4, 1}, 1e6), 3e-6 + 0.75e-3);
}

TEST(CostTable, IsReadBackAsItWasWritten) {
  CostTable table;
  table.of("mpi").links.across = {.alpha = 1.0 / 3, .beta = 0, .gamma = 1e-300};
  table.of("threads").measured[{Algorithm::kRing, Collective::kAllReduce}] = {1.25e-6, 3e-10};
  const CostTable again = parse_cost_table(to_text(table), "text");
  EXPECT_EQ(to_text(again), to_text(table));
  EXPECT_EQ(again.of("mpi").links.across.alpha, 1.0 / 3);
  EXPECT_EQ(again.of("threads").measured, table.of("threads").measured);
}

TEST(CostTable, KeepsDefaultsForWhatAFileDoesNotMention) {
  const CostTable table = parse_cost_table("[mpi.inside]\nalpha = 1e-6\nbeta = 2e-10\ngamma = 0\n", "text");
  EXPECT_EQ(table.of("mpi").links.inside.beta, 2e-10);
  EXPECT_EQ(table.of("mpi").links.across.beta, CostTable().of("mpi").links.across.beta);
  EXPECT_EQ(to_text(parse_cost_table("", "text")), to_text(CostTable()));
}

TEST(CostTable, SaysWhereAFileIsWrongAndWhatWouldDo) {
  const auto complaint = [](std::string_view text) {
    try {
      parse_cost_table(text, "costs.toml");
    } catch (const ConfigError& error) {
      return error.message() + " | " + error.hint();
    }
    return std::string("none");
  };
  EXPECT_EQ(complaint("\n[nccl.inside]\nalpha = 1\n"),
            "costs.toml:2: nccl is no transport | use threads, mpi, ucx or emulated");
  EXPECT_EQ(complaint("[mpi.outside]\nalpha = 1\n"),
            "costs.toml:1: mpi.outside is neither a link nor an algorithm | use inside, across, or the name of an "
            "algorithm such as direct or ring");
  EXPECT_EQ(complaint("[mpi.inside]\nalpha = 1\nbeta = 1\n"),
            "costs.toml:1: mpi.inside lacks gamma | give alpha, beta, gamma");
  EXPECT_EQ(complaint("[mpi.inside]\nalpha = 1\nbeta = -1\ngamma = 1\n"),
            "costs.toml:3: mpi.inside.beta must be a number of seconds, zero or more | ");
  EXPECT_EQ(complaint("[mpi.inside]\nalpha = 1\nbeta = \"1\"\ngamma = 1\n"),
            "costs.toml:3: mpi.inside.beta must be a number of seconds, zero or more | ");
  EXPECT_EQ(complaint("[mpi.inside]\nalpha = 1\nbeta = 1\ngamma = 1\ndelta = 1\n"),
            "costs.toml:5: mpi.inside.delta is not a constant of the model | give alpha, beta, gamma");
  EXPECT_EQ(complaint("[mpi.native]\nallreduce = { alpha = 1, beta = 1 }\n"),
            "costs.toml:2: mpi.native.allreduce is no operation | use all_reduce, broadcast, ...");
  EXPECT_EQ(complaint("mpi = 3\n"), "costs.toml:1: mpi must be a table | ");
  EXPECT_THAT(complaint("[mpi\n"), HasSubstr("costs.toml:1: "));
  EXPECT_EQ(complaint("[mpi.inside]\nalpha = inf\nbeta = 1\ngamma = 1\n"),
            "costs.toml:2: mpi.inside.alpha must be a number of seconds, zero or more | ");
}

TEST(CostTable, NamesTheTransportsThatExist) {
  const CostTable table;
  EXPECT_THROW(table.of("nccl"), ConfigError);
  for (const std::string transport : {"threads", "mpi", "ucx", "emulated"})
    EXPECT_GT(table.of(transport).links.inside.alpha, 0);
}

class CostTableFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("trireme_cost_table_{}", ::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(CostTableFile, IsReplacedAsAWholeAndLeavesNothingBeside) {
  const auto path = folder_ / "costs.toml";
  std::ofstream(path) << "old";
  CostTable table;
  table.of("mpi").links.inside.alpha = 4.5e-6;
  write_cost_table(table, path);
  EXPECT_EQ(read_cost_table(path).of("mpi").links.inside.alpha, 4.5e-6);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(CostTableFile, ThatCannotBeReadOrWrittenIsNamed) {
  const auto complaint = [](auto action) {
    try {
      action();
    } catch (const IoError& error) {
      return error.message();
    }
    return std::string("none");
  };
  const auto missing = folder_ / "missing" / "costs.toml";
  EXPECT_THAT(complaint([&] { read_cost_table(missing); }), HasSubstr("costs.toml cannot be read: No such file"));
  EXPECT_THAT(complaint([&] { write_cost_table({}, missing); }), HasSubstr("costs.toml cannot be written: No such"));
}

}  // namespace
}  // namespace trireme::cost
