// tests/peak_memory.h -- how much memory a call takes at most, beside what the process had before it.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace trireme {

/// A line of the kernel's account of this process, in KiB.
inline std::int64_t memory_kib(std::string_view what) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(what)) return std::atoll(line.c_str() + line.find(':') + 1);
  }
  ADD_FAILURE() << "/proc/self/status has no " << what;
  return 0;
}

/// Large blocks come from the kernel and go back to it when they are freed. Left to itself malloc keeps some, as many
/// as the sizes and the order of what was freed before make it, and that is tens of megabytes more in one run than in
/// another.
template <class Body>
std::int64_t peak_growth_mib(const Body& body) {
  ::mallopt(M_MMAP_MAX, 1 << 16);  // a trainer before this one may have asked malloc to keep everything
  ::mallopt(M_MMAP_THRESHOLD, 1 << 18);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 18);
  ::mallopt(M_TOP_PAD, 0);
  ::malloc_trim(0);
  {
    std::ofstream peak("/proc/self/clear_refs");
    peak << "5";  // the peak counts from here
    EXPECT_TRUE(peak.flush()) << "the kernel does not begin the peak anew";
  }
  const std::int64_t before = memory_kib("VmRSS");
  body();
  return (memory_kib("VmHWM") - before) >> 10;
}

}  // namespace trireme
