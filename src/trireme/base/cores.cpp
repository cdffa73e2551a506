#include "trireme/base/cores.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <thread>

namespace trireme {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof set, &set) != 0) return all;  // more cores than the set has room for
  return std::max(1, CPU_COUNT(&set));
}

double process_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace trireme
