// observe/machine.h -- what this machine is: processor, memory, limits, graphics processors, launchers.
//
// Read from /proc and the like, in milliseconds. What cannot be read is not there rather than guessed.
// Depends on: base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::observe {

struct Gpu {
  std::string name;
  std::optional<std::string> memory, driver;
};

struct Limit {
  std::string name, unit;
  std::optional<std::uint64_t> soft, hard;  // nothing: unlimited
};

struct DiskSpace {
  std::filesystem::path folder;  // the nearest one that exists
  std::uint64_t free = 0, total = 0;
  bool writable = false;
};

struct Machine {
  std::string host, system;         // "alpha", "Linux 6.1"
  std::string cpu_model;            // empty when not known
  int cpus = 0;                     // logical ones of the machine
  int usable_cpus = 0;              // that this process may run on
  std::optional<double> cpu_quota;  // of the container, in processors
  std::uint64_t memory = 0, memory_available = 0;
  std::optional<std::uint64_t> memory_limit;  // of the container
  std::vector<Gpu> gpus;
  std::vector<Limit> limits;
  std::optional<std::string> mpi;  // the first line of `mpirun --version`
};

Machine this_machine();

/// Bytes of memory that a process may have here: the machine's, or what its container allows; 0: not known. At once,
/// where this_machine() asks programs.
std::uint64_t usable_memory();

/// The processor's name as the kernel has it; empty when not known.
std::string cpu_model();

/// Of the file system that `path` is on, or will be once it is made.
std::optional<DiskSpace> disk_space(const std::filesystem::path& path);

}  // namespace trireme::observe
