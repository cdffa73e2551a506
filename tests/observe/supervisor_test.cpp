#include "trireme/observe/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/files.h"
#include "trireme/observe/heartbeat.h"
#include "trireme/observe/timeline.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// Runs that are bash scripts: they count their lives in a file.
class SupervisorTest : public OwnFolder {
 protected:
  Supervised run(const std::string& script, SuperviseOptions options = {}) const {
    options.command = {"bash", "-c",
                       "cd " + folder_.string() +
                           "; echo x >>lives; life=$(wc -l <lives); beat() { echo '{\"beats\":'$1',\"pid\":'$$'}' "
                           ">heartbeat.json; }; " +
                           script};
    if (!options.ranks.empty()) options.command.insert(options.command.end(), {"bash", "{ranks}"});
    options.run = folder_;
    options.first_wait = milliseconds(10);
    options.look = milliseconds(10);
    return supervise(options);
  }
};

TEST_F(SupervisorTest, StartsAgainUntilItIsFinished) {
  const Supervised result = run("[ $life = 4 ] || exit 1");
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.lives, 4);
  EXPECT_EQ(result.hangs, 0);
}

TEST_F(SupervisorTest, GivesUpWithoutProgress) {
  const Supervised result = run("kill -9 $$", {.restarts = 3});
  EXPECT_FALSE(result.finished);
  EXPECT_EQ(result.lives, 4);
  EXPECT_THAT(result.why, testing::AllOf(testing::HasSubstr("4 attempts"), testing::HasSubstr("signal 9")));
}

TEST_F(SupervisorTest, ProgressMakesTheLimitWhole) {
  const Supervised result = run("mkdir -p checkpoints/step-0000000$life; [ $life = 8 ] || exit 1", {.restarts = 2});
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.lives, 8);
}

TEST_F(SupervisorTest, EndsWhatHangs) {
  const Supervised result = run("for i in 1 2 3; do beat $i; sleep 0.05; done; [ $life = 2 ] || sleep 100",
                                {.hang = milliseconds(3000), .grace = milliseconds(100)});
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.lives, 2);
  EXPECT_EQ(result.hangs, 1);
}

TEST_F(SupervisorTest, ALifeThatNeverBeginsHangsToo) {
  const Supervised result =
      run("[ $life = 2 ] || sleep 100", {.start = milliseconds(3000), .grace = milliseconds(100)});
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.hangs, 1);
}

TEST_F(SupervisorTest, AWrongCommandIsNotTriedAgain) {
  EXPECT_EQ(run("exit 2").lives, 1);
  SuperviseOptions options;
  options.command = {"no-such-program"};
  options.run = folder_;
  const Supervised result = supervise(options);
  EXPECT_EQ(result.lives, 1);
  EXPECT_THAT(result.why, testing::HasSubstr("no-such-program"));
}

TEST_F(SupervisorTest, GoesOnWithFewerRanks) {
  const Supervised result = run("echo $1 >>ranks; [ $1 = 1 ] || exit 1", {.ranks = {4, 2, 1}});
  EXPECT_TRUE(result.finished);
  std::ifstream file(folder_ / "ranks");
  const std::vector<std::string> tried(std::istream_iterator<std::string>(file), {});
  EXPECT_THAT(tried, testing::ElementsAre("4", "4", "2", "2", "1"));
}

TEST(SupervisorWaits, TwiceAsLongEachTime) {
  const SuperviseOptions options{.first_wait = milliseconds(1000), .longest_wait = milliseconds(5000)};
  EXPECT_EQ(wait_before(0, options), milliseconds(1000));
  EXPECT_EQ(wait_before(1, options), milliseconds(1000));
  EXPECT_EQ(wait_before(3, options), milliseconds(4000));
  EXPECT_EQ(wait_before(30, options), milliseconds(5000));
}

TEST_F(SupervisorTest, TheTimelineKeepsCausesBeforeEffects) {
  Timeline a(folder_ / "timeline.jsonl", "rank 0"), b(folder_ / "timeline.jsonl", "rank 1");
  for (int i = 0; i < 5; ++i) a.tell("busy");
  a.tell("sent");
  b.hear(a.clock());
  b.tell("received");
  std::ofstream(folder_ / "timeline.jsonl", std::ios::app) << "{\"clock\":9,\"wh";  // cut by a crash
  const auto events = read_timeline(folder_ / "timeline.jsonl");
  ASSERT_EQ(events.size(), 7U);
  EXPECT_EQ(events.back().event, "received");
  EXPECT_EQ(events.back().who, "rank 1");
  EXPECT_EQ(Timeline(folder_ / "timeline.jsonl", "supervisor").clock(), events.back().clock);
}

TEST_F(SupervisorTest, HeartbeatsAreReadBack) {
  EXPECT_FALSE(read_heartbeat(folder_));
  write_heartbeat(folder_, {.beats = 3, .step = 20, .saved = 15, .pid = 7});
  write_heartbeat(folder_, {.beats = 4, .step = 21, .saved = 15, .pid = 7});
  const auto heartbeat = read_heartbeat(folder_);
  ASSERT_TRUE(heartbeat);
  EXPECT_EQ(heartbeat->beats, 4);
  EXPECT_EQ(heartbeat->step, 21);
  write_heartbeat("/proc/nowhere", {});
}

}  // namespace
}  // namespace trireme::observe
