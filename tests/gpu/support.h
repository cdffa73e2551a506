// tests/gpu/support.h -- the same call on the CPU in double and on the GPU in every type.
#pragma once

#include "tests/kernels/support.h"
#include "trireme/device/cuda.h"

namespace trireme::gpu {

using kernels::normal_tensor;
using kernels::same_bits;
using kernels::sums_type;

inline at::Device gpu() { return device::use_cuda(0); }

/// Absolute and relative error allowed beside the CPU in double: a few roundings of the type.
struct Near {
  at::ScalarType type;
  double relative, absolute;
};
inline std::vector<Near> types() {
  return {
      {at::kDouble, 1e-11, 1e-12}, {at::kFloat, 2e-5, 5e-6}, {at::kBFloat16, 0.009, 1e-4}, {at::kHalf, 0.0011, 2e-5}};
}

template <typename Body>
void for_every_type(Body&& body) {
  for (const Near& near : types()) {
    SCOPED_TRACE(c10::toString(near.type));
    body(near);
  }
}

/// Numbers of `type`, rounded to it once: as double on the CPU, as they are on the GPU.
struct Pair {
  at::Tensor cpu, gpu;
};
inline Pair pair_of(const at::Tensor& values, at::ScalarType type) {
  const at::Tensor rounded = values.to(type);
  return {rounded.to(at::kDouble), rounded.to(gpu())};
}
inline Pair normal_pair(at::IntArrayRef shape, at::ScalarType type, std::string_view name, double scale = 1) {
  return pair_of(normal_tensor(shape, at::kDouble, name, scale), type);
}
inline Pair empty_pair(at::IntArrayRef shape, at::ScalarType type) {
  return {at::empty(shape, at::kDouble), at::full(shape, -77, at::TensorOptions(type).device(gpu()))};
}
inline Pair ones_pair(at::IntArrayRef shape, at::ScalarType type) {
  return {at::ones(shape, at::kDouble), at::ones(shape, at::TensorOptions(type).device(gpu()))};
}

/// Errors relative to the largest number as well as to each: sums of many terms cancel.
inline void expect_near(const Pair& pair, const Near& near, const char* what, double slack = 1) {
  const at::Tensor actual = pair.gpu.cpu().to(at::kDouble);
  const double most = pair.cpu.numel() == 0 ? 0 : pair.cpu.abs().max().item<double>();
  kernels::expect_near(actual, pair.cpu, slack * near.relative, slack * (near.absolute + 0.1 * near.relative * most),
                       what);
}

inline std::vector<kernels::RowsShape> shapes() {
  return {{1, 1},     {5, 3},      {7, 16},     {3, 768},    {67, 17},     {11, 1000},  {1000, 768},
          {300, 512}, {300, 1024}, {300, 1536}, {300, 2048}, {2500, 1024}, {129, 5000}, {33, 8200}};
}

}  // namespace trireme::gpu
