// Runs and sweeps as the page sees them: states, alerts, actions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/dashboard/folders.h"
#include "trireme/base/wall_clock.h"
#include "trireme/dashboard/catalogue.h"
#include "trireme/dashboard/control.h"
#include "trireme/dashboard/webhook.h"
#include "trireme/experiment/experiment.h"
#include "trireme/http/message.h"
#include "trireme/observe/heartbeat.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WatchedRunTest : public OwnFolder {
 protected:
  WatchedRun watched(const char* name = "run") { return WatchedRun({.id = "1", .name = name, .path = folder_ / name}); }
};

TEST_F(WatchedRunTest, AFinishedRunIsSummedUp) {
  make_run(folder_ / "run", 100);
  WatchedRun run = watched();
  EXPECT_TRUE(run.look(wall_seconds()).alerts.empty()) << "what was there before is no news";
  EXPECT_EQ(run.summary().state, RunState::kFinished);
  EXPECT_EQ(run.summary().step, 100);
  EXPECT_EQ(run.summary().steps, 100);
  EXPECT_EQ(run.summary().ranks, 2);
  EXPECT_DOUBLE_EQ(run.summary().last->loss, 0.05);
  EXPECT_DOUBLE_EQ(run.summary().best_validation->second, 0.055);
  const auto series = run.series_json({});
  EXPECT_EQ(series["loss"]["x"].size(), 100U);
  EXPECT_NEAR(series["elapsed"]["y"].back().get<double>(), 4.0, 1e-9);
  EXPECT_FALSE(run.look(wall_seconds()).changed) << "nothing has happened";
}

TEST_F(WatchedRunTest, LoadsOfExpertsAreToldByLayerAndByRank) {
  make_run(folder_ / "dense", 3);
  WatchedRun dense = watched("dense");
  dense.look(wall_seconds());
  EXPECT_TRUE(dense.experts_json().is_null());
  EXPECT_FALSE(dense.series_json({}).contains("imbalance"));
  {
    observe::RunLog log(folder_ / "run", std::nullopt);
    for (int step = 1; step <= 30; ++step) {
      observe::StepRecord record = step_of_run(step, 2.0);
      if (step % 2 == 0) record.experts = {{"layers.1", {10, 30, 20, 20}}, {"layers.3", {0, 80, 0, 0}}};
      record.expert_ranks = 2;
      log.step(record);
    }
  }
  WatchedRun run = watched();
  run.look(wall_seconds());
  const auto experts = run.experts_json();
  EXPECT_EQ(experts["step"], 30);
  EXPECT_EQ(experts["steps"], 15) << "every other step tells them";
  EXPECT_EQ(experts["ranks"], 2);
  ASSERT_EQ(experts["layers"].size(), 2U);
  EXPECT_EQ(experts["layers"][0]["tokens"], (std::vector<int>{150, 450, 300, 300}));
  EXPECT_EQ(experts["layers"][0]["imbalance"], 1.5);
  EXPECT_EQ(experts["layers"][0]["ranks"], (std::vector<int>{600, 600}));
  EXPECT_EQ(experts["layers"][1]["rank_imbalance"], 2);
  const auto curve = run.series_json({"imbalance"})["imbalance"];
  EXPECT_EQ(curve["x"].size(), 15U);
  EXPECT_EQ(curve["y"][0], 4) << "of the worst layer";
}

