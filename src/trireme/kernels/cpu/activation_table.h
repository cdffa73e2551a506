// kernels/cpu/activation_table.h -- what the loops of activation.h take: pointers and strides, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

constexpr int kActivations = 4;  // in the order of Activation

struct ActivationLoop {
  const void *x, *bias, *dy;  // bias null: none; of x's type
  void* out;                  // y or dx
  std::int64_t x_stride, dy_stride, out_stride, width;
  void* y = nullptr;  // backward, on a GPU: the activation again; null: left out
  std::int64_t y_stride = 0;
};

struct GatedLoop {
  const void *gate, *up, *dy;
  void *dgate, *dup, *y;  // backward's y may be null
  std::int64_t gate_stride, up_stride, dy_stride, dgate_stride, dup_stride, y_stride, width;
};

struct ActivationLoops {
  void (*forward)(const ActivationLoop& call, std::int64_t begin_row, std::int64_t end_row);
  /// Adds the rows' gradients to `dbias`, float (double), unless it is null.
  void (*backward)(const ActivationLoop& call, std::int64_t begin_row, std::int64_t end_row, void* dbias);
  void (*gated_forward)(const GatedLoop& call, std::int64_t begin_row, std::int64_t end_row);
  void (*gated_backward)(const GatedLoop& call, std::int64_t begin_row, std::int64_t end_row);
};

struct ActivationTable {
  ActivationLoops loops[kActivations][kElements];
};
extern const ActivationTable kActivationPlain, kActivationV3, kActivationV4, kActivationV4Bf16;

}  // namespace trireme::kernels
