// trireme schedule: every command, and what a slip is told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/run.h"
#include "trireme/base/text.h"
#include "trireme/schedule/builders.h"

namespace trireme::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ScheduleCommand : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  static std::string read(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("trireme-schedule-" + std::to_string(getpid()));
};

TEST_F(ScheduleCommand, ListsEveryKind) {
  const Outcome outcome = run({"schedule", "list"});
  EXPECT_EQ(outcome.code, kExitFine);
  for (const schedule::Kind& kind : schedule::kinds())
    EXPECT_THAT(outcome.out, HasSubstr("\n" + std::string(kind.name) + " "));
}

TEST_F(ScheduleCommand, ComparesAllKindsAndNoFormulaDiffers) {
  const Outcome outcome = run({"schedule", "compare", "--stages", "8", "--microbatches", "32"});
  EXPECT_EQ(outcome.code, kExitFine);
  for (const schedule::Kind& kind : schedule::kinds())
    EXPECT_THAT(outcome.out, HasSubstr("\n" + std::string(kind.name) + " "));
  EXPECT_THAT(outcome.out, AllOf(Not(HasSubstr("!")), Not(HasSubstr("left out"))));
  EXPECT_THAT(outcome.out, HasSubstr("1f1b                    1     17.95    17.95    8.0      8.0"));
}

