// launch/cooldown.h -- how long a machine on which a rank has failed gets no new one.
//
// Depends on: nothing.
#pragma once

#include <algorithm>
#include <chrono>

namespace trireme::launch {

/// Doubled from failure to failure, as Horovod's --blacklist-cooldown-range.
struct Cooldown {
  std::chrono::milliseconds first{10'000}, longest{100'000};

  /// After so many failures in a row.
  std::chrono::milliseconds after(int failures) const {
    auto wait = first;
    for (int i = 1; i < failures && wait < longest; ++i) wait *= 2;
    return failures < 1 ? std::chrono::milliseconds(0) : std::min(wait, std::max(first, longest));
  }
};

}  // namespace trireme::launch
