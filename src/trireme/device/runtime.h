// device/runtime.h -- what the program may ask of libtrireme_runtime, in plain C: no tensor type crosses this line.
//
//   const auto* runtime = Plugin::load("runtime").function<device::RuntimeEntry>(device::kRuntimeEntry)();
//
// Depends on: nothing. Any room may include it.
#pragma once

#include <cstdint>

namespace trireme::device {

/// Raised by one whenever a field of Runtime changes its meaning or place.
inline constexpr std::uint32_t kRuntimeVersion = 3;

extern "C" {

enum GemmType : std::int32_t { kGemmF32 = 0, kGemmBf16 = 1 };

struct Runtime {
  std::uint32_t version;            ///< kRuntimeVersion of the library; compare before using the rest
  const char* (*torch_version)();   ///< "2.11.0"
  const char* (*cpu_capability)();  ///< the instruction set its kernels chose: "AVX2", "AVX512", ...
  int (*intra_op_threads)();        ///< threads that one operator may use
  void (*set_intra_op_threads)(int threads);
  /// Whether the tensor library computes right on this machine: the largest difference between its GEMM of two
  /// size x size matrices (f32, entries in [-1, 1)) and that of a plain loop in f64. About 1e-6 for size 64; NaN when
  /// it failed.
  double (*gemm_error)(int size);
  /// The rate of its GEMM with the threads it is set to, in floating-point operations a second: the best of
  /// repeated size x size GEMMs (a warm-up, then three or more, for about `seconds`). This is the peak that a step's
  /// rate is compared with. NaN when it failed.
  double (*gemm_flops)(int size, GemmType type, double seconds);
  /// How long a GEMM of rows x inner with inner x columns takes with the threads it is set to: the median of calls
  /// for about `seconds`, after a warm-up. NaN when it failed.
  double (*gemm_seconds)(int rows, int columns, int inner, GemmType type, double seconds);
};

/// The one symbol that the library is asked for.
const Runtime* trireme_runtime();

}  // extern "C"

using RuntimeEntry = decltype(trireme_runtime);
inline constexpr const char* kRuntimeEntry = "trireme_runtime";

}  // namespace trireme::device
