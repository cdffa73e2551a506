#include "trireme/experiment/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <set>
#include <thread>

#include "tests/errors.h"
#include "tests/experiment/trainer.h"
#include "trireme/base/log.h"
#include "trireme/experiment/store.h"
#include "trireme/experiment/trial_run.h"

namespace trireme::experiment {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;

class SweepTest : public OwnFolder {
 protected:
  SweepTest() {
    divert_log([](std::string_view) {});
  }
  ~SweepTest() override { divert_log(nullptr); }

  ExperimentFolder make(const std::string& name, const std::string& search = "asha", int trials = 6) const {
    const ExperimentFolder folder(folder_ / name);
    Experiment experiment{
        .name = name,
        .search = search,
        .options = {.space = parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)"}),
                    .seed = 11,
                    .trials = trials,
                    .max_steps = 16},
        .sets = {},
        .directory = folder_};
    if (search == "pbt") experiment.options.rounds = 4;
    folder.create(experiment, read_all(fs::path(TRIREME_RECIPES) / "tiny.toml"));
    return folder;
  }
  SweepOptions options(const ExperimentFolder& folder, const std::string& step_seconds = "0",
                       const std::string& script = "") const {
    return {.experiments = {folder.path()},
            .nodes = {2},
            .program = {.program = write_trainer(folder_, step_seconds, script).string()},
            .look = milliseconds(5)};
  }
  static void wait_for(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
    ASSERT_TRUE(condition());
  }
  static std::size_t lines(const fs::path& path) {
    return fs::exists(path) ? static_cast<std::size_t>(std::ranges::count(read_all(path), '\n')) : 0;
  }
};

TEST_F(SweepTest, TrainsEveryTrialToItsRungsAndFindsTheBest) {
  const ExperimentFolder folder = make("a");
  const SweepEnd end = run_sweeps(options(folder));
  EXPECT_FALSE(end.interrupted);
  const Overview& overview = end.overviews.at(0);
  EXPECT_EQ(overview.state, ExperimentState::kDone);
  EXPECT_EQ(overview.trials.size(), 6U);
  EXPECT_EQ(overview.best->step, 16);
  // A trial that went on did no step twice.
  for (const TrialView& trial : overview.trials) {
    EXPECT_EQ(lines(trial.run / "metrics.jsonl"), static_cast<std::size_t>(trial.step)) << trial.trial;
  }
  EXPECT_FALSE(folder.is_locked());
  // Little's law: at the end no job waits and none runs.
  for (const QueueReading& queue : {end.waiting, end.running}) {
    EXPECT_EQ(queue.departures, queue.arrivals);
    EXPECT_NEAR(queue.occupancy, queue.sojourn, 1e-8);
  }
  const Journal journal = folder.read_journal();
  EXPECT_EQ(end.running.departures,
            std::ranges::count_if(journal, [](const auto& entry) { return std::holds_alternative<Job>(entry); }));
  EXPECT_GT(end.running.sojourn, 0);
  EXPECT_LE(end.running.length(), 2) << "slots";
  // Rungs 1, 4 and 16; the best is one whose learning rate is near 10^-2.5.
  EXPECT_THAT(overview.evaluation_steps, ::testing::ElementsAre(1, 4, 16));
  double nearest = 1e9;
  for (const TrialView& trial : overview.trials) nearest = std::min(nearest, trial.losses.at(1));
  EXPECT_DOUBLE_EQ(overview.trials[static_cast<std::size_t>(overview.best->trial)].losses.at(1), nearest);
}

