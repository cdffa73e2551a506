#include "trireme/cost/roofline.h"

#include <cmath>

namespace trireme::cost {

double bytes_of(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFp32:
      return 4;
    case Arithmetic::kFp16:
    case Arithmetic::kBf16:
      return 2;
    case Arithmetic::kFp8:
      return 1;
  }
  return 0;
}

double compute_seconds(const Hardware& hardware, Arithmetic arithmetic, double flops, double bytes) {
  const Efficiency& efficiency = hardware.device.efficiency;
  const double computing = flops / (hardware.peak(arithmetic) * efficiency.matmul);
  const double moving = bytes / (hardware.memory_bandwidth() * efficiency.memory);
  return std::sqrt(computing * computing + moving * moving) + efficiency.kernel_seconds;
}

double matmul_seconds(const Hardware& hardware, Arithmetic arithmetic, const GemmShape& gemm) {
  return compute_seconds(hardware, arithmetic, gemm.flops(), bytes_of(arithmetic) * gemm.elements());
}

double stream_seconds(const Hardware& hardware, double bytes, int operators) {
  const Efficiency& efficiency = hardware.device.efficiency;
  return bytes / (hardware.memory_bandwidth() * efficiency.memory) + operators * efficiency.kernel_seconds;
}

double attention_seconds(const Hardware& hardware, Arithmetic arithmetic, double flops) {
  const Efficiency& efficiency = hardware.device.efficiency;
  // Scores and their exponentials do not bear eight bits: attention stays in sixteen.
  const Arithmetic kept = arithmetic == Arithmetic::kFp8 ? Arithmetic::kBf16 : arithmetic;
  return flops / (hardware.peak(kept) * efficiency.attention) + efficiency.kernel_seconds;
}

}  // namespace trireme::cost
