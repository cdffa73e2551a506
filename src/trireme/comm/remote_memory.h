// comm/remote_memory.h -- reading and writing the memory of another process on the same machine, in one copy by the
// kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace trireme::comm {

class RemoteMemory {
 public:
  /// Process ids of the members of a group, by rank.
  explicit RemoteMemory(std::vector<pid_t> processes) : processes_(std::move(processes)) {}

  /// Both throw CommError naming the rank's process when it is gone or the system forbids the access.
  void read(int rank, void* local, const void* remote, std::size_t bytes) const;
  void write(int rank, const void* local, void* remote, std::size_t bytes) const;
  /// Whether this process may read `probe` (a word holding `expected`) in the given process.
  static bool permitted(pid_t process, const void* probe, unsigned long expected);

 private:
  std::vector<pid_t> processes_;
};

}  // namespace trireme::comm
