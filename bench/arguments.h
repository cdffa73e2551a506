// bench/arguments.h -- what can be given to a benchmark: the options of cli/command.h, without a program around them.
//
// A file that sees CLI11 compiles for many seconds: only arguments.cpp does.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/cli/command.h"

namespace trireme::bench {

/// Says what is wanting and gives the exit status by which `make bench` knows that nothing was measured: 77.
int cannot_run(const std::string& why);

class Arguments : public cli::Command {
 public:
  explicit Arguments(const std::string& about);
  ~Arguments();

  /// The exit status to end with, when help was asked for or an argument is wrong; nothing when the work can begin.
  [[nodiscard]] std::optional<int> parse(int count, char** words);

 private:
  explicit Arguments(std::unique_ptr<CLI::App> app);

  std::unique_ptr<CLI::App> app_;
};

}  // namespace trireme::bench
