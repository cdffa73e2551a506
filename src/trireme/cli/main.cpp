// The program `trireme`. What it does is in program.h; here are only the process's own affairs.
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "trireme/cli/program.h"

namespace {

// `trireme ... | head`: the reader had what it wanted. Anything else that keeps results from being written is a
// failure.
bool reader_is_gone() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

int main(int count, char** arguments) {
  // A peer that closes its socket, or a reader that closes the pipe, must not kill the process without a word.
  std::signal(SIGPIPE, SIG_IGN);
  std::ios::sync_with_stdio(false);
  const int code = trireme::cli::run_program({arguments + 1, arguments + count}, std::cout, std::cerr);
  std::cout.flush();
  if (std::cout.good() || reader_is_gone()) return code;
  std::cerr << "i/o error: could not write the output\n  hint: is the disk full?\n";
  return trireme::cli::kExitFailed;
}