TEST_F(SweepTest, KilledInTheMiddleItGoesOnToTheSameEnd) {
  const ExperimentFolder calm = make("calm"), killed = make("killed");
  SweepOptions one = options(calm, "0.01");
  one.nodes = {1};  // one after the other: then the whole journal is the same
  run_sweeps(one);
  one.experiments = {killed.path()};
  for (const std::size_t entries : {3U, 7U}) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        run_sweeps(one);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());  // and not on in the test, whose folder is the parent's
        ::_exit(1);
      }
      ::_exit(0);
    }
    wait_for([&] { return lines(killed.journal()) >= entries; });
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  const SweepEnd end = run_sweeps(one);
  EXPECT_EQ(killed.read_journal(), calm.read_journal());
  EXPECT_EQ(end.overviews[0].best->trial, overview_of(calm).best->trial);
  for (const TrialView& trial : end.overviews[0].trials) {
    EXPECT_EQ(lines(trial.run / "metrics.jsonl"), static_cast<std::size_t>(trial.step))
        << "a step was lost or repeated";
  }
}

TEST_F(SweepTest, PausesWithEveryTrialSavedAndResumes) {
  const ExperimentFolder folder = make("a", "random", 3);
  const SweepOptions slow = options(folder, "0.1");
  std::thread asks([&] {
    wait_for([&] { return fs::exists(folder.run(1, 0) / "metrics.jsonl"); });
    folder.want(Wanted::kPaused);
  });
  const SweepEnd paused = run_sweeps(slow);
  asks.join();
  EXPECT_EQ(paused.overviews[0].state, ExperimentState::kPaused);
  EXPECT_EQ(lines(folder.journal()), 2U) << "two were asked for, none has ended";
  EXPECT_EQ(paused.running.departures, 2);
  EXPECT_EQ(paused.waiting.arrivals, 2 + 2) << "they wait for slots again";
  EXPECT_EQ(paused.waiting.departures, 2);
  const SweepEnd end = run_sweeps(slow);
  EXPECT_EQ(end.overviews[0].state, ExperimentState::kDone);
  for (int trial = 0; trial < 3; ++trial) EXPECT_EQ(lines(folder.run(trial, 0) / "metrics.jsonl"), 16U);
}

TEST_F(SweepTest, CrashedTrialsCountAsTheWorst) {
  const ExperimentFolder folder = make("a", "random", 4);
  const SweepEnd end = run_sweeps(options(folder, "0", "[[ $out == */0001 ]] && exit 1"));
  EXPECT_EQ(end.overviews[0].trials[1].state, TrialState::kFailed);
  EXPECT_NE(end.overviews[0].best->trial, 1);
}

TEST_F(SweepTest, InvalidSettingsAreDrawnAgain) {
  const ExperimentFolder folder = make("a", "random", 3);
  const SweepEnd end = run_sweeps(options(folder, "0", "[[ $out == */0001 ]] && exit 2"));
  EXPECT_EQ(end.overviews[0].trials[1].draw, 1);
  EXPECT_EQ(end.overviews[0].trials[1].state, TrialState::kDone);
  EXPECT_TRUE(fs::exists(folder.run(1, 1) / "events.jsonl"));
}

TEST_F(SweepTest, CopiesOfAPopulationBeginWithTheRunTheyCopy) {
  const ExperimentFolder folder = make("a", "pbt", 4);
  const SweepEnd end = run_sweeps(options(folder));
  EXPECT_EQ(end.overviews[0].state, ExperimentState::kDone);
  ASSERT_GT(end.overviews[0].trials.size(), 4U);
  for (const TrialView& trial : end.overviews[0].trials) {
    EXPECT_EQ(lines(trial.run / "metrics.jsonl"), static_cast<std::size_t>(trial.step)) << trial.trial;
  }
}

TEST_F(SweepTest, SeveralExperimentsShareTheSlots) {
  const ExperimentFolder a = make("a", "random", 4), b = make("b", "random", 4);
  SweepOptions both = options(a, "0.01");
  both.experiments.push_back(b.path());
  std::set<std::string> together;  // names of experiments that had a trial running at the same time
  both.show = [&](const std::vector<Overview>& all) {
    int running = 0;
    for (const Overview& overview : all) {
      const auto count = std::ranges::count(overview.trials, TrialState::kRunning, &TrialView::state);
      running += static_cast<int>(count);
      if (count == 1) together.insert(overview.experiment.name);
    }
    EXPECT_LE(running, 2);
  };
  const SweepEnd end = run_sweeps(both);
  EXPECT_EQ(end.overviews[0].state, ExperimentState::kDone);
  EXPECT_EQ(end.overviews[1].state, ExperimentState::kDone);
  EXPECT_EQ(together.size(), 2U);
}