TEST_F(WatchedRunTest, NoiseScalesAreTold) {
  make_run(folder_ / "plain", 3);
  WatchedRun plain = watched("plain");
  plain.look(wall_seconds());
  EXPECT_FALSE(plain.series_json({}).contains("noise_scale"));
  EXPECT_FALSE(plain.series_json({}).contains("noise_scales"));
  observe::StepRecord record = step_of_run(1, 2.0);
  {
    observe::RunLog log(folder_ / "run", std::nullopt);
    for (; record.step <= 4; ++record.step) {
      if (record.step > 1) record.noise_scale = 100.0 * static_cast<double>(record.step);  // the first step has none
      record.noise_scales = {{"embedding", 25.0 * static_cast<double>(record.step)}, {"layers.0", 512.5}};
      log.step(record);
    }
  }
  WatchedRun run = watched();
  run.look(wall_seconds());
  const auto series = run.series_json({});
  EXPECT_EQ(series["noise_scale"]["x"], (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(series["noise_scale"]["y"], (std::vector<int>{200, 300, 400}));
  EXPECT_EQ(series["noise_scales"], (observe::Json{{"embedding", 100}, {"layers.0", 512.5}})) << "as told last";
  EXPECT_FALSE(run.series_json({"loss"}).contains("noise_scales"));
  {
    observe::RunLog log(folder_ / "run", 4);
    record.step = 5, record.noise_scale = 640;
    log.step(record);
  }
  const WatchedRun::Changes changes = run.look(wall_seconds());
  ASSERT_EQ(changes.rows.size(), 1U);
  EXPECT_EQ(numbers_of(changes.rows[0]).back(), 640) << "what an open page adds to its curve";
  EXPECT_EQ(run.series_json({"noise_scale"})["noise_scale"]["y"].back(), 640);
}

TEST_F(WatchedRunTest, NewStepsAreNewsAndAResumeTakesThemBack) {
  make_run(folder_ / "run", 50, false);
  WatchedRun run = watched();
  const HeldRunLock lock(folder_ / "run");
  observe::write_heartbeat(folder_ / "run", {.beats = 1, .step = 50, .saved = 40});
  run.look(wall_seconds());
  EXPECT_EQ(run.summary().state, RunState::kRunning);
  EXPECT_EQ(run.summary().saved, 40);
  run.series_json({});  // somebody looks at it closely
  {
    observe::RunLog log(folder_ / "run", 50);
    log.step(step_of_run(51, 0.5));
    log.step(step_of_run(52, 0.4));
    log.event("straggler", {{"step", 52}, {"rank", 1}, {"times", 1.8}});
  }
  const WatchedRun::Changes changes = run.look(wall_seconds());
  EXPECT_TRUE(changes.changed);
  EXPECT_FALSE(changes.restarted);
  ASSERT_EQ(changes.rows.size(), 2U);
  EXPECT_EQ(changes.rows[1].step, 52);
  ASSERT_EQ(changes.alerts.size(), 1U);
  EXPECT_THAT(changes.alerts[0].text, HasSubstr("rank 1 computes 1.8 times"));
  { observe::RunLog log(folder_ / "run", 30); }  // goes on after step 30: later ones are cut off
  const WatchedRun::Changes back = run.look(wall_seconds());
  EXPECT_TRUE(back.restarted);
  EXPECT_EQ(run.summary().step, 30);
  EXPECT_EQ(run.series_json({"loss"})["loss"]["x"].size(), 30U);
}

TEST_F(WatchedRunTest, SilenceOfARunThatTrainsIsAHang) {
  make_run(folder_ / "run", 50, false);
  const HeldRunLock lock(folder_ / "run");
  observe::write_heartbeat(folder_ / "run", {.beats = 1, .step = 50, .saved = 40});
  WatchedRun run = watched();
  run.look(wall_seconds());
  EXPECT_EQ(run.summary().state, RunState::kRunning);
  const auto changes = run.look(wall_seconds() + 100);
  EXPECT_EQ(run.summary().state, RunState::kHanging);
  ASSERT_EQ(changes.alerts.size(), 1U);
  EXPECT_EQ(changes.alerts[0].kind, "hanging");
  EXPECT_TRUE(run.look(wall_seconds() + 101).alerts.empty()) << "told once";
}

TEST_F(WatchedRunTest, AProcessThatEndedWithoutAWordHasFailed) {
  make_run(folder_ / "run", 20, false);
  WatchedRun run = watched();
  {
    const HeldRunLock lock(folder_ / "run");
    observe::write_heartbeat(folder_ / "run", {});
    run.look(wall_seconds());
  }
  const auto changes = run.look(wall_seconds());
  EXPECT_EQ(run.summary().state, RunState::kFailed);
  ASSERT_EQ(changes.alerts.size(), 1U);
  EXPECT_EQ(changes.alerts[0].severity, Severity::kCritical);
}

TEST_F(WatchedRunTest, DamagedLinesAreLeftOut) {
  make_run(folder_ / "run", 3);
  std::ofstream(folder_ / "run" / "metrics.jsonl", std::ios::app) << "\0garbage\n{\"step\":4\n";
  std::ofstream(folder_ / "run" / "events.jsonl", std::ios::app) << "{}\nnull\n";
  WatchedRun run = watched();
  run.look(wall_seconds());
  EXPECT_EQ(run.summary().step, 3);
}

TEST_F(WatchedRunTest, ActionsWriteTheFilesThatRunsLookFor) {
  make_run(folder_ / "run", 20, false);
  WatchedRun run = watched();
  run.look(wall_seconds());
  EXPECT_THROW(act_on(run, "pause", {}), http::HttpError) << "nobody trains";
  EXPECT_THROW(act_on(run, "save", {}), http::HttpError);
  EXPECT_THROW(act_on(run, "explode", {}), http::HttpError);
  {
    const HeldRunLock lock(folder_ / "run");
    run.look(wall_seconds());
    act_on(run, "save", {});
    EXPECT_TRUE(observe::take_save_wish(folder_ / "run"));
    EXPECT_FALSE(observe::take_save_wish(folder_ / "run")) << "taken once";
    act_on(run, "pause", {});
    EXPECT_TRUE(observe::asked_to_stop(folder_ / "run"));
    EXPECT_THROW(act_on(run, "resume", {}), http::HttpError) << "it trains already";
    write_note(run, "warm-up too short");
    run.look(wall_seconds());
    EXPECT_EQ(run.summary().note, "warm-up too short");
  }
  write_note(run, "");
  run.look(wall_seconds());
  EXPECT_EQ(run.summary().note, "");
  EXPECT_THROW(write_note(run, std::string(5000, 'x')), http::HttpError);
}

TEST_F(WatchedRunTest, ResumingStartsASupervisedRunThatOutlivesThePage) {
  make_run(folder_ / "run", 20, false);
  WatchedRun run = watched();
  run.look(wall_seconds());
  write_all(folder_ / "program", "#!/bin/sh\necho \"$@\" > said\n");
  fs::permissions(folder_ / "program", fs::perms::owner_all);
  observe::ask_to_stop(folder_ / "run");
  act_on(run, "resume", {.program = (folder_ / "program").string()});
  const fs::path said = folder_ / "run" / "said";
  for (int i = 0; i < 500 && !(fs::exists(said) && fs::file_size(said) > 0); ++i) ::usleep(10'000);
  EXPECT_THAT(read_all(said), HasSubstr("supervise -- "));
  EXPECT_THAT(read_all(said), HasSubstr("--resume --ranks 2"));
  EXPECT_FALSE(observe::asked_to_stop(folder_ / "run"));
}

TEST_F(WatchedRunTest, TrialsBelongToTheirSweep) {
  make_run(folder_ / "run", 20);
  WatchedRun run({.id = "1", .name = "x", .path = folder_ / "run", .experiment = "e", .trial = 3});
  run.look(wall_seconds());
  EXPECT_THROW(act_on(run, "resume", {}), http::HttpError);
  EXPECT_TRUE(run.alerts().empty()) << "that a trial has reached a rung is no news";
}

TEST_F(WatchedRunTest, ASweepIsPausedUntilItIsDone) {
  const experiment::ExperimentFolder folder(folder_ / "sweep");
  const experiment::Experiment made{
      .name = "sweep",
      .search = "random",
      .options = {.space = experiment::parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)"}),
                  .trials = 1,
                  .max_steps = 16}};
  folder.create(made, "");
  experiment::JournalFile journal(folder);
  journal.append(*experiment::make_search("random", made.options)->next());
  WatchedSweep sweep({.id = "1", .name = "sweep", .path = folder.path()});
  act_on(sweep, "pause", {});
  EXPECT_EQ(folder.wanted(), experiment::Wanted::kPaused);
  act_on(sweep, "stop", {});
  EXPECT_EQ(folder.wanted(), experiment::Wanted::kStopped);
  folder.want(experiment::Wanted::kRunning);
  journal.append(experiment::Result{.trial = 0, .step = 16, .value = 2.5});
  EXPECT_THROW(act_on(sweep, "pause", {}), http::HttpError) << "it is done";
  EXPECT_THROW(act_on(sweep, "stop", {}), http::HttpError);
  EXPECT_EQ(folder.wanted(), experiment::Wanted::kRunning);
}

TEST(Verdict, NamesTheRanksThatAreBehind) {
  const Verdict verdict = verdict_of({.running = true, .silence = 700.0, .step_seconds = 2, .steps = {10, 10, 9, 10}});
  EXPECT_EQ(verdict.state, Verdict::State::kHanging);
  EXPECT_EQ(verdict.behind, std::vector<int>{2});
  EXPECT_THAT(verdict.text, HasSubstr("rank 2 behind the others, which wrote step 10"));
  EXPECT_EQ(verdict_of({.running = true, .silence = 25.0, .step_seconds = 0.1}).state, Verdict::State::kAlive);
  EXPECT_EQ(verdict_of({.running = true, .silence = 500.0, .step_seconds = 60}).state, Verdict::State::kAlive)
      << "steps are long";
  EXPECT_EQ(verdict_of({.running = true}).state, Verdict::State::kStarting);
  EXPECT_EQ(verdict_of({}).state, Verdict::State::kIdle);
}

TEST(DashboardStragglers, AreFarAboveTheMedian) {
  EXPECT_TRUE(stragglers({1.0}).empty());
  EXPECT_TRUE(stragglers({1.0, 1.1, 0.9, 1.2}).empty());
  const auto slow = stragglers({1.0, 1.0, 2.0, 1.0});
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].first, 2);
  EXPECT_DOUBLE_EQ(slow[0].second, 2.0);
}

