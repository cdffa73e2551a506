// The commands below `trireme plan`, `trireme simulate`, and mixtures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run.h"
#include "tests/files.h"

namespace trireme::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

using PlanPage = OwnFolder;
using PlanRoofline = OwnFolder;
using PlanBatch = OwnFolder;
using PlanOfAMixture = OwnFolder;
using PlanOfCompression = OwnFolder;
using Simulate = OwnFolder;

json run_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out);
}

const std::vector<std::string> kSmall{"--model", "llama3-8b", "--cluster",           "dgx-h100",
                                      "--gpus",  "16",        "--global-batch-size", "64"};

std::vector<std::string> with_options(std::vector<std::string> head, const std::vector<std::string>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

TEST(PlanExplain, TellsForEveryDecisionWhatTheOthersCost) {
  const Outcome outcome = run(with_options({"plan", "explain"}, kSmall));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("% slower, most of it in"));
  EXPECT_THAT(outcome.out, HasSubstr("the best"));
  const json result = run_json(with_options({"plan", "explain"}, kSmall));
  bool has_tp = false;
  for (const auto& decision : result.at("decisions")) has_tp = has_tp || decision.at("name") == "tp";
  EXPECT_TRUE(has_tp);
}

/// Of a recipe that compresses gradients: what it saves, and below which bandwidth that pays.
TEST_F(PlanOfCompression, SaysWhereItPays) {
  const std::string path = (folder_ / "compressed.toml").string();
  write_all(path,
            "[model]\nfamily = \"gpt2\"\nvocab_size = 256\nmax_seq_len = 256\nhidden_size = 256\nnum_layers = 4\n"
            "num_heads = 4\n\n[compress]\nkind = \"powersgd\"\n");
  for (const auto& head : {std::vector<std::string>{"plan"}, std::vector<std::string>{"estimate"}}) {
    const std::vector<std::string> tail{path, "--cluster", "dgx-h100", "--gpus", "16", "--global-batch-size", "64"};
    const Outcome outcome = run(with_options(head, tail));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("compress: powersgd: a copy sends "));
    EXPECT_THAT(outcome.out, HasSubstr("it pays below "));
    const json told = run_json(with_options(head, tail)).at("compress");
    EXPECT_LT(told.at("sent_bytes"), 0.5 * told.at("dense_bytes").get<double>());
    EXPECT_GT(told.at("pays_below_bytes_per_second"), 0);
    EXPECT_EQ(told.at("network_bytes_per_second"), 50e9) << "two nodes of eight";
  }
  EXPECT_FALSE(run_json(with_options({"plan"}, kSmall)).contains("compress"));
}

