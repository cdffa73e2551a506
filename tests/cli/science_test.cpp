// trireme science: folders of runs whose losses follow a known law, as the command sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/run.h"
#include "tests/observe/run_folder.h"
#include "trireme/observe/run_log.h"
#include "trireme/science/scaling_fit.h"
#include "trireme/spec/recipe.h"
#include "trireme/spec/size_model.h"

namespace trireme::cli {
namespace {

using ::testing::HasSubstr;

class Science : public observe::RunFolder {
 protected:
  /// 4 sizes by 4 lengths, each curve on the law.
  std::vector<std::string> family(const science::ParametricLaw& law) {
    std::vector<std::string> folders;
    for (const std::int64_t wanted : {200'000, 500'000, 1'200'000, 3'000'000}) {
      const spec::ModelConfig model = spec::sized_model(spec::Family::kLlama, wanted, 256, 64);
      const auto parameters = static_cast<double>(spec::count_parameters(*spec::shape_of(model)).active());
      for (const double tokens : {2e6, 6e6, 2e7, 6e7}) {
        const auto name = "run-" + std::to_string(folders.size());
        spec::Recipe recipe;
        recipe.model = model;
        observe::RunLog log(folder_ / name, std::nullopt);
        write(folder_ / name / "recipe.toml", config::to_toml(recipe));
        for (std::int64_t step = 1; step <= 100; ++step) {
          observe::StepRecord record = observe::sample_step(step);
          record.tokens = static_cast<std::int64_t>(tokens * static_cast<double>(step) / 100);
          record.loss = law.loss(parameters, static_cast<double>(record.tokens));
          log.step(record);
        }
        folders.push_back((folder_ / name).string());
      }
    }
    return folders;
  }
};

TEST_F(Science, FitsRunsAndThePlannerTakesTheLaw) {
  const science::ParametricLaw law{.floor = 1.2, .a = 60, .b = 300, .alpha = 0.35, .beta = 0.37};
  std::vector<std::string> arguments = {"science", "fit"};
  auto runs = family(law);
  const std::string largest = runs.back();
  runs.pop_back();
  arguments.insert(arguments.end(), runs.begin(), runs.end());
  const std::string file = (folder_ / "law.json").string(), page = (folder_ / "law.html").string();
  arguments.insert(arguments.end(), {"--held-out", largest, "--law", file, "--page", page, "--bootstrap", "20"});
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("(held out)"));
  EXPECT_THAT(outcome.out, HasSubstr("by approach 3"));
  EXPECT_THAT(read(page), HasSubstr("A scaling law of 15 runs"));
  const auto written = nlohmann::json::parse(read(file));
  EXPECT_NEAR(written["floor"].get<double>(), law.floor, 0.03 * law.floor);
  EXPECT_NEAR(written["alpha"].get<double>(), law.alpha, 0.02);
  arguments.push_back("--json");
  const auto json = nlohmann::json::parse(run(arguments).out);
  // Between the two limits of the law above its floor, and flatter for the floor.
  EXPECT_GT(json["kaplan"]["alpha_c"].get<double>(), 0.01);
  EXPECT_LT(json["kaplan"]["alpha_c"].get<double>(), 0.18);
  const auto& held_out = json["held_out"][0];
  EXPECT_NEAR(held_out["predicted"].get<double>() / held_out["loss"].get<double>(), 1, 0.02);

  const Outcome planned = run({"plan", "scaling", "--flops", "1e18", "--law", file});
  EXPECT_EQ(planned.code, kExitFine) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("fitted"));
  EXPECT_THAT(planned.out, HasSubstr("15 runs of 6 N D"));
}

TEST_F(Science, ALawsFileThatIsNoneIsNamed) {
  write(folder_ / "law.json", R"({"name": "x", "source": "y", "floor": 1, "a": -2})");
  const Outcome outcome = run({"plan", "scaling", "--flops", "1e18", "--law", (folder_ / "law.json").string()});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("\"a\" is missing or not a number above 0"));
  EXPECT_THAT(outcome.err, HasSubstr("trireme science fit"));
}