TEST_F(SweepTest, AGangThatNeverFitsIsRefused) {
  const ExperimentFolder folder(folder_ / "wide");
  Experiment experiment = make("a").read();
  experiment.slots_per_trial = 3;
  folder.create(experiment, read_all(fs::path(TRIREME_RECIPES) / "tiny.toml"));
  SweepOptions narrow = options(folder);
  narrow.nodes = {2, 2};
  EXPECT_THAT(words_of([&] { run_sweeps(narrow); }), HasSubstr("needs 3 slots"));
}

TEST_F(SweepTest, TheStoreIsRebuiltFromTheFolders) {
  const ExperimentFolder folder = make("a");
  run_sweeps(options(folder));
  const fs::path file = store_beside(folder.path());
  const auto dump = [&] {
    const Store store(file);
    std::vector<std::string> all;
    for (const char* table : {"experiment", "trial", "attempt", "metric", "checkpoint", "slot"}) {
      for (std::string& row : store.rows(fmt::format("SELECT * FROM {}", table))) all.push_back(table + (" " + row));
    }
    for (std::string& row : store.rows("SELECT experiment, trial, kind FROM event ORDER BY trial, id")) {
      all.push_back("event " + row);
    }
    return all;
  };
  const std::vector<std::string> before = dump();
  EXPECT_GT(before.size(), 30U);
  for (const fs::path& path : {file, fs::path(file.string() + "-wal"), fs::path(file.string() + "-shm")})
    fs::remove(path);
  Store(file).import(overview_of(folder));
  EXPECT_EQ(dump(), before);
  Store(file).import(overview_of(folder));
  EXPECT_EQ(dump(), before) << "once more changes nothing";
  const auto rows = Store(file).experiments();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].state, "done");
  EXPECT_EQ(rows[0].trials, 6);
}

TEST_F(SweepTest, AFileThatIsNoStoreIsRefusedWithTheWayOut) {
  write_all(folder_ / "experiments.db", std::string(5000, 'x'));
  EXPECT_THAT(words_of([&] { const Store store(folder_ / "experiments.db"); }),
              HasSubstr("trireme experiments import"));
}

TEST_F(SweepTest, ARungIsTheBeginningOfTheWholeTraining) {
  const ExperimentFolder folder = make("a");
  const Job job{.trial = 0, .until = 4, .setting = {{"optim.learning_rate", "0.001"}}};
  const TrialCommand given = trial_command(folder, folder.read(), job, {.threads = 3});
  EXPECT_THAT(given.words, Contains("train.steps=4"));
  EXPECT_THAT(given.words, Contains("optim.learning_rate=0.001"));
  EXPECT_THAT(given.words, Contains("train.threads=3"));
  // tiny.toml says where its schedule ends; one that does not is told where the whole training does.
  EXPECT_THAT(given.words, Not(Contains(HasSubstr("lr_schedule.total"))));
  Experiment open = folder.read();
  open.sets = {"lr_schedule.total=", "lr_schedule.warmup=2"};
  EXPECT_THAT(trial_command(folder, open, job, {.threads = 3}).words, Contains("lr_schedule.total=16"));
  open.sets = {"eval.every=0"};
  EXPECT_THAT(trial_command(folder, open, job, {.threads = 3}).words, Contains("eval.every=16"));
  const Job unknown{.trial = 0, .until = 4, .setting = {{"optim.learning_rat", "0.001"}}};
  const TrialCommand refused = trial_command(folder, folder.read(), unknown, {});
  EXPECT_TRUE(refused.words.empty());
  EXPECT_THAT(refused.why, HasSubstr("learning_rat"));
}

}  // namespace
}  // namespace trireme::experiment
