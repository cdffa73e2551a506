// The program as a process: what only a real one shows. ctest says where it is (TRIREME_PROGRAM); by hand it is looked
// for in the folders above the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "trireme/base/version.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path program() {
  if (const char* path = std::getenv("TRIREME_PROGRAM")) return path;
  for (fs::path folder = fs::read_symlink("/proc/self/exe").parent_path(); folder != folder.root_path();
       folder = folder.parent_path()) {
    if (fs::is_regular_file(folder / "trireme")) return folder / "trireme";
  }
  throw std::runtime_error("the program is not built: set TRIREME_PROGRAM to its path");
}

struct Outcome {
  int code;
  std::string text;
};

/// Runs a line of shell in which $P is the program.
Outcome shell(const std::string& line) {
  const std::string command = "export P='" + program().string() + "'; set -o pipefail; " + line;
  setenv("TRIREME_TEST_COMMAND", command.c_str(), 1);
  FILE* pipe = popen("exec bash -c \"$TRIREME_TEST_COMMAND\"", "r");
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text};
}

TEST(Process, PrintsItsVersion) {
  const Outcome outcome = shell("$P --version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.text, "trireme " + std::string(kVersion) + "\n");
}

TEST(Process, ResultsGoToStdoutAndErrorsToStderr) {
  EXPECT_EQ(shell("$P check nope.toml 2>/dev/null").text, "");
  EXPECT_THAT(shell("$P check nope.toml 2>&1 >/dev/null").text, HasSubstr("configuration error: cannot read"));
  EXPECT_EQ(shell("$P recipe docs 2>&1 >/dev/null").text, "");
}

TEST(Process, ExitCodesTellUsageFromFailure) {
  EXPECT_EQ(shell("$P recipe docs").code, 0);
  EXPECT_EQ(shell("$P check nope.toml 2>/dev/null").code, 2);
  EXPECT_EQ(shell("$P nonsense 2>/dev/null").code, 2);
  EXPECT_EQ(shell("$P recipe docs 2>/dev/null >/dev/full").code, 1) << "results that were not written are a failure";
}

TEST(Process, AReaderThatHasEnoughIsNoError) {
  const Outcome outcome = shell("{ for i in 1 2 3; do $P recipe docs || exit; done; } 2>&1 | head -n 1");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("[run]"));
  EXPECT_EQ(shell("$P recipe docs 2>/dev/null | true").code, 0);
}

TEST(Process, TheReadyRecipesAreFine) {
  int checked = 0;
  for (const auto& file : fs::recursive_directory_iterator(TRIREME_RECIPES)) {
    if (file.path().extension() != ".toml") continue;
    const std::string folder = file.path().parent_path().filename().string();
    if (folder == "clusters" || folder == "devices" || folder == "published") continue;  // the planner's, no recipes
    const Outcome outcome = shell("$P recipe show '" + file.path().string() + "' 2>&1 >/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    ++checked;
  }
  EXPECT_GE(checked, 10);
  for (const char* name : {"tiny.toml", "verify-tiny.toml"}) {
    const Outcome outcome = shell("$P check '" + std::string(TRIREME_RECIPES) + "/" + name + "' 2>&1");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
  }
}

TEST(Process, HasTheVersionOfTheBuild) {
  std::ifstream stream(fs::path(TRIREME_RECIPES).parent_path() / "CMakeLists.txt");
  ASSERT_TRUE(stream);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_THAT(text, HasSubstr("project(trireme VERSION " + std::string(kVersion) + " "));
}

}  // namespace
}  // namespace trireme
