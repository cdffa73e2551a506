#include "trireme/base/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace trireme {
namespace {

TEST(ChildProcess, TellsHowItEnded) {
  EXPECT_EQ(ChildProcess({"sh", "-c", "exit 7"}).wait(), 7);
  EXPECT_EQ(ChildProcess({"sh", "-c", "kill -9 $$"}).wait(), 128 + SIGKILL);
  EXPECT_EQ(ended_how(7), "ended with status 7");
  EXPECT_EQ(ended_how(137), "was ended by signal 9 (Killed)");
}

TEST(ChildProcess, TalksThroughItsPipes) {
  ChildProcess child({"sh", "-c", "read x; echo got $x; echo oops >&2"}, ChildProcess::Streams::kPiped);
  ASSERT_EQ(::write(child.input(), "it\n", 3), 3);
  child.close_input();
  EXPECT_EQ(child.wait(), 0);
  char bytes[64] = {};
  EXPECT_EQ(::read(child.output(), bytes, sizeof bytes), 7);
  EXPECT_STREQ(bytes, "got it\n");
  EXPECT_EQ(::read(child.errors(), bytes, sizeof bytes), 5);
}

TEST(ChildProcess, TakesWhatItStartedWithIt) {
  ChildProcess child({"sh", "-c", "sleep 60 & echo $!; wait"}, ChildProcess::Streams::kPiped);
  char bytes[32] = {};
  ASSERT_GT(::read(child.output(), bytes, sizeof bytes - 1), 0);
  const pid_t grandchild = static_cast<pid_t>(std::atoi(bytes));
  ASSERT_EQ(::kill(grandchild, 0), 0);
  child.end(std::chrono::milliseconds(500));
  for (int i = 0; i < 100 && ::kill(grandchild, 0) == 0; ++i) {
    // Without anybody to wait for it, it may stay as a zombie, which answers too.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    FILE* status = std::fopen(("/proc/" + std::to_string(grandchild) + "/stat").c_str(), "r");
    if (status == nullptr) break;
    char state = 0;
    if (std::fscanf(status, "%*d (%*[^)]) %c", &state) == 1 && state == 'Z') {
      std::fclose(status);
      return;
    }
    std::fclose(status);
  }
  EXPECT_NE(::kill(grandchild, 0), 0);
}

}  // namespace
}  // namespace trireme
