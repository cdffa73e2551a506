#include "trireme/observe/run_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/observe/mlflow.h"
#include "trireme/observe/run_log.h"
#include "trireme/observe/run_reader.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunImportTest : public OwnFolder {
 protected:
  /// A run that another trainer has logged with MLflow, as its client writes it.
  fs::path foreign_run(const std::string& metric, const std::string& stage = "active") const {
    const fs::path run = folder_ / "mlruns" / "7" / "abc";
    fs::create_directories(run / "metrics" / "eval");
    fs::create_directories(run / "params");
    write_all(folder_ / "mlruns" / "7" / "meta.yaml", "experiment_id: '7'\nlifecycle_stage: active\nname: it's mine\n");
    write_all(run / "meta.yaml",
              "end_time: 1700000009000\nlifecycle_stage: " + stage +
                  "\nrun_id: abc\nrun_name: 'a/b: it''s\n  long'\nstart_time: 1700000000000\nstatus: 3\n");
    write_all(run / "metrics" / metric, "1700000002000 3.5 10\n1700000004000 2.5 20\n1700000008000 nan 40\n");
    write_all(run / "metrics" / "learning_rate", "1700000002000 0.001 10\n1700000008000 0.0005 40\n");
    write_all(run / "metrics" / "eval" / "loss", "1700000004500 2.75 20\n");
    write_all(run / "metrics" / "eval" / "accuracy", "1700000004500 0.5 20\n");
    write_all(run / "params" / "batch_size", "32");
    return run;
  }
};

TEST_F(RunImportTest, WhatWasExportedComesBackWithTheSameNumbers) {
  RunLog log(folder_ / "run", std::nullopt);
  log.event("start", {{"step", 0}, {"steps", 3}, {"model", "gpt"}, {"parameters", 1234}, {"ranks", 2}});
  for (int step = 1; step <= 3; ++step) {
    StepRecord record{.step = step,
                      .loss = 1.0 / (3 + step),
                      .grad_norm = step == 2 ? NAN : 0.1 * step,
                      .lr = 1e-3 / step,
                      .tokens = 4096LL * step,
                      .tokens_per_s = 1e5 / 3,
                      .memory = (1LL << 40) + step,
                      .seconds = 0.1 / 3,
                      .breakdown = {.compute = 0.01, .data = 0.02, .comm = 1.0 / 300, .overhead = 0}};
    if (step == 3) record.mfu = 0.41;
    log.step(record);
  }
  log.event("eval", {{"step", 3}, {"loss", 1.75}});
  log.event("stop", {{"step", 3}, {"why", "finished"}});
  write_all(folder_ / "run" / "recipe.toml", "[train]\nsteps = 3\n");
  write_mlflow(folder_ / "mlruns", {.name = "x", .runs = {{"run", folder_ / "run"}}});
  const auto imported = import_mlflow(folder_ / "mlruns", folder_ / "back");
  ASSERT_EQ(imported.size(), 1U);
  EXPECT_EQ(imported[0].folder, folder_ / "back" / "x" / "run");
  EXPECT_EQ(imported[0].steps, 3);
  EXPECT_THAT(imported[0].left_out, ElementsAre());
  EXPECT_EQ(read_all(imported[0].folder / "metrics.jsonl"), read_all(folder_ / "run" / "metrics.jsonl"));
  EXPECT_EQ(read_all(imported[0].folder / "recipe.toml"), read_all(folder_ / "run" / "recipe.toml"));
  const RunFiles before = read_run(folder_ / "run"), after = read_run(imported[0].folder);
  ASSERT_EQ(after.events.size(), 3U);
  EXPECT_EQ(after.events[0].text_of("model"), "gpt");
  EXPECT_EQ(after.events[0].number_of("parameters"), 1234);
  EXPECT_EQ(after.events[1].number_of("loss"), 1.75);
  EXPECT_EQ(after.events[2].text_of("why"), "finished");
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(after.events[i].kind, before.events[i].kind);
    EXPECT_EQ(after.events[i].time, before.events[i].time);
  }
}