TEST_F(PlanPage, IsOnePageWithBreakdownAndFront) {
  const std::string path = (folder_ / "plan.html").string();
  const Outcome outcome = run(with_options(with_options({"plan"}, kSmall), {"--html", path}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = read_all(path);
  EXPECT_THAT(page, HasSubstr("<!DOCTYPE html>"));
  for (const char* part : {"A step&#39;s time", "Time over memory", "Each decision made otherwise", "tp "})
    EXPECT_THAT(page, HasSubstr(part));
  // Layouts break into lines, and on a phone rows do: no table is wider than the page.
  EXPECT_THAT(page, HasSubstr(".plan tbody th,.plan .words{white-space:normal"));
  EXPECT_EQ(page.find("<table>"), std::string::npos) << "a table without these rules";
  EXPECT_EQ(page.find("http://") == std::string::npos || page.find("www.w3.org") != std::string::npos, true);
}

TEST_F(PlanRoofline, SaysWhatBindsEachOperator) {
  const std::string path = (folder_ / "roof.svg").string();
  const json result = run_json(with_options(with_options({"plan", "roofline"}, kSmall), {"--svg", path}));
  EXPECT_NEAR(result.at("ridge").get<double>(), 989e12 / 3.35e12, 0.1);
  for (const auto& one : result.at("operators")) {
    EXPECT_LE(one.at("predicted_flops").get<double>(), one.at("roof_flops").get<double>() * 1.0001) << one;
    if (one.at("name") == "norms, activations, residuals") {
      EXPECT_EQ(one.at("bound"), "memory");
    }
    if (one.at("name") == "mlp in") {
      EXPECT_EQ(one.at("bound"), "compute");
    }
  }
  EXPECT_THAT(read_all(path), HasSubstr("</svg>"));
}

TEST_F(PlanRoofline, HasTheNetworksCeilingForEachPass) {
  const json one = run_json(with_options(with_options({"plan", "roofline"}, kSmall), {"--tp", "1"}));
  EXPECT_TRUE(one.at("collectives").empty() && one.at("network").empty());
  const json four = run_json(with_options(with_options({"plan", "roofline"}, kSmall), {"--tp", "4"}));
  ASSERT_EQ(four.at("network").size(), 2U);
  for (const auto& pass : four.at("network")) {
    double bytes = 0, seconds = 0;
    for (const auto& collective : four.at("collectives")) {
      if (collective.at("pass") != pass.at("pass")) continue;
      bytes += collective.at("a_layer").get<double>() * collective.at("bytes_sent").get<double>();
      seconds += collective.at("a_layer").get<double>() * collective.at("roof_seconds").get<double>();
    }
    EXPECT_DOUBLE_EQ(pass.at("bytes_sent").get<double>(), bytes);
    EXPECT_DOUBLE_EQ(pass.at("roof_flops").get<double>(), pass.at("flops").get<double>() / seconds);
  }
}

TEST(PlanScaling, TakesFlopsOrDevicesAndDays) {
  const json chinchilla = run_json({"plan", "scaling", "--flops", "5.76e23"});
  EXPECT_NEAR(chinchilla.at("laws")[0].at("parameters").get<double>(), 3.219e10, 1e7);
  for (const json& law : chinchilla.at("laws")) {
    EXPECT_NEAR(6 * law.at("parameters").get<double>() * law.at("tokens").get<double>(), 5.76e23, 1e12) << law;
  }
  EXPECT_DOUBLE_EQ(chinchilla.at("kaplan").at("min_flops").get<double>(), 5.76e23 / 2);
  const json small = run_json({"plan", "scaling", "--flops", "5.76e23", "--batch", "1k"});
  EXPECT_GT(small.at("kaplan").at("min_flops").get<double>(), 0.99 * 5.76e23);
  EXPECT_THAT(run({"plan", "scaling", "--flops", "5.76e23"}).out, HasSubstr("C_min = 2.88e+23"));
  const json devices =
      run_json({"plan", "scaling", "--cluster", "dgx-h100", "--gpus", "8", "--days", "1", "--mfu", "0.5"});
  EXPECT_NEAR(devices.at("flops").get<double>(), 8 * 989e12 * 0.5 * 86400, 1e15);
  EXPECT_EQ(run({"plan", "scaling"}).code, kExitUsage);
  EXPECT_THAT(run({"plan", "scaling", "--flops", "1e20", "--days", "3"}).err, HasSubstr("both"));
}

TEST_F(PlanBatch, DrawsTheTradeOff) {
  const json result = run_json({"plan", "batch", "--noise-scale", "1M", "--batch", "4M"});
  EXPECT_DOUBLE_EQ(result.at("chosen").at("steps").get<double>(), 1.25);
  EXPECT_DOUBLE_EQ(result.at("chosen").at("examples").get<double>(), 5);
  const std::string path = (folder_ / "batch.svg").string();
  EXPECT_EQ(run({"plan", "batch", "--loss", "2", "--svg", path}).code, 0);
  EXPECT_THAT(read_all(path), HasSubstr("</svg>"));
  EXPECT_EQ(run({"plan", "batch"}).code, kExitUsage);
}

TEST(PlanInFlight, IsRateTimesLatency) {
  const json result = run_json(with_options(with_options({"plan", "in-flight"}, kSmall), {"--read-latency", "100ms"}));
  const json& rows = result.at("queues")[0];
  EXPECT_NEAR(rows.at("in_flight").get<double>(), rows.at("rate").get<double>() * 0.1, 1e-9);
}

TEST(Plan, WithoutAClusterNamesThem) {
  EXPECT_THAT(run({"plan", "--model", "llama3-8b"}).err, HasSubstr("no cluster is given"));
}

TEST_F(PlanOfAMixture, ChoosesHowToShareOutItsExperts) {
  const std::vector<std::string> task{"--model",   "mixtral-8x7b", "--cluster",           "dgx-h100", "--gpus", "64",
                                      "--seq-len", "4096",         "--global-batch-size", "512"};
  const json result = run_json(with_options({"plan"}, task));
  EXPECT_GT(result.at("layout").at("ep").get<int>(), 1);
  EXPECT_TRUE(result.at("chosen").contains("ep"));
  const std::string written = (folder_ / "mixtral.toml").string();
  EXPECT_EQ(run(with_options(with_options({"plan"}, task), {"--write", written})).code, kExitFine);
  EXPECT_THAT(run({"recipe", "show", written}).out, HasSubstr("num_experts = 8"));
  EXPECT_THAT(run({"plan", "--model", "mixtral-8x", "--cluster", "dgx-h100"}).err,
              HasSubstr("did you mean \"mixtral-8x7b\""));
}

TEST(Estimate, WithTheOptimizerOnTheHostTakesLessMemory) {
  const std::vector<std::string> task{"estimate",    "--model",
                                      "llama3-8b",   "--cluster",
                                      "dgx-a100-40", "--gpus",
                                      "8",           "--tp",
                                      "1",           "--pp",
                                      "1",           "--dp",
                                      "8",           "--zero",
                                      "2",           "--micro-batch-size",
                                      "1",           "--global-batch-size",
                                      "8",           "--recompute",
                                      "full"};
  // Left open, the search would offload: nothing else fits.
  const json here = run_json(with_options(task, {"--offload", "none"}));
  const json there = run_json(with_options(task, {"--offload", "optimizer"}));
  EXPECT_LT(there.at("memory_bytes_peak").get<double>(), here.at("memory_bytes_peak").get<double>());
  EXPECT_GT(there.at("memory_bytes_host").get<double>(), 0);
  EXPECT_THAT(run({"estimate", "--model", "llama3-8b", "--cluster", "deepseek-h800", "--gpus", "16",
                   "--global-batch-size", "64", "--offload", "optimizer"})
                  .err,
              HasSubstr("[host]"));
}

TEST_F(Simulate, PlaysAStepAndWeeksAndWritesATrace) {
  const std::string path = (folder_ / "trace.json").string();
  const Outcome outcome =
      run(with_options(with_options({"simulate"}, kSmall), {"--faults", "--pp", "4", "--trace", path}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("slowest pipeline"));
  EXPECT_THAT(outcome.out, HasSubstr("14 days with failures"));
  EXPECT_FALSE(json::parse(read_all(path)).at("traceEvents").empty());
  const json plain = run_json(with_options({"simulate"}, kSmall));
  EXPECT_NEAR(plain.at("step").at("seconds").get<double>(), plain.at("step").at("undisturbed_seconds").get<double>(),
              1e-9);
  EXPECT_EQ(run(with_options(with_options({"simulate"}, kSmall), {"--stragglers", "2"})).code, kExitUsage);
}

TEST_F(Simulate, LetsTheNetworkCarryWhatASimulatedLinkCarries) {
  const std::vector<std::string> spread =
      with_options(with_options({"simulate"}, kSmall), {"--tp", "1", "--pp", "2", "--dp", "8"});
  const auto seconds_with = [&](const std::vector<std::string>& more, double& share) {
    const json result = run_json(with_options(spread, more));
    share = result.at("step").at("network_share").get<double>();
    const double seconds = result.at("step").at("seconds").get<double>();
    EXPECT_GE(seconds, (1 - 1e-9) * result.at("step").at("undisturbed_seconds").get<double>());
    return seconds;
  };
  double healthy = 0, lossy = 0, starved = 0;
  const double at_ease = seconds_with({"--link-loss", "0"}, healthy);
  EXPECT_NEAR(healthy, 1, 1e-9);
  EXPECT_GT(seconds_with({"--link-loss", "0.01"}, lossy), at_ease);
  EXPECT_LT(lossy, 0.95);
  EXPECT_GT(lossy, 0.1);
  EXPECT_GT(seconds_with({"--link-blocks", "520", "--link-propagation-us", "2"}, starved), at_ease);
  EXPECT_NEAR(starved, 0.16, 0.03) << "8 packets of 4 KiB in a round trip of 4.1 us, of 400 Gbit/s";
  const std::string node = (folder_ / "node.toml").string();
  std::ofstream(node) << "name = \"one-node\"\ndevice = \"h100\"\ngpus = 1\ngpus_per_node = 1\n";
  const Outcome alone =
      run({"simulate", "--model", "llama3-8b", "--cluster", node, "--gpus", "1", "--link-loss", "0.1"});
  EXPECT_EQ(alone.code, kExitUsage);
  EXPECT_THAT(alone.err, HasSubstr("links between nodes, and one-node has none"));
}

}  // namespace
}  // namespace trireme::cli
