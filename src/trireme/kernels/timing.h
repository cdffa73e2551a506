// kernels/timing.h -- behind GEMM.h: what this process has timed on its GPU, and how it times.
//
// Ranks that are threads share the GPU, and so what was chosen.
// Depends on: base, choices.h.
#pragma once

#include <functional>
#include <vector>

#include "trireme/device/stream.h"
#include "trireme/kernels/tuning.h"

namespace trireme::kernels {

/// Calls `look` with what was chosen so far, which nobody else then looks at or changes. The first call asks the card
/// for its name and reads the file that read_choices() named.
void with_choices(const std::function<void(Choices& choices)>& look);

/// Microseconds of work on this thread's stream, which is waited for.
class Stopwatch {
 public:
  /// Of one call, of several.
  double us(int calls, const std::function<void()>& call);

 private:
  device::CudaEvent begin_{device::kEventTiming}, end_{device::kEventTiming};
};

double median(std::vector<double> numbers);

}  // namespace trireme::kernels
