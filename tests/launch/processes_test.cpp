#include "trireme/launch/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "tests/launch/jobs.h"
#include "trireme/base/log.h"

namespace trireme::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ran {
  int status = 0;
  std::string out, err, log;
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

Process rank(int number, const std::string& script) {
  return {.name = fmt::format("rank {} on here", number),
          .prefix = fmt::format("[rank {}] ", number),
          .words = {"sh", "-c", script}};
}

Ran run_here(const std::vector<Process>& processes, ProcessOptions options = {}) {
  const Folder folder;
  Ran ran;
  options.output = ::open((folder.path() / "out").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0666);
  options.errors = ::open((folder.path() / "err").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0666);
  divert_log([&](std::string_view text) { ran.log += text; });
  ran.status = run_processes(processes, options);
  divert_log(nullptr);
  ::close(options.output), ::close(options.errors);
  ran.out = text_of(folder.path() / "out"), ran.err = text_of(folder.path() / "err");
  return ran;
}

TEST(Processes, LinesComeOutWholeWithTheirRank) {
  const Ran ran = run_here({rank(0, "printf 'a'; sleep 0.2; printf 'b\\nlast'"), rank(1, "echo c; echo d >&2")});
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.out, HasSubstr("[rank 0] ab\n"));
  EXPECT_THAT(ran.out, HasSubstr("[rank 0] last\n")) << "a line without an end is given out too";
  EXPECT_THAT(ran.out, HasSubstr("[rank 1] c\n"));
  EXPECT_EQ(ran.err, "[rank 1] d\n");
}

TEST(Processes, OneThatFailsEndsAllAndIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  // As launchers start ranks: names of signals come on their input.
  Job job = small_job();
  const Folder folder;
  job.folder = folder.path();
  job.program = folder.script("trireme", "trap 'exit 3' TERM; sleep 60 & wait\n");
  const Ran ran =
      run_here({rank(0, rank_script(job, {})), rank(1, "sleep 0.3; exit 7"), rank(2, rank_script(job, {}))});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.log, HasSubstr("rank 1 on here ended with status 7; the other ranks were ended"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Processes, ThoseThatDoNotListenAreEndedAllTheSame) {
  const Ran ran = run_here({rank(0, "trap '' TERM; while :; do sleep 1; done"), rank(1, "exit 2")},
                           {.grace = std::chrono::milliseconds(100), .last = std::chrono::milliseconds(200)});
  EXPECT_EQ(ran.status, 2) << "a wrong recipe: nobody tries again";
  EXPECT_THAT(ran.log, HasSubstr("rank 1 on here"));
}

TEST(Processes, ASignalLetsRunsSaveAndSaysSo) {
  Job job = small_job();
  const Folder folder;
  job.folder = folder.path();
  job.program = folder.script("trireme", "trap 'echo saved; exit 130' TERM; echo ready; while :; do sleep 0.1; done\n");
  std::thread killer([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    ::kill(::getpid(), SIGTERM);
  });
  const Ran ran = run_here({rank(0, rank_script(job, {})), rank(1, rank_script(job, {}))});
  killer.join();
  EXPECT_EQ(ran.status, 130);
  EXPECT_THAT(ran.out, HasSubstr("[rank 0] saved"));
  EXPECT_THAT(ran.out, HasSubstr("[rank 1] saved"));
  EXPECT_THAT(ran.log, Not(HasSubstr("ended with")));
}

TEST(Processes, ACommandThatIsNotThereIsNamed) {
  const Ran ran = run_here({{.name = "rank 0 on b", .prefix = "[rank 0] ", .words = {"no-such-ssh-here", "b"}}});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("[rank 0] no-such-ssh-here: No such file"));
  EXPECT_THAT(ran.log, HasSubstr("rank 0 on b ended with status 127"));
}

}  // namespace
}  // namespace trireme::launch
