// tests/program/train_command.h -- trireme train on recipes/tiny.toml made smaller, in a folder of the test's own.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/run.h"
#include "tests/files.h"

namespace trireme::cli {

inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class TrainCommand : public OwnFolder {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// recipes/tiny.toml with 40 steps, one thread, and what else is given.
  std::vector<std::string> words(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"--quiet", "train", TRIREME_RECIPES "/tiny.toml", "--out", path(out)};
    for (const char* set : {"train.steps=40", "train.threads=1", "train.hash_every=10", "checkpoint.every=10",
                            "batch.global_batch_tokens=512", "eval.every=20", "eval.samples=8"}) {
      all.insert(all.end(), {"--set", set});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(const std::string& out, const std::vector<std::string>& more = {}) const {
    return run(words(out, more));
  }
  void expect_equal_runs(const std::string& a, const std::string& b) const {
    const Outcome outcome = run({"diff", path(a), path(b)});
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, testing::HasSubstr("equal to the bit"));
  }

  /// The program as a process, so that it can be killed.
  pid_t start(const std::vector<std::string>& arguments) const {
    const pid_t child = fork();
    if (child != 0) return child;
    const int null = ::open("/dev/null", O_WRONLY);
    dup2(null, 1), dup2(null, 2);
    std::vector<std::string> all{std::getenv("TRIREME_PROGRAM")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : all) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  bool wait_for_steps(const std::string& out, std::size_t steps) const {
    for (int i = 0; i < 6000; ++i) {
      std::ifstream file(path(out) + "/metrics.jsonl");
      if (static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n')) >= steps) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
};

}  // namespace trireme::cli
