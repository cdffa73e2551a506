#include "trireme/cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "tests/cli/run.h"
#include "trireme/base/env.h"
#include "trireme/base/log.h"
#include "trireme/base/version.h"
#include "trireme/cost/collectives.h"

namespace trireme::cli {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class Program : public testing::Test {
 protected:
  void TearDown() override {
    set_log_level(LogLevel::kInfo);
    divert_log(nullptr);
  }
};

TEST_F(Program, PrintsItsVersion) {
  const Outcome outcome = run({"--version"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_EQ(outcome.out, fmt::format("trireme {}\n", kVersion));
}

TEST_F(Program, HelpNamesCommandsAndEnvironmentVariables) {
  const Outcome outcome = run({"--help"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out, HasSubstr("\n  recipe              Write, show and document recipes"));
  for (const EnvVariable& variable : env_table()) EXPECT_THAT(outcome.out, HasSubstr(std::string(variable.name)));
}

TEST_F(Program, SaysInWordsWhichValuesAnOptionTakes) {
  const struct {
    std::vector<std::string> arguments;
    std::string error;
  } cases[] = {
      {{"eval", "x", "--precision", "fp33"}, "--precision: \"fp33\" is none of bf16 and fp32; did you mean \"fp32\"?"},
      {{"eval", "x", "--ranks", "0"}, "--ranks: 0 is not positive"},
      {{"eval", "x", "--ranks", "two"}, "--ranks: \"two\" is not a number"},
      {{"supervise", "--restarts", "-1", "x"}, "--restarts: -1 is not zero or more"},
      {{"plan", "--top", "1001"}, "--top: 1001 is not from 1 to 1000"},
      {{"schedule", "draw", "--color", "blue"}, "--color: \"blue\" is none of auto, always and never"},
      {{"schedule", "draw"}, "--kind or --measured is required"},
      {{"convert", "x"}, "INTO is required"},
  };
  for (const auto& c : cases) {
    const Outcome outcome = run(c.arguments);
    EXPECT_EQ(outcome.code, kExitUsage);
    EXPECT_THAT(outcome.err, StartsWith(fmt::format("configuration error: {}\n", c.error)));
  }
}

TEST_F(Program, HelpShowsDefaults) {
  EXPECT_THAT(run({"generate", "--help"}).out, HasSubstr("new tokens for each prompt [default: 32]"));
  EXPECT_THAT(run({"eval", "--help"}).out, HasSubstr("to compute with [default: fp32]"));
  EXPECT_THAT(run({"recipe", "new", "--help"}).out, HasSubstr("[default: llama]"));
}

TEST_F(Program, HelpFitsATerminal) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"--help"},
                                                                     {"recipe", "--help"},
                                                                     {"recipe", "show", "--help"},
                                                                     {"recipe", "docs", "-h"},
                                                                     {"recipe", "docs"}}) {
    std::istringstream text(run(arguments).out);
    int lines = 0;
    for (std::string line; std::getline(text, line); ++lines) {
      EXPECT_LE(columns_of(line), 120u) << line;
      EXPECT_THAT(line, Not(EndsWith(" ")));
    }
    EXPECT_GT(lines, 3);
  }
}

TEST_F(Program, HelpOfACommandDoesNotRepeatTheEnvironment) {
  EXPECT_THAT(run({"recipe", "--help"}).out, AllOf(HasSubstr("show"), Not(HasSubstr("TRIREME_LOG"))));
}

TEST_F(Program, WithoutACommandShowsHelpAndFails) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.out, HasSubstr("Usage: trireme"));
}

TEST_F(Program, WrongUsageIsExplainedWithWhatWasMeant) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"recipee", "show"}, "trireme has no command \"recipee\"; did you mean \"recipe\"?"},
      {{"recipe", "shwo", "x.toml"}, "trireme recipe has no command \"shwo\"; did you mean \"show\"?"},
      {{"recipe", "show", "--sett", "a=b"}, "trireme recipe show has no option --sett; did you mean \"--set\"?"},
      {{"generate", "run", "--tokens", "2"},
       "trireme generate has no option --tokens; did you mean \"--max-new-tokens\"?"},
      {{"recipe", "docs", "--markdwn"}, "trireme recipe docs has no option --markdwn; did you mean \"--markdown\"?"},
      {{"recipe", "docs", "extra"}, "trireme recipe docs does not know what to do with \"extra\""},
      {{"recipe"}, "trireme recipe needs a command"},
      {{"check"}, "FILE is required"},
      {{"recipe", "check"}, "trireme recipe has no command \"check\""},
      {{"--verbose", "--quiet", "recipe", "docs"}, "excludes"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << reason;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, StartsWith("configuration error: "));
    EXPECT_THAT(outcome.err, HasSubstr(reason));
    EXPECT_THAT(outcome.err, HasSubstr("--help"));
  }
}

TEST_F(Program, VerboseAndQuietMayStandAnywhereAndSetTheLevel) {
  std::vector<std::string> lines;
  divert_log([&](std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(run({"--quiet", "recipe", "docs"}).code, kExitFine);
  EXPECT_EQ(log_level(), LogLevel::kWarn);
  EXPECT_EQ(run({"recipe", "docs", "--verbose"}).code, kExitFine);
  EXPECT_EQ(log_level(), LogLevel::kDebug);
}

TEST_F(Program, TheEnvironmentSetsTheLevelAndIsCheckedToo) {
  setenv("TRIREME_LOG", "error", 1);
  EXPECT_EQ(run({"recipe", "show", "--set", "log.level=debug"}).code, kExitFine);
  EXPECT_EQ(log_level(), LogLevel::kError) << "the variable beats the recipe";
  setenv("TRIREME_LOG", "eror", 1);
  const Outcome outcome = run({"recipe", "docs"});
  unsetenv("TRIREME_LOG");
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("\"eror\" is not a log level; did you mean \"error\"?"));
  EXPECT_THAT(outcome.err, HasSubstr("while reading TRIREME_LOG"));
  EXPECT_EQ(run({"recipe", "show", "--set", "log.level=debug"}).code, kExitFine);
  EXPECT_EQ(log_level(), LogLevel::kDebug) << "with nothing else said, the recipe decides";
}

TEST_F(Program, VerboseAddsWhereAnErrorWasThrown) {
  EXPECT_THAT(run({"recipe", "check", "nope.toml"}).err, Not(HasSubstr("thrown at")));
  divert_log([](std::string_view) {});
  EXPECT_THAT(run({"recipe", "check", "nope.toml", "-v"}).err, HasSubstr("thrown at"));
}

}  // namespace
}  // namespace trireme::cli