class CatalogueTest : public OwnFolder {};

TEST_F(CatalogueTest, FindsRunsAndTrialsAndFollowsNoLinks) {
  make_run(folder_ / "root" / "a", 1);
  make_run(folder_ / "root" / "deep" / "b", 1);
  make_run(folder_ / "root" / "<script>alert(1)<", 1);
  make_run(folder_ / "root" / "sweep" / "trials" / "0007-1", 1);
  write_all(folder_ / "root" / "sweep" / "experiment.json", "{}");
  make_run(folder_ / "elsewhere", 1);
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "root" / "link");
  fs::create_directories(folder_ / "root" / "a" / "checkpoints" / "inner");
  const Catalogue found = find_runs({folder_ / "root", folder_ / "root" / "a"});
  std::vector<std::string> names;
  for (const RunPlace& run : found.runs) names.push_back(run.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("a", "deep/b", "<script>alert(1)<", "sweep/trials/0007-1"));
  ASSERT_EQ(found.experiments.size(), 1U);
  for (const RunPlace& run : found.runs) {
    EXPECT_EQ(run.id.size(), 12U);
    if (run.trial >= 0) {
      EXPECT_EQ(run.experiment, found.experiments[0].id);
    }
  }
  EXPECT_TRUE(find_runs({folder_ / "root"}, 2).cut);
}

