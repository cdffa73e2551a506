// trireme bench comm and trireme tour, on thread ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/cli/run.h"
#include "trireme/cost/cost_table.h"

namespace trireme::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(BenchComm, MeasuresEveryOperationWithEveryAlgorithmBesideThePrediction) {
  const Outcome outcome =
      run({"--quiet", "bench", "comm", "--ranks", "4", "--json", "--bytes", "1K", "--seconds", "0.001"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const auto document = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(document.at("ranks"), 4);
  EXPECT_EQ(document.at("transport"), "threads");
  std::set<std::string> ops;
  std::set<std::pair<std::string, std::string>> pairs;
  for (const auto& row : document.at("rows")) {
    ops.insert(row.at("op").get<std::string>());
    pairs.insert({row.at("op").get<std::string>(), row.at("algorithm").get<std::string>()});
    EXPECT_GT(row.at("seconds").get<double>(), 0);
    EXPECT_GT(row.at("predicted_seconds").get<double>(), 0) << row;
  }
  EXPECT_EQ(ops.size(), cost::all_collectives().size());
  for (const char* algorithm : {"auto", "ring", "recursive_doubling", "halving_doubling", "binomial", "direct"}) {
    EXPECT_TRUE(pairs.contains({"all_reduce", algorithm})) << algorithm;
  }
  EXPECT_TRUE(pairs.contains({"broadcast", "scatter_all_gather"}));
  EXPECT_TRUE(pairs.contains({"all_to_all", "bruck"}));
  EXPECT_TRUE(pairs.contains({"all_to_all", "pairwise"}));
}

TEST(BenchComm, ShowsATableWithTheChoiceOfAuto) {
  const Outcome outcome = run({"--quiet", "bench", "comm", "--op", "all_reduce", "--algo", "ring,direct", "--bytes",
                               "1K:4K", "--seconds", "0.001"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("2 ranks, transport threads"), HasSubstr("algbw"), HasSubstr("busbw"),
                                 HasSubstr("predicted"), HasSubstr("1 KiB"), HasSubstr("4 KiB"), HasSubstr("*")));
}

TEST(BenchComm, RunsOnAnEmulatedNetwork) {
  const Outcome outcome = run({"--quiet", "bench", "comm", "--transport", "emulated", "--op", "broadcast", "--bytes",
                               "1K", "--seconds", "0.001", "--json", "--set", "emulated.node_latency=10ms"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const auto document = nlohmann::json::parse(outcome.out);
  for (const auto& row : document.at("rows")) {
    // Without the network it takes microseconds. Less than the latency, since a rank that wakes late sees a part of it.
    EXPECT_GE(row.at("seconds").get<double>(), 0.002) << row;
  }
}

TEST(BenchComm, CalibrationIsAFileThatGroupsChooseBy) {
  const auto path = std::filesystem::temp_directory_path() / ("trireme-costs-" + std::to_string(getpid()) + ".toml");
  const Outcome outcome = run({"--quiet", "bench", "comm", "--op", "all_reduce", "--bytes", "1K:64K", "--seconds",
                               "0.001", "--calibrate", "--output", path.string()});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("wrote " + path.string()));
  const cost::CostTable table = cost::read_cost_table(path);
  std::filesystem::remove(path);
  const auto& measured = table.of("threads").measured;
  for (const auto algorithm : {cost::Algorithm::kRing, cost::Algorithm::kDirect}) {
    const auto found = measured.find({algorithm, cost::Collective::kAllReduce});
    ASSERT_NE(found, measured.end());
    EXPECT_GT(found->second.alpha + found->second.beta, 0);
  }
}

TEST(BenchComm, NamesWhatItDoesNotKnow) {
  const auto error = [](const std::string& option, const std::string& value) {
    const Outcome outcome = run({"bench", "comm", option, value});
    EXPECT_EQ(outcome.code, kExitUsage);
    return outcome.err;
  };
  EXPECT_THAT(error("--op", "all_reduse"), AllOf(HasSubstr("all_reduse"), HasSubstr("did you mean \"all_reduce\"")));
  EXPECT_THAT(error("--algo", "rink"), AllOf(HasSubstr("rink"), HasSubstr("did you mean \"ring\"")));
  EXPECT_THAT(error("--bytes", "64M:1K"), AllOf(HasSubstr("64M:1K"), HasSubstr("1K:64M")));
  EXPECT_THAT(error("--type", "f33"), AllOf(HasSubstr("f33"), HasSubstr("did you mean \"f32\"")));
  EXPECT_THAT(error("--transport", "tcp"), AllOf(HasSubstr("tcp"), HasSubstr("threads")));
}

/// A hint is tested by following it.
TEST(BenchComm, SaysWhyANamedAlgorithmCannotRun) {
  const auto bench = [](std::vector<std::string> options) {
    std::vector<std::string> words{"--quiet", "bench", "comm", "--bytes", "1K", "--seconds", "0.001"};
    words.insert(words.end(), options.begin(), options.end());
    return run(words);
  };
  const Outcome one_node = bench({"--algo", "hierarchical"});
  EXPECT_EQ(one_node.code, kExitUsage);
  EXPECT_THAT(one_node.err,
              AllOf(HasSubstr("hierarchical"), HasSubstr("one node"), HasSubstr("--ranks 4 --ranks-per-node 2")));
  const Outcome two_nodes = bench({"--algo", "hierarchical", "--ranks", "4", "--ranks-per-node", "2"});
  ASSERT_EQ(two_nodes.code, kExitFine) << two_nodes.err;
  EXPECT_THAT(two_nodes.out, AllOf(HasSubstr("all_reduce"), HasSubstr("1 KiB"), HasSubstr("not measured: "),
                                   HasSubstr("hierarchical of all_to_all, gather, scatter: ")));
  const Outcome three = bench({"--op", "all_gather", "--algo", "recursive_doubling", "--ranks", "3"});
  EXPECT_EQ(three.code, kExitUsage);
  EXPECT_THAT(three.err, AllOf(HasSubstr("power of two"), HasSubstr("--ranks 2")));
  EXPECT_EQ(bench({"--op", "all_gather", "--algo", "recursive_doubling", "--ranks", "2"}).code, kExitFine);
  const Outcome native = bench({"--op", "all_reduce", "--algo", "native"});
  EXPECT_EQ(native.code, kExitUsage);
  EXPECT_THAT(native.err, AllOf(HasSubstr("transport threads has no all_reduce of its own"), HasSubstr("mpirun")));
}

TEST(Tour, ShowsRanksThatTalkAndOnesThatFail) {
  const Outcome outcome = run({"tour"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("rank 3 gave  3 30 1    got  6 60 4"), HasSubstr("halving_doubling"),
                                 HasSubstr("overlapped"), HasSubstr("agreed on 12 by name, on 0 by one bit each"),
                                 HasSubstr("agreed on 0 by name, on 12 by one bit each"), HasSubstr("counts 1"),
                                 HasSubstr("3 (n - 1) = 9 messages"), HasSubstr("had not arrived")));
}

}  // namespace
}  // namespace trireme::cli
