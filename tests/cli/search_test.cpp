// `trireme search` and `trireme graph` as a user sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "run.h"

namespace trireme::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModels = "alexnet,vgg16,resnet50,inception-v3,lstm,gpt";

TEST(SearchCommand, PrintsTheTableOfEveryModelWithEveryMethod) {
  const Outcome made = run(
      {"--quiet", "search", "--graph", kModels, "--cluster", "dgx2-v100", "--gpus", "4", "--method", "all", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const auto all = nlohmann::json::parse(made.out);
  ASSERT_EQ(all.size(), 6U);
  for (const auto& graph : all) {
    double fastest = 0;
    std::set<std::string> methods;
    for (const auto& found : graph.at("found")) {
      methods.insert(found.at("method"));
      EXPECT_TRUE(found.at("fits").get<bool>()) << graph.at("graph") << ": " << found.dump();
      EXPECT_GT(found.at("seconds").get<double>(), 0);
      EXPECT_GE(found.at("seconds").get<double>(), fastest) << "the fastest that fits stands first";
      fastest = found.at("seconds");
      // To no strategy is the distance to the optimum negative.
      if (found.contains("above_optimum")) {
        EXPECT_GE(found.at("above_optimum").get<double>(), 0) << found.dump();
      }
    }
    for (const char* method : {"data-parallel", "model-parallel", "one-weird-trick", "optcnn", "tofu", "alpa-intra",
                               "flexflow", "alpa", "rannc", "galvatron", "pipedream", "torchgpipe"})
      EXPECT_TRUE(methods.contains(method)) << graph.at("graph") << " lacks " << method;
    EXPECT_EQ(methods.contains("megatron"), graph.at("graph") == "gpt");
  }
}

TEST(SearchCommand, SaysWhereNothingFitsAndNothingElseOfIt) {
  const Outcome made = run({"--quiet", "search", "--graph", "vgg16", "--cluster", "local"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("nothing fits into memory"));
  EXPECT_THAT(made.out, Not(HasSubstr("inf")));
  const Outcome json = run({"--quiet", "search", "--graph", "vgg16", "--cluster", "local", "--json"});
  const auto parsed = nlohmann::json::parse(json.out);
  bool any = false;
  for (const auto& found : parsed.at("found")) {
    if (found.at("note") != "nothing fits into memory" || !found.contains("pipeline")) continue;
    any = true;
    EXPECT_TRUE(found.at("seconds").is_null()) << found.dump();
    EXPECT_FALSE(found.contains("speedup_over_data_parallel")) << found.dump();
  }
  EXPECT_TRUE(any);
}

TEST(SearchCommand, WritesOnePlanAndRefusesToWriteSeveral) {
  const Outcome several = run({"--quiet", "search", "--graph", "alexnet,vgg16", "-o", "unwritten.plan"});
  EXPECT_NE(several.code, 0);
  EXPECT_THAT(several.err, HasSubstr("-o unwritten.plan is for one plan, and --graph names 2 graphs"));
  EXPECT_FALSE(std::filesystem::exists("unwritten.plan"));
  EXPECT_THAT(run({"--quiet", "search", "explain", "--graph", "alexnet,vgg16"}).err,
              HasSubstr("search explain is of one graph"));
}

TEST(TrainCommand, TakesARecipeOrAPlanAndNotBoth) {
  EXPECT_THAT(run({"--quiet", "train", "recipe.toml", "--plan", "gpt.plan"}).err,
              HasSubstr("there is a recipe, recipe.toml, and a plan, gpt.plan"));
}

TEST(SearchCommand, ExplainsTheStrategyThatItFound) {
  const Outcome made = run({"--quiet", "search", "explain", "--graph", "vgg16", "--cluster", "dgx2-v100", "--gpus", "4",
                            "--method", "alpa-intra"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("vgg16 by alpa-intra"));
  EXPECT_THAT(made.out, HasSubstr("features:a"));
  EXPECT_THAT(made.out, Not(HasSubstr(" -"))) << "no other choice of an operator is a saving";
}

TEST(GraphCommand, ShowsEveryBuiltInGraphWithItsCounts) {
  const Outcome made = run({"--quiet", "graph", "show", "--all", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  std::map<std::string, std::int64_t> parameters;
  for (const auto& graph : nlohmann::json::parse(made.out)) {
    parameters[graph.at("name")] = graph.at("parameters");
    EXPECT_GT(graph.at("forward_flops").get<double>(), 1e9);
    EXPECT_GT(graph.at("bytes").get<double>(), 1e6);
  }
  const std::map<std::string, std::int64_t> published{{"alexnet", 61'100'840},      {"vgg16", 138'357'544},
                                                      {"vgg19", 143'667'240},       {"resnet50", 25'557'032},
                                                      {"resnet101", 44'549'160},    {"resnet152", 60'192'808},
                                                      {"inception-v3", 27'161'264}, {"wide-resnet50-2", 68'883'240}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameters[name], count) << name;
}

}  // namespace
}  // namespace trireme::cli