TEST_F(ScheduleCommand, SaysWhyAKindIsLeftOut) {
  const Outcome outcome = run({"schedule", "compare", "--stages", "3", "--microbatches", "2"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.out, HasSubstr("left out: dualpipe: its two directions meet between two ranks, so 3 is odd"));
  EXPECT_THAT(outcome.out, HasSubstr("left out: pipedream-2bw: 2 micros an update are fewer than the 3"));
}

TEST_F(ScheduleCommand, WhatIsShownCanBeCheckedDrawnAndShownAgain) {
  for (const schedule::Kind& kind : schedule::kinds()) {
    for (const char* form : {"--json", "--transfers"}) {
      const std::string file = path("mine");
      ASSERT_EQ(run({"schedule", "show", "--kind", std::string(kind.name), form, "-o", file, "-q"}).code, kExitFine);
      const Outcome checked = run({"schedule", "check", file});
      EXPECT_EQ(checked.code, kExitFine) << checked.err;
      const int halves = kind.name == "chimera-halving" ? 2 : 1;
      EXPECT_THAT(checked.out, StartsWith(fmt::format("{} is fine: 4 ranks, {} micros in ", file, 8 * halves)));
      EXPECT_EQ(run({"schedule", "show", "--kind", "file:" + file, form}).out, read(file)) << kind.name;
      EXPECT_EQ(run({"schedule", "draw", "--kind", "file:" + file}).code, kExitFine);
    }
  }
}

/// Pairs in parts can be shown, checked and timed; what their exchanges take is hidden where a pair computes.
TEST_F(ScheduleCommand, CutsPairsWhereExpertsSendRows) {
  const Outcome shown = run({"schedule", "show", "--kind", "dualpipe", "--stages", "2", "--microbatches", "4",
                             "--mixtures", "1", "-o", path("parts.txt")});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(read(path("parts.txt")), AllOf(HasSubstr("mixtures: 1 1\n"), HasSubstr(" FA"), HasSubstr(" BA")));
  const Outcome checked = run({"schedule", "check", path("parts.txt")});
  EXPECT_EQ(checked.code, 0) << checked.err;
  const Outcome drawn = run({"schedule", "draw", "--kind", "dualpipe", "--microbatches", "16", "--mixtures", "2",
                             "--times", "f=1,b=1,w=1,x=0.1,e=0.4"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
}

TEST_F(ScheduleCommand, DrawsWhatTheNameOfTheFileSays) {
  const std::vector<std::string> base{"schedule", "draw", "--kind", "zb-v", "-q", "-o"};
  const auto draw = [&](const std::string& file) {
    std::vector<std::string> arguments = base;
    arguments.push_back(file);
    return run(arguments);
  };
  EXPECT_EQ(draw(path("a.svg")).code, kExitFine);
  EXPECT_THAT(read(path("a.svg")), StartsWith("<svg"));
  EXPECT_EQ(draw(path("a.json")).code, kExitFine);
  EXPECT_THAT(read(path("a.json")), HasSubstr("traceEvents"));
  EXPECT_THAT(draw(path("a.gif")).err, HasSubstr("name it .svg or .json"));
  EXPECT_EQ(draw(path("nowhere/a.svg")).code, kExitFailed);
  EXPECT_THAT(run({"schedule", "draw", "--kind", "1f1b", "--color", "never"}).out,
              HasSubstr("rank 0: F0 F1 F2 F3 ..."));
}

TEST_F(ScheduleCommand, ShowsTimesAndTheCriticalPath) {
  const Outcome outcome = run(
      {"schedule", "show", "--kind", "1f1b", "--stages", "2", "--microbatches", "2", "--times", "link=1", "--timing"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("takes 11, idle 45.5 %"), HasSubstr("critical path (2 of it messages)"),
                                 HasSubstr("rank 0: F0.0 SA0.0 -> rank 1: F0.1")));
}

TEST_F(ScheduleCommand, RecomputesWhereAsked) {
  EXPECT_THAT(run({"schedule", "show", "--kind", "gpipe", "--stages", "2", "--microbatches", "2", "--recompute"}).out,
              HasSubstr("rank 0: F0 F1 B1 R0 B0 G O\nrank 1: F0 F1 B1 R0 B0 G O\n"));
  EXPECT_THAT(
      run({"schedule", "show", "--kind", "pipedream", "--stages", "2", "--microbatches", "2", "--recompute"}).out,
      HasSubstr("rank 0: F0 F1 R0 B0 G VS0 O VL0 R1 B1 VD0 G O\n"));
}

TEST_F(ScheduleCommand, SlipsAreTold) {
  EXPECT_THAT(run({"schedule", "show", "--kind", "zbv"}).err, HasSubstr("did you mean \"zb-v\"?"));
  EXPECT_THAT(run({"schedule", "draw", "--kind", "dualpipe", "--stages", "5"}).err,
              HasSubstr("schedule dualpipe is not defined on 5 ranks, 8 micros and 2 chunks a rank"));
  EXPECT_THAT(run({"schedule", "draw", "--kind", "1f1b", "--times", "q=1"}).err, HasSubstr("there is no \"q\""));
  EXPECT_THAT(run({"schedule", "draw", "--kind", "1f1b", "--format", "svgg"}).err, HasSubstr("did you mean \"svg\"?"));
  EXPECT_EQ(run({"schedule", "draw", "--stages", "5"}).code, kExitUsage);
  EXPECT_EQ(run({"schedule", "check", path("missing")}).code, kExitFailed);
}

TEST_F(ScheduleCommand, CheckNamesEveryFault) {
  const std::string file = write("broken", "micros: 2\nchunks: 0 1\nrank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 B0\n");
  const Outcome outcome = run({"schedule", "check", file});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1, position 3, B0.1 (backward): micro 0 was backward through chunk 1"),
                                 HasSubstr("rank 1: micro 1 never goes backward through chunk 1")));
  EXPECT_THAT(run({"schedule", "check", write("typo", "micros: 2\nchunks: 0 1\nrank 0: F0 X1\n")}).err,
              AllOf(HasSubstr("rank 0, position 1: \"X1\": no such instruction"), HasSubstr("while reading")));
}

TEST_F(ScheduleCommand, HelpFitsATerminal) {
  for (const char* command : {"list", "show", "draw", "compare", "check"}) {
    std::istringstream text(run({"schedule", command, "--help"}).out);
    for (std::string line; std::getline(text, line);) EXPECT_LE(columns_of(line), 120u) << line;
  }
}

}  // namespace
}  // namespace trireme::cli
