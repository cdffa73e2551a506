// Runs that are hurt on purpose, as people do in drills.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/run.h"
#include "tests/files.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/observe/timeline.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class FaultyRun : public OwnFolder {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> words(const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> all{"--quiet", "train", TRIREME_RECIPES "/tiny.toml", "--out", path(out)};
    for (const char* set : {"train.steps=40", "train.threads=1", "train.hash_every=10", "checkpoint.every=10",
                            "batch.global_batch_tokens=512", "eval.every=0"}) {
      all.insert(all.end(), {"--set", set});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(const std::string& out, const std::vector<std::string>& more = {}) const {
    return run(words(out, more));
  }
  std::vector<nlohmann::json> events(const std::string& out, const std::string& kind) const {
    std::vector<nlohmann::json> found;
    std::ifstream file(folder_ / out / "events.jsonl");
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::json::parse(line);
      if (json["event"] == kind) found.push_back(std::move(json));
    }
    return found;
  }
  std::size_t steps_of(const std::string& out) const {
    std::ifstream file(folder_ / out / "metrics.jsonl");
    return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }
  void wait_for_steps(const std::string& out, std::size_t steps) const {
    for (int i = 0; i < 6000 && steps_of(out) < steps; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  nlohmann::json last_step_of(const std::string& out) const {
    std::ifstream file(folder_ / out / "metrics.jsonl");
    std::string line, last;
    while (std::getline(file, line)) last = line;
    return nlohmann::json::parse(last);
  }
  static std::string program() { return std::getenv("TRIREME_PROGRAM"); }
  void expect_equal_runs(const std::string& a, const std::string& b) const {
    const Outcome outcome = run({"diff", path(a), path(b)});
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  }
};

TEST_F(FaultyRun, AFullDiskCostsOneCheckpointAndNothingElse) {
  ASSERT_EQ(train("whole", {"--ranks", "2"}).code, 0);
  const Outcome outcome = train("run", {"--ranks", "2", "--inject", "disk full at step 20 on rank 1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto failed = events("run", "checkpoint_failed");
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0]["step"], 20);
  EXPECT_THAT(failed[0]["why"].get<std::string>(), AllOf(HasSubstr("rank 1"), HasSubstr("no space left")));
  EXPECT_THAT(formats::list_checkpoints(folder_ / "run/checkpoints"), testing::ElementsAre(30, 40));
  const auto saved = events("run", "checkpoint");
  ASSERT_EQ(saved.size(), 3U);
  EXPECT_GE(saved[0]["blocked"], 0.0);
  EXPECT_LE(saved[0]["blocked"], saved[0]["seconds"]);
  expect_equal_runs("whole", "run");
}

/// The last checkpoint is what a run is for: it fails without it, and says what there is to go on from.
TEST_F(FaultyRun, AFullDiskAtTheEndSaysWhetherThereIsAnEarlierCheckpoint) {
  const Outcome none = train("none", {"--set", "train.steps=10", "--inject", "disk full at step 10 on rank 0"});
  EXPECT_NE(none.code, 0);
  EXPECT_THAT(none.err, AllOf(HasSubstr("no space left"), HasSubstr("there is no checkpoint yet")));
  const Outcome some = train("some", {"--set", "train.steps=20", "--inject", "disk full at step 20 on rank 0"});
  EXPECT_NE(some.code, 0);
  EXPECT_THAT(some.err, AllOf(HasSubstr("no space left"), HasSubstr("the checkpoint before is whole")));
  EXPECT_THAT(formats::list_checkpoints(folder_ / "some/checkpoints"), testing::ElementsAre(10));
}

TEST_F(FaultyRun, AFlippedBitInACheckpointIsPassedOver) {
  ASSERT_EQ(train("whole").code, 0);
  ASSERT_EQ(train("run", {"--set", "train.steps=30", "--inject", "flip a bit in the checkpoint of step 30"}).code, 0);
  EXPECT_THAT(run({"inspect", path("run"), "--verify"}).out, HasSubstr("is damaged"));
  ASSERT_EQ(train("run", {"--resume"}).code, 0);
  EXPECT_EQ(events("run", "resumed").back()["step"], 20);
  expect_equal_runs("whole", "run");
}

TEST_F(FaultyRun, AFlippedBitInMemoryIsFoundAndItsRankNamed) {
  ASSERT_EQ(train("first", {"--set", "train.steps=1"}).code, 0);
  const formats::CheckpointFolder stored(folder_ / "first/checkpoints/step-00000001");
  std::string name;
  for (const auto& [tensor, about] : stored.manifest().tensors) {
    if (tensor.starts_with("param/") && about.shape.size() == 2) name = tensor;
  }
  const Outcome outcome = train("run", {"--ranks", "3", "--set", "health.compare_replicas=5", "--inject",
                                        "flip a bit of " + name + " on rank 1 at step 13"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("on rank 1 differs from ranks 0, 2"), HasSubstr("after step 15"),
                                 HasSubstr("since step 10")));
}

TEST_F(FaultyRun, SlowRanksAreNamed) {
  const Outcome outcome = train("run", {"--ranks", "3", "--inject", "slow rank 2 by 10 from step 1", "--set",
                                        "train.steps=22"});  // ranks are compared after twenty
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  bool named = false;
  for (const auto& event : events("run", "straggler")) named = named || event["rank"] == 2;
  EXPECT_TRUE(named);
}

TEST_F(FaultyRun, SpikesAreSkippedAndAResumedRunSkipsTheSame) {
  const std::vector<std::string> skip{"--set", "health.spike=skip",           "--set", "health.spike_window=4",
                                      "--set", "health.spike_deviations=0.5", "--set", "health.max_skips=1000"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), skip.begin(), skip.end());
    return more;
  };
  ASSERT_EQ(train("whole", skip).code, 0);
  EXPECT_FALSE(events("whole", "skipped").empty());
  ASSERT_EQ(train("part", with({"--set", "train.steps=20"})).code, 0);
  ASSERT_EQ(train("part", with({"--resume"})).code, 0);
  expect_equal_runs("whole", "part");
}

