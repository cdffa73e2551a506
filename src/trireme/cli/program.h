// cli/program.h -- the program `trireme` as a function: options in, exit code out.
//
// Depends on: commands.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "trireme/cli/command.h"

namespace trireme::cli {

/// What scripts can rely on.
enum ExitCode : int {
  kExitFine = 0,
  kExitFailed = 1,         // the world failed: a file, a peer, a defect
  kExitUsage = 2,          // the command line, the recipe or the environment is wrong
  kExitInterrupted = 130,  // Ctrl-C, SIGTERM or RUN/stop: the run has saved, and is not finished
};

/// Never throws: an error becomes one readable block on `err` and an exit code.
int run_program(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

/// Every command with its options, as --help describes them: what docs/commands.md is made of.
std::vector<CommandDoc> program_docs();

}  // namespace trireme::cli