TEST_F(Science, GridsRecipesSpendTheirBudgets) {
  const std::string out = (folder_ / "family").string();
  const std::string tiny = std::string(TRIREME_RECIPES) + "/tiny.toml";
  const std::vector<std::string> arguments = {"science", "grid", tiny,   "--params", "200K", "1M",
                                              "--flops", "1e13", "1e14", "--out",    out};
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    const auto recipe = spec::load_recipe({.file = entry.path().string()}).value;
    const auto parameters = static_cast<double>(spec::count_parameters(*spec::shape_of(recipe.model)).active());
    const double spent = 6 * parameters * static_cast<double>(*recipe.train.steps * recipe.batch.global_batch_tokens);
    const double budget = entry.path().string().find("1e+13") != std::string::npos ? 1e13 : 1e14;
    EXPECT_NEAR(spent / budget, 1, 0.05) << entry.path();
    EXPECT_FALSE(recipe.lr_schedule.total && *recipe.lr_schedule.total != *recipe.train.steps)
        << "a cosine of another length";
    ++recipes;
  }
  EXPECT_EQ(recipes, 4);
  EXPECT_EQ(run(arguments).code, kExitUsage) << "the folder is not empty";
  const Outcome little =
      run({"science", "grid", tiny, "--params", "1M", "--flops", "1e6", "--out", (folder_ / "no").string()});
  EXPECT_EQ(little.code, kExitUsage);
  EXPECT_THAT(little.err, HasSubstr("less than one step"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
}

/// What `trireme eval --tasks --json` prints, of one metric that rises with the size.
std::string task_result(double parameters, double exact_match) {
  const auto metric = [](const char* name, double value, double chance) {
    return nlohmann::json{{"name", name},  {"value", value},   {"low", value - 0.01},     {"high", value + 0.01},
                          {"floor", 0.01}, {"chance", chance}, {"higher_is_better", true}};
  };
  return nlohmann::json{
      {"model", "m"},
      {"parameters", parameters},
      {"tokens", 1e6},
      {"tasks",
       {{{"name", "addition"},
         {"items", 100},
         {"shots", 0},
         {"metrics",
          {metric("exact_match", exact_match, 1e-4), metric("token_accuracy", std::sqrt(exact_match), 0.1)}}}}}}
      .dump();
}

TEST_F(Science, ReportIsOnePageOfNoiseScaleLawAndTasks) {
  const science::ParametricLaw law{.floor = 1.2, .a = 60, .b = 300, .alpha = 0.35, .beta = 0.37};
  std::vector<std::string> arguments = {"science", "report", "--family"};
  auto runs = family(law);
  const std::string largest = runs.back();
  runs.pop_back();
  arguments.insert(arguments.end(), runs.begin(), runs.end());
  {
    observe::RunLog log(folder_ / "noise", std::nullopt);
    log.event("start", {{"device", "NVIDIA H200"}});
    for (std::int64_t step = 1; step <= 40; ++step) {
      observe::StepRecord record = observe::sample_step(step);
      record.noise_scale = 1000.0 * static_cast<double>(step);
      record.noise_scales = {{.layer = "layers.0", .scale = 777.0}};
      log.step(record);
    }
  }
  write(folder_ / "noise" / "recipe.toml", config::to_toml(spec::Recipe{}));
  std::vector<std::string> results;
  for (const double size : {1e4, 1e5, 1e6}) {
    results.push_back((folder_ / ("result-" + std::to_string(results.size()) + ".json")).string());
    write(results.back(), task_result(size, size / 2e6));
  }
  const std::string page = (folder_ / "page.html").string();
  arguments.insert(arguments.end(), {"--held-out", largest, "--noise", (folder_ / "noise").string(), "--tasks"});
  arguments.insert(arguments.end(), results.begin(), results.end());
  arguments.insert(arguments.end(), {"--bootstrap", "5", "--page", page});
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const std::string text = read(page);
  for (const char* part : {"Trained on: NVIDIA H200", "Gradient noise scale", "layers.0", "A scaling law of 15 runs",
                           "was held out", "Chinchilla, approach 3", "Tasks over 3 models", "exact_match"})
    EXPECT_THAT(text, HasSubstr(part));

  arguments = {"science", "report", "--family"};
  arguments.insert(arguments.end(), runs.begin(), runs.end());
  arguments.insert(arguments.end(), {"--noise", runs[0], "--tasks", results[0], "--bootstrap", "5", "--page", page});
  const Outcome without = run(arguments);
  EXPECT_EQ(without.code, kExitUsage);
  EXPECT_THAT(without.err, HasSubstr("no noise_scale"));
}

}  // namespace
}  // namespace trireme::cli
