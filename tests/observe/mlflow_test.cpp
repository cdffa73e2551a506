#include "trireme/observe/mlflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/files.h"
#include "trireme/observe/run_log.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MlflowTest : public OwnFolder {
 protected:
  void make_run(const std::string& name, bool finished) const {
    RunLog log(folder_ / name, std::nullopt);
    log.event("start", {{"step", 0}, {"steps", 2}});
    for (int step = 1; step <= 2; ++step) {
      StepRecord record{.step = step, .loss = 3.5 - step, .grad_norm = NAN, .seconds = 0.25};
      record.losses = {{"main", 1.5, 1}, {"load balance: 2", 0.5, 0.01}};
      log.step(record);
    }
    log.event("eval", {{"step", 2}, {"loss", 1.75}});
    if (finished) log.event("stop", {{"step", 2}, {"why", "finished"}});
    write_all(folder_ / name / "recipe.toml",
              "[run]\nname = \"a: 'b'\"\n[optim]\nlearning_rate = 0.0989214\nbetas = [0.9, 0.5]\n[train]\nsteps = 2\n");
  }
  /// Folders of runs, by what is written in a file of theirs.
  std::map<std::string, fs::path> exported(const std::string& file) const {
    std::map<std::string, fs::path> runs;
    for (const auto& experiment : fs::directory_iterator(folder_ / "mlruns")) {
      for (const auto& run : fs::directory_iterator(experiment)) {
        if (run.is_directory()) runs[read_all(run.path() / file)] = run.path();
      }
    }
    return runs;
  }
};

TEST_F(MlflowTest, ARunHasParametersMetricsAndItsState) {
  make_run("odd \"run\"", true);
  make_run("live", false);
  const MlflowExperiment experiment{.name = "sweep: 1",
                                    .runs = {{"odd \"run\"", folder_ / "odd \"run\""}, {"live", folder_ / "live"}}};
  write_mlflow(folder_ / "mlruns", experiment);
  const auto runs = exported("tags/mlflow.runName");
  ASSERT_EQ(runs.size(), 2U);
  const fs::path run = runs.at("odd \"run\"");
  EXPECT_EQ(read_all(run / "params" / "optim.learning_rate"), "0.0989214");
  EXPECT_EQ(read_all(run / "params" / "run.name"), "a: 'b'") << "a text without its quotes";
  EXPECT_EQ(read_all(run / "params" / "train.steps"), "2");
  const std::string loss = read_all(run / "metrics" / "loss");
  EXPECT_THAT(loss, ::testing::MatchesRegex("[0-9]{13} 2.5 1\n[0-9]{13} 1.5 2\n"));
  EXPECT_EQ(std::stoll(loss.substr(20)) - std::stoll(loss), 250) << "a step later";
  EXPECT_THAT(read_all(run / "metrics" / "grad_norm"), HasSubstr(" nan 1\n"));
  EXPECT_THAT(read_all(run / "metrics" / "validation" / "loss"), HasSubstr(" 1.75 2\n"));
  EXPECT_TRUE(fs::exists(run / "metrics" / "losses" / "load balance_ 2")) << "a name that MLflow takes";
  EXPECT_EQ(read_all(run / "artifacts" / "recipe.toml"), read_all(folder_ / "odd \"run\"" / "recipe.toml"));
  const std::string meta = read_all(run / "meta.yaml");
  EXPECT_THAT(meta, HasSubstr("run_name: \"odd \\\"run\\\"\"\n"));
  EXPECT_THAT(meta, HasSubstr("run_id: " + run.filename().string() + "\n"));
  EXPECT_THAT(meta, HasSubstr("experiment_id: '" + run.parent_path().filename().string() + "'\n"));
  EXPECT_THAT(meta, HasSubstr("status: 3\n"));
  EXPECT_THAT(read_all(runs.at("live") / "meta.yaml"), AllOf(HasSubstr("status: 1\n"), HasSubstr("end_time: null\n")));
  EXPECT_THAT(read_all(run.parent_path() / "meta.yaml"), HasSubstr("name: \"sweep: 1\"\n"));
}

TEST_F(MlflowTest, ExportingAgainReplacesTheRun) {
  make_run("run", false);
  const MlflowExperiment experiment{.name = "x", .runs = {{"run", folder_ / "run"}}};
  write_mlflow(folder_ / "mlruns", experiment);
  const auto before = exported("meta.yaml");
  write_mlflow(folder_ / "mlruns", experiment);
  EXPECT_EQ(exported("meta.yaml"), before);
}

}  // namespace
}  // namespace trireme::observe
