// Sums of squares: pieces of tensors in double, and a second pass over the pieces in a fixed order.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"
#include "trireme/kernels/cuda_plugin/many.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256;

/// Of 16 bytes: squared and added up in float where that loses no more than roundings, and in double where squares
/// leave what a float can hold.
template <int kN, typename Numbers>
__device__ __forceinline__ double square_of(const Numbers& v) {
  float quick = 0;
#pragma unroll
  for (int k = 0; k < kN; ++k) quick += v[k] * v[k];
  if (quick > 1e-30f && quick < 1e38f) return static_cast<double>(quick);
  double slow = 0;
#pragma unroll
  for (int k = 0; k < kN; ++k) slow += static_cast<double>(v[k]) * static_cast<double>(v[k]);
  return slow;
}

/// This thread's part of numbers [begin, end): eight vectors are under way at once, as they lie.
template <int kN, typename T>
__device__ __forceinline__ double squares_of(const T* x, std::int64_t begin, std::int64_t end) {
  constexpr int kAtOnce = 8;
  constexpr std::int64_t kStep = static_cast<std::int64_t>(kThreads) * kN;
  double total = 0;
  std::int64_t i = begin + threadIdx.x * kN;
  for (; i + (kAtOnce - 1) * kStep + kN <= end; i += kAtOnce * kStep) {
    Raw<T, kN> v[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) v[t] = load_raw<kN>(x + i + t * kStep);
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) total += square_of<kN>(v[t]);
  }
  for (; i < end; i += kStep) {
    float v[kN] = {};
    if (i + kN <= end) {
      load<kN>(x + i, v);
    } else {
      for (int k = 0; k < end - i; ++k) v[k] = widen(x[i + k]);
    }
    total += square_of<kN>(v);
  }
  return total;
}

/// 16 bytes at a time where the tensor begins so.
template <typename T>
__device__ __forceinline__ double squares_of_16(const T* x, std::int64_t begin, std::int64_t end) {
  return reinterpret_cast<std::uintptr_t>(x) % 16 == 0 ? squares_of<8>(x, begin, end) : squares_of<4>(x, begin, end);
}

using SquaresTables = Tables<CudaSquares, 100>;
/// Four blocks to a processor leave a thread the registers for all its vectors; for more blocks, the compiler would
/// wait for the first vectors before it asks for the last.
__global__ void __launch_bounds__(kThreads, 4)
    squares_many(const __grid_constant__ SquaresTables tables, double* partial) {
  const int at = tables.find(static_cast<int>(blockIdx.x));
  const CudaSquares& tensor = tables.items[at];
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - tables.first_block[at]) * kCudaSquaresPiece;
  const std::int64_t end = min(begin + kCudaSquaresPiece, tensor.count);
  double total = 0;
  if (tensor.numbers.element == Element::kDouble) {
    const double* x = static_cast<const double*>(tensor.numbers.data);
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) total += x[i] * x[i];
  } else if (tensor.numbers.element == Element::kFloat) {
    total = squares_of<4>(static_cast<const float*>(tensor.numbers.data), begin, end);
  } else if (tensor.numbers.element == Element::kBfloat16) {
    total = squares_of_16(static_cast<const Bf16*>(tensor.numbers.data), begin, end);
  } else {
    total = squares_of_16(static_cast<const F16*>(tensor.numbers.data), begin, end);
  }
  total = sum_over<kThreads>(total);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    squares_add(const __grid_constant__ SquaresTables tables, const double* partial, double* sums) {
  double total = 0;
  for (int i = tables.first_block[blockIdx.x] + threadIdx.x; i < tables.first_block[blockIdx.x + 1]; i += kThreads) {
    total += partial[i];
  }
  total = sum_over<kThreads>(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

}  // namespace

CudaError squares(const CudaSquares* tensors, std::int64_t count, double* partial, double* sums, CudaStream stream) {
  for (std::int64_t begin = 0; begin < count;) {
    SquaresTables tables{};
    const std::int64_t first = begin;
    std::int64_t blocks = 0;
    for (; begin < count && tables.count < 100; ++begin) {
      const Stream& numbers = tensors[begin].numbers;
      const int align = numbers.element == Element::kDouble || numbers.element == Element::kFloat ? 16 : 8;
      if (reinterpret_cast<std::uintptr_t>(numbers.data) % align != 0) {
        return "tensors whose squares are summed must begin at whole vectors of four numbers";
      }
      tables.items[tables.count] = tensors[begin];
      tables.first_block[tables.count++] = static_cast<std::int32_t>(blocks);
      blocks += divided_up(tensors[begin].count, kCudaSquaresPiece);
    }
    tables.first_block[tables.count] = static_cast<std::int32_t>(blocks);
    if (blocks > 0) squares_many<<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(tables, partial);
    squares_add<<<static_cast<unsigned>(tables.count), kThreads, 0, to_stream(stream)>>>(tables, partial, sums + first);
    if (CudaError error = launched()) return error;
    partial += blocks;
  }
  return nullptr;
}

}  // namespace trireme::kernels::gpu
