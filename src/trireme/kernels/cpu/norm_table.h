// kernels/cpu/norm_table.h -- what the loops of norm.h take: pointers and strides, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct NormForwardLoop {
  const void *x, *residual;   // residual null: none
  const void *weight, *bias;  // float (double), already with the offset; never null
  void *y, *sum, *mean, *rstd;
  std::int64_t x_stride, residual_stride, y_stride, sum_stride, width;
  double epsilon;
};

struct NormBackwardLoop {
  const void *dy, *x, *weight, *mean, *rstd, *dsum;  // dsum null: none
  void* dx;
  std::int64_t dy_stride, x_stride, dsum_stride, dx_stride, width;
};

struct NormLoops {
  void (*forward)(const NormForwardLoop& call, std::int64_t begin_row, std::int64_t end_row);
  /// Adds the rows' gradients of weight and bias to `dweight` and `dbias`: null both, or the second.
  void (*backward)(const NormBackwardLoop& call, std::int64_t begin_row, std::int64_t end_row, void* dweight,
                   void* dbias);
};

struct NormTable {
  NormLoops layer[kElements], rms[kElements];
  int lanes;  // floats in a register: shows that a set was compiled with its instructions
};
extern const NormTable kNormPlain, kNormV3, kNormV4, kNormV4Bf16;

}  // namespace trireme::kernels
