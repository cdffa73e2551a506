// cost/roofline.h -- how long one operator takes on one device.
//
// A GEMM of matrices computes and moves memory at once, but never perfectly so: its time is the root of the sum of
// both squared. That is the roofline's maximum with its corner rounded, and the shape of the efficiency curve of real
// libraries: near the peak where all three sizes are large, memory's line where one is small.
// Depends on: hardware.
#pragma once

#include "trireme/cost/hardware.h"

namespace trireme::cost {

/// rows x inner times inner x columns.
struct GemmShape {
  double rows = 0, columns = 0, inner = 0;
  double flops() const { return 2 * rows * columns * inner; }
  double elements() const { return rows * inner + inner * columns + rows * columns; }
};

/// Bytes of one number of that kind.
double bytes_of(Arithmetic arithmetic);

/// An operator that computes `flops` as a GEMM does and moves `bytes`: convolutions too, whose input is read once and
/// not once a kernel's element.
double compute_seconds(const Hardware& hardware, Arithmetic arithmetic, double flops, double bytes);
double matmul_seconds(const Hardware& hardware, Arithmetic arithmetic, const GemmShape& gemm);
/// Operators that only read and write memory, `bytes` in all.
double stream_seconds(const Hardware& hardware, double bytes, int operators = 1);
/// Fused attention: FLOPs of the tiles that are computed.
double attention_seconds(const Hardware& hardware, Arithmetic arithmetic, double flops);

}  // namespace trireme::cost
