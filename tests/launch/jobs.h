// tests/launch/jobs.h -- a job, a folder to throw away, and commands that are really run.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "trireme/launch/launcher.h"

namespace trireme::launch {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trireme-launch-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  /// An executable script of sh.
  std::string script(const std::string& name, const std::string& body) const {
    const auto file = path_ / name;
    std::ofstream(file, std::ios::binary) << "#!/bin/sh\n" << body;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

/// What a shell prints for a script.
inline std::string run_sh(const std::string& script, const char* shell = "sh", int* status = nullptr) {
  const Folder folder;
  const auto file = folder.path() / "script";
  std::ofstream(file, std::ios::binary) << script;
  FILE* pipe = ::popen((std::string(shell) + " " + file.string() + " 2>&1").c_str(), "r");
  std::string out;
  char bytes[4096];
  for (std::size_t got; (got = std::fread(bytes, 1, sizeof bytes, pipe)) > 0;) out.append(bytes, got);
  const int ended = ::pclose(pipe);
  if (status != nullptr) *status = WEXITSTATUS(ended);
  return out;
}

inline Job small_job() {
  return {.name = "tiny",
          .program = "/opt/trireme/bin/trireme",
          .recipe = "recipes/tiny.toml",
          .sets = {"train.steps=40"},
          .folder = "/home/me/work",
          .out = "runs/tiny",
          .ranks = 4,
          .nodes = 2,
          .ranks_per_node = 2,
          .environment = {},
          .sweep = {}};
}

inline Settings settings_of(const Launcher& launcher, std::map<std::string, std::string> given = {}) {
  return Settings(launcher, given);
}

}  // namespace trireme::launch
