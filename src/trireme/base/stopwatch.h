// base/stopwatch.h -- how long something took, by the clock that nobody sets.
//
// Depends on: std.
#pragma once

#include <chrono>

namespace trireme {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace trireme