TEST_F(FaultyRun, RewindingGoesOnWithLaterData) {
  const Outcome outcome =
      train("run", {"--set", "health.spike=rewind", "--set", "health.spike_window=4", "--set",
                    "health.spike_deviations=1", "--set", "health.rewind=5", "--set", "health.max_skips=1000", "--set",
                    "checkpoint.every=5", "--set", "checkpoint.keep=0"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(steps_of("run"), 40U);
  EXPECT_FALSE(events("run", "rewound").empty());
  const formats::CheckpointFolder last(folder_ / "run/checkpoints/step-00000040");
  EXPECT_GT(last.manifest().values->at("train/position").at("skipped").get<std::int64_t>(), 0);
}

TEST_F(FaultyRun, NumbersThatAreNoneStopWhenSkippingDoesNotHelp) {
  const Outcome outcome =
      train("run", {"--set", "optim.learning_rate=1e30", "--set", "optim.grad_clip_norm=0", "--set",
                    "lr_schedule.warmup=0", "--set", "health.non_finite=skip", "--set", "health.max_skips=3"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("health.max_skips is 3"));
  EXPECT_EQ(events("run", "skipped").size(), 3U);
}

TEST_F(FaultyRun, CheckpointsByTime) {
  ASSERT_EQ(
      train("run", {"--set", "checkpoint.every=0", "--set", "checkpoint.interval=1ms", "--set", "checkpoint.keep=0"})
          .code,
      0);
  EXPECT_GT(formats::list_checkpoints(folder_ / "run/checkpoints").size(), 5U);
  ASSERT_EQ(train("auto", {"--set", "checkpoint.automatic=true", "--set", "checkpoint.mtbf=1s", "--set",
                           "train.steps=60", "--set", "checkpoint.keep=0"})
                .code,
            0);
  EXPECT_GT(formats::list_checkpoints(folder_ / "auto/checkpoints").size(), 1U);
}

TEST_F(FaultyRun, MistakesInFaultsAreNamed) {
  EXPECT_THAT(train("run", {"--inject", "explode"}).err,
              AllOf(HasSubstr("explode"), HasSubstr("kill rank R at step S")));
  EXPECT_THAT(train("run", {"--inject", "kill rank 7 at step 5"}).err, HasSubstr("only ranks 0 to 0"));
  EXPECT_THAT(run({"supervise", "--", "sleep", "1"}).err, HasSubstr("trireme train"));
  EXPECT_THAT(run({"supervise", "--", "mpirun", "-n", "{ranks}", "trireme", "train", "x.toml", "--out", path("x")}).err,
              HasSubstr("--ranks"));
}

TEST_F(FaultyRun, ReshardsAndExports) {
  ASSERT_EQ(train("run", {"--set", "train.steps=10", "--ranks", "2"}).code, 0);
  ASSERT_EQ(run({"convert", "reshard", path("run"), path("moved"), "--parts", "3"}).code, 0);
  const Outcome shown = run({"inspect", path("moved"), "--verify"});
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("state-00002-of-00003.safetensors"), HasSubstr("every tensor has its checksum")));
  const formats::CheckpointFolder before(folder_ / "run/checkpoints/step-00000010"), after(folder_ / "moved");
  EXPECT_EQ(before.manifest().hash, after.manifest().hash);
  for (const auto& [name, tensor] : before.manifest().tensors)
    EXPECT_TRUE(before.read(name) == after.read(name)) << name;
  ASSERT_EQ(run({"convert", "single", path("moved"), path("w.safetensors"), "--weights"}).code, 0);
  EXPECT_THAT(run({"inspect", path("w.safetensors")}).out, HasSubstr("tensors"));
  EXPECT_EQ(run({"convert", "reshard", path("run"), path("moved")}).code, 2);
  EXPECT_EQ(run({"convert", path("run")}).code, 2);
}

TEST_F(FaultyRun, NoClockDecidesAnything) {
  ASSERT_EQ(train("whole", {"--ranks", "2"}).code, 0);
  ASSERT_EQ(train("run", {"--ranks", "2", "--inject", "clock of rank 0 jumps back by 2h at step 15", "--inject",
                          "clock of rank 1 jumps by 3d at step 25", "--set", "checkpoint.background=false"})
                .code,
            0);
  expect_equal_runs("whole", "run");
  const auto saved = events("run", "checkpoint");
  ASSERT_EQ(saved.size(), 4U);
  EXPECT_LT(saved[1]["time"], saved[0]["time"]);
  EXPECT_LT(saved[1]["seconds"], 60.0);
  double before = 0;
  bool went_back = false;
  for (const observe::TimelineEvent& event : observe::read_timeline(folder_ / "run/timeline.jsonl")) {
    went_back = went_back || event.time < before;
    before = event.time;
  }
  EXPECT_TRUE(went_back);  // by their times, effects stand before causes; by their clocks, never
}

TEST_F(FaultyRun, FewerRanksThanTheLayoutHas) {
  const std::vector<std::string> four{"--set", "layout.dp=2", "--set", "layout.tp=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), four.begin(), four.end());
    return more;
  };
  ASSERT_EQ(train("whole", with({"--ranks", "4"})).code, 0);
  ASSERT_EQ(train("run", with({"--ranks", "4", "--set", "train.steps=20"})).code, 0);
  EXPECT_EQ(train("run", with({"--ranks", "3", "--resume"})).code, 2);
  ASSERT_EQ(train("run", with({"--ranks", "2", "--resume", "--elastic", "--set", "train.steps=30"})).code, 0);
  const Outcome one = train("run", with({"--ranks", "3", "--resume", "--elastic"}));
  ASSERT_EQ(one.code, 0) << one.err;
  const auto whole = last_step_of("whole"), run = last_step_of("run");
  EXPECT_EQ(whole["tokens"], run["tokens"]);
  EXPECT_NEAR(whole["loss"].get<double>(), run["loss"].get<double>(), 1e-3);
}

TEST_F(FaultyRun, ASupervisorBringsThreadRanksThrough) {
  ASSERT_EQ(train("whole", {"--ranks", "2"}).code, 0);
  std::vector<std::string> all{"--quiet", "supervise", "--restarts", "2", "--wait", "10ms", "--", program()};
  for (const std::string& word : words("run", {"--ranks", "2", "--inject", "kill rank 1 at step 15", "--inject",
                                               "kill rank 0 at step 20 while publishing"})) {
    all.push_back(word);
  }
  const Outcome outcome = cli::run(all);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("finished after 3 attempts, no hang"));
  expect_equal_runs("whole", "run");
}