class Inbox {
 public:
  http::PostAnswer take(const http::PostRequest& request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    const int status = statuses_.empty() ? 200 : statuses_.front();
    if (!statuses_.empty()) statuses_.erase(statuses_.begin());
    return {.status = status, .why = "no answer"};
  }
  std::vector<http::PostRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::vector<int> statuses_;

 private:
  mutable std::mutex mutex_;
  std::vector<http::PostRequest> requests_;
};

TEST(Webhook, SignsAndTriesThreeTimes) {
  // RFC 4231, test case 2.
  EXPECT_EQ(signature_of("Jefe", "what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  Inbox inbox;
  inbox.statuses_ = {0, 500, 200, 404};
  Webhook hook({.urls = {"http://example.org/hook?x=1"},
                .secret = "s",
                .first_wait = std::chrono::milliseconds(1),
                .post = [&](const http::PostRequest& request) { return inbox.take(request); }});
  hook.tell("finished", "{}");
  hook.tell("failed", "{\"a\":1}");
  while (hook.counts().sent + hook.counts().failed < 2) ::usleep(1000);
  const auto requests = inbox.requests();
  ASSERT_EQ(requests.size(), 4U) << "two in vain, one that was taken, and one refused for good";
  EXPECT_EQ(requests[0].address.origin, "http://example.org");
  EXPECT_EQ(requests[0].address.path, "/hook?x=1");
  EXPECT_EQ(requests[3].headers[1].second, signature_of("s", "{\"a\":1}"));
  EXPECT_EQ(hook.counts().sent, 1U);
  EXPECT_EQ(hook.counts().failed, 1U);
  while (hook.queue().departures < 2) ::usleep(1000);
  EXPECT_EQ(hook.queue().arrivals, 2);
  EXPECT_NEAR(hook.queue().occupancy, hook.queue().sojourn, 1e-8);
  EXPECT_GE(hook.queue().sojourn, 0.005) << "the first waited 1 and 4 ms between its tries";
}

TEST(Webhook, NeverBlocksWhoTells) {
  std::mutex gate;
  gate.lock();
  {
    Webhook hook({.urls = {"https://example.org"}, .secret = {}, .post = [&](const http::PostRequest&) {
                    const std::lock_guard wait(gate);
                    return http::PostAnswer{.status = 200, .why = {}};
                  }});
    for (int i = 0; i < 1000; ++i) hook.tell("x", "{}");
    EXPECT_GE(hook.counts().dropped, 700U);
    gate.unlock();
  }
  EXPECT_THROW(Webhook({.urls = {"ftp://x"}, .secret = {}}), ConfigError);
  EXPECT_THROW(Webhook({.urls = {"http://user@host/"}, .secret = {}}), ConfigError);
}

}  // namespace
}  // namespace trireme::dashboard