TEST_F(RunImportTest, ARunOfAnotherTrainerIsReadByItsUsualNames) {
  foreign_run("train_loss");
  const auto imported = import_mlflow(folder_ / "mlruns", folder_ / "runs");
  ASSERT_EQ(imported.size(), 1U);
  EXPECT_EQ(imported[0].folder, folder_ / "runs" / "it's mine" / "a_b: it's long") << "no folder within another";
  EXPECT_THAT(imported[0].left_out, ElementsAre("eval/accuracy"));
  const RunFiles run = read_run(imported[0].folder, Reading::kLenient);
  ASSERT_EQ(run.steps.size(), 3U);
  EXPECT_EQ(run.steps[1].step, 20);
  EXPECT_EQ(run.steps[1].loss, 2.5);
  EXPECT_EQ(run.steps[1].lr, 0.001) << "as it was last told";
  EXPECT_DOUBLE_EQ(run.steps[1].seconds, 0.2) << "two seconds for ten steps";
  EXPECT_TRUE(std::isnan(run.steps[2].loss));
  EXPECT_EQ(run.steps[2].lr, 0.0005);
  ASSERT_EQ(run.events_of("eval").size(), 1U);
  EXPECT_EQ(run.events_of("eval")[0]->number_of("loss"), 2.75);
  EXPECT_EQ((*run.events[0].fields)["params"]["batch_size"], "32");
  EXPECT_EQ(run.events[0].time, 1.7e9);
}

TEST_F(RunImportTest, NothingIsWrittenWhereSomethingIsWrong) {
  const fs::path run = foreign_run("f1");
  const auto words = [&] { return words_of([&] { import_mlflow(folder_ / "mlruns", folder_ / "runs"); }); };
  EXPECT_THAT(words(), AllOf(HasSubstr("has no training loss"), HasSubstr("eval/accuracy, eval/loss, f1"),
                             HasSubstr("train_loss")));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  fs::rename(run / "metrics" / "f1", run / "metrics" / "loss");
  EXPECT_EQ(import_mlflow(folder_ / "mlruns", folder_ / "runs").size(), 1U) << "the hint works";
  EXPECT_THAT(words(), AllOf(HasSubstr("already holds a run"), HasSubstr("--output")));
  write_all(run / "metrics" / "loss", "1700000002000 3.5 10\n1700000004000 high 20\n");
  EXPECT_THAT(message_of([&] { import_mlflow(folder_ / "mlruns", folder_ / "other"); }),
              AllOf(HasSubstr("loss:2"), HasSubstr("high")));
  foreign_run("loss", "deleted");
  EXPECT_EQ(import_mlflow(folder_ / "mlruns", folder_ / "other").size(), 0U);
  EXPECT_THAT(words_of([&] { import_mlflow(folder_, folder_ / "other"); }), HasSubstr("--backend-store-uri"));
}

TEST_F(RunImportTest, AHistoryOfWandbIsALineAStep) {
  write_all(
      folder_ / "sunny-1.jsonl",
      "{\"_step\":1,\"_timestamp\":1000.5,\"_runtime\":0.5,\"train/loss\":3.5,\"train/"
      "learning_rate\":0.1,\"name\":\"x\"}\n"
      "{\"_step\":2,\"_timestamp\":1001.5,\"train/loss\":\"NaN\",\"train/learning_rate\":0.1,\"eval/loss\":3.25}\n");
  const ImportedRun imported = import_wandb(folder_ / "sunny-1.jsonl", folder_ / "runs");
  EXPECT_EQ(imported.folder, folder_ / "runs" / "sunny-1");
  const RunFiles run = read_run(imported.folder, Reading::kLenient);
  ASSERT_EQ(run.steps.size(), 2U);
  EXPECT_EQ(run.steps[0].loss, 3.5);
  EXPECT_TRUE(std::isnan(run.steps[1].loss));
  EXPECT_EQ(run.steps[1].seconds, 1);
  EXPECT_EQ(run.events.front().time, 1000);
  EXPECT_EQ(run.events_of("eval").at(0)->number_of("loss"), 3.25);
  write_all(folder_ / "broken.jsonl", "{\"loss\":1}\n[]\n");
  EXPECT_THAT(message_of([&] { import_wandb(folder_ / "broken.jsonl", folder_ / "runs"); }),
              HasSubstr("broken.jsonl:2"));
}

}  // namespace
}  // namespace trireme::observe