/// A run in a process of its own.
class Apart {
 public:
  Apart(const std::string& program, std::vector<std::string> words) {
    words.insert(words.begin(), program);
    child_ = fork();
    if (child_ != 0) return;
    const int null = ::open("/dev/null", O_WRONLY);
    dup2(null, 1), dup2(null, 2);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  void tell(int signal) const { ::kill(child_, signal); }
  int wait() const {
    int status = 0;
    waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t child_;
};

/// SIGUSR1 saves and the run goes on.
TEST_F(FaultyRun, ASignalSaves) {
  const Apart run(program(), words("run", {"--set", "checkpoint.every=0", "--set", "train.steps=400", "--set",
                                           "checkpoint.keep=0"}));
  wait_for_steps("run", 5);
  run.tell(SIGUSR1);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(steps_of("run"), 400U);
  EXPECT_EQ(formats::list_checkpoints(folder_ / "run/checkpoints").size(), 2U);
}

TEST_F(FaultyRun, AFileOrASignalStopsItWithACheckpoint) {
  ASSERT_EQ(train("whole", {"--set", "train.steps=400"}).code, 0);
  const std::vector<std::string> more{"--set", "checkpoint.every=0", "--set", "train.steps=400", "--resume"};
  {
    const Apart run(program(), words("run", more));
    wait_for_steps("run", 20);
    std::ofstream(folder_ / "run/stop") << "";
    EXPECT_EQ(run.wait(), 130);
  }
  EXPECT_FALSE(fs::exists(folder_ / "run/stop"));
  const auto after_file = formats::list_checkpoints(folder_ / "run/checkpoints");
  ASSERT_EQ(after_file.size(), 1U);
  EXPECT_LT(after_file[0], 400);
  {
    const Apart run(program(), words("run", more));
    wait_for_steps("run", static_cast<std::size_t>(after_file[0]) + 10);
    run.tell(SIGTERM);
    EXPECT_EQ(run.wait(), 130);
  }
  EXPECT_GT(formats::list_checkpoints(folder_ / "run/checkpoints").back(), after_file[0]);
  ASSERT_EQ(train("run", more).code, 0);
  expect_equal_runs("whole", "run");
}

}  // namespace
}  // namespace trireme::cli
