// tests/thread_seconds.h -- how long a thread has computed: what it cost, whoever else uses the machine.
#pragma once

#include <time.h>

namespace trireme {

inline double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace trireme
