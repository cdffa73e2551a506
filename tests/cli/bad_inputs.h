// tests/cli/bad_inputs.h -- one wrong input and what must hold of it: an exit code, a sentence that names the thing, a
// fix that works when applied, nothing left behind, and all of it within two seconds.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/run.h"
#include "tests/files.h"
#include "trireme/base/log.h"

namespace trireme::cli {

struct BadInput {
  std::string name;                     // of the case, for messages
  std::vector<std::string> words;       // "{}" stands for the test's folder
  std::string named;                    // what the error must say
  std::vector<std::string> fixed = {};  // the words after the fix; empty: the case has none to run
};

class BadInputs : public OwnFolder {
 protected:
  void TearDown() override { set_log_level(LogLevel::kInfo); }

  std::vector<std::string> filled(std::vector<std::string> words) const {
    for (std::string& word : words) {
      for (std::size_t at = 0; (at = word.find("{}", at)) != std::string::npos;) {
        word.replace(at, 2, folder_.string());
        at += folder_.string().size();
      }
    }
    return words;
  }

  /// Everything in the folder and in the current one.
  std::set<std::string> all_files() const {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      files.insert(entry.path().string());
    for (const auto& entry : std::filesystem::directory_iterator(".")) files.insert(entry.path().string());
    return files;
  }

  void expect_refused(const BadInput& input) const {
    SCOPED_TRACE(input.name);
    const auto before = all_files();
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = run(filled(input.words));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_TRUE(outcome.code == kExitFailed || outcome.code == kExitUsage)
        << outcome.code << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, testing::HasSubstr(filled({input.named})[0]));
    EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("unexpected error")));
    EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("internal error")));
    EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("std::")));
    EXPECT_EQ(outcome.err.find("error: "), outcome.err.rfind("error: ")) << "one error: " << outcome.err;
    EXPECT_EQ(all_files(), before) << "something was left behind";
    EXPECT_LT(seconds.count(), 2.0);
    if (input.fixed.empty()) return;
    const Outcome fixed = run(filled(input.fixed));
    EXPECT_EQ(fixed.code, 0) << "the fix does not help: " << fixed.err;
  }
};

}  // namespace trireme::cli
