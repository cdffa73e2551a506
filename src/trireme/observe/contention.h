// observe/contention.h -- whether other programs want the cores that a run computes on.
//
// Threads of an OpenMP team wait for each other by spinning. Where another program has one of their cores, the others
// spin until the kernel gives it back, and a step takes many times as long. The kernel's counters tell.
// Depends on: base.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme::observe {

/// Seconds since some beginning, of one moment.
struct CpuTimes {
  double wall = 0;
  double machine = 0;  ///< that all cores together were busy for, since it was started
  double process = 0;  ///< of it, this process
};

/// Busy seconds of all cores from the text of /proc/stat; nothing where it is of another form.
std::optional<double> busy_seconds(std::string_view proc_stat, double ticks_per_second);
/// Now; nothing where the machine does not tell, or where this process may not use all of its cores.
std::optional<CpuTimes> cpu_times();

/// Looks at the machine every few seconds and says once when other programs take cores from a run.
class CpuContention {
 public:
  /// `threads` of each of the `ranks` on this machine, of which `here` are in this process.
  CpuContention(int threads, int ranks, int here, int cores);
  /// Empty, or what is wrong and what helps.
  std::string note(const std::optional<CpuTimes>& now);

 private:
  int threads_, ranks_, here_, cores_;
  std::optional<CpuTimes> before_;
  int crowded_ = 0;  // looks in a row
  bool said_ = false;
};

}  // namespace trireme::observe
