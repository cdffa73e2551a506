// base/child_process.h -- a command as a process group of its own, so that all it started can be ended.
//
//   ChildProcess child({"mpirun", "-n", "2", "trireme", "train", "recipes/tiny.toml"});
//   while (!child.poll()) ...
//
// It is asked to end (SIGTERM) when this process dies: a run without whoever watches it saves and ends.
// Depends on: error.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

class ChildProcess {
 public:
  enum class Streams : std::uint8_t {
    kInherited,   ///< it reads and writes where this process does
    kPiped,       ///< input(), output() and errors() are the other ends of its standard streams
    kPipedInput,  ///< only input() is: it writes where this process does
  };

  struct Options {
    Streams streams = Streams::kInherited;
    std::filesystem::path output = {};     ///< what it prints is appended here; empty: as `streams` says
    std::filesystem::path directory = {};  ///< it works in; empty: this process's
  };

  /// Throws IoError where no process can be made. A command that cannot be started ends with status 127.
  explicit ChildProcess(std::vector<std::string> words, Streams streams = Streams::kInherited);
  ChildProcess(std::vector<std::string> words, const Options& options);
  /// Ends it, and all of its group, if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// Its exit status once it has ended, 128 + signal when one did it.
  std::optional<int> poll();
  /// Blocks until it has ended.
  int wait();
  /// Signals the whole group.
  void tell(int signal) const;
  /// SIGTERM, and after `grace` SIGKILL.
  int end(std::chrono::milliseconds grace);

  /// Descriptors of pipes, or -1.
  int input() const { return input_; }
  int output() const { return output_; }
  int errors() const { return errors_; }
  void close_input();

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
  int input_ = -1, output_ = -1, errors_ = -1;
};

/// "ended with status 1", "was ended by signal 9 (Killed)".
std::string ended_how(int status);

}  // namespace trireme
