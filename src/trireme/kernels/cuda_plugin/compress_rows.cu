// One bit an element and two means a row, with error feedback: 12 bytes an element in fp32 are moved once.
#include "trireme/kernels/cuda_plugin/compress.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kRowThreads = 256;

/// The signs of a warp's kVec elements a lane, as words of neighbours. All lanes call it.
template <int kVec>
__device__ __forceinline__ void put_signs(std::uint32_t* signs, std::int64_t first, bool inside,
                                          const bool (&up)[kVec]) {
  if constexpr (kVec == 1) {
    const std::uint32_t word = __ballot_sync(0xffffffffu, inside && up[0]);
    if (threadIdx.x % 32 == 0 && inside) signs[first / 32] = word;
  } else {
    constexpr int kLanes = 32 / kVec;  // of a word
    std::uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < kVec; ++k) word |= (inside && up[k] ? 1u : 0u) << k;
    word <<= (threadIdx.x % kLanes) * kVec;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) word |= __shfl_xor_sync(0xffffffffu, word, step);
    if (threadIdx.x % kLanes == 0 && inside) signs[first / 32] = word;
  }
}

/// A row for each block. kRegs > 0: the row stays in registers between its two passes; 0: it is read again.
template <typename T, int kVec, int kRegs>
__global__ void __launch_bounds__(kRowThreads) encode_rows_kernel(const CudaRowCode a) {
  constexpr int kHeld = kRegs > 0 ? kRegs : 1;
  const std::int64_t row = blockIdx.x, at = row * a.columns;
  const T *g = static_cast<const T*>(a.gradient) + at, *e = static_cast<const T*>(a.kept) + at;
  T* next = static_cast<T*>(a.next) + at;
  const OwnedPlace place = owned_place(row, a.rows, a.owners);
  std::uint8_t* code = a.codes + place.owner * a.slot_bytes;
  const std::int64_t words = divided_up(a.columns, 32);
  T* means = reinterpret_cast<T*>(code) + 2 * place.place;
  auto* signs = reinterpret_cast<std::uint32_t*>(code + a.signs_at) + place.place * words;
  const std::int64_t steps = divided_up(a.columns, kRowThreads * kVec);

  Pack<T, kVec> held[kHeld];
  double sums[4] = {};  // of those >= 0, of the others, their number, squares
  T above = 0, below = 0, squares = 0;
  int ups = 0;
  const auto first_pass = [&](std::int64_t step, Pack<T, kVec>& c) {
    const std::int64_t i = (step * kRowThreads + threadIdx.x) * kVec;
    const bool inside = i < a.columns;
    bool up[kVec];
#pragma unroll
    for (int k = 0; k < kVec; ++k) c.v[k] = 0, up[k] = false;
    if (inside) {
      const auto x = load_pack<kVec>(g + i), y = load_pack<kVec>(e + i);
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const T value = x.v[k] + y.v[k];
        c.v[k] = value;
        up[k] = value >= 0;
        above += up[k] ? value : T(0);
        below += up[k] ? T(0) : value;
        ups += up[k] ? 1 : 0;
        squares += value * value;
      }
    }
    put_signs<kVec>(signs, i, inside, up);
    if (kRegs == 0 && inside) *reinterpret_cast<Pack<T, kVec>*>(next + i) = c;
  };
  if constexpr (kRegs > 0) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      if (r < steps) first_pass(r, held[r]);
    }
  } else {
    for (std::int64_t step = 0; step < steps; ++step) first_pass(step, held[0]);
  }
  sums[0] = static_cast<double>(above), sums[1] = static_cast<double>(below);
  sums[2] = ups, sums[3] = static_cast<double>(squares);
  sum_all<kRowThreads>(sums);
  const double count_up = sums[2], count_down = static_cast<double>(a.columns) - sums[2];
  const T down = static_cast<T>(count_down > 0 ? sums[1] / count_down : 0),
          up = static_cast<T>(count_up > 0 ? sums[0] / count_up : 0);
  if (threadIdx.x == 0) {
    means[0] = down;
    means[1] = up;
    if (a.errors != nullptr) {  // of means, |c - mean|^2 = |c|^2 - n mean^2
      const double said = count_up * static_cast<double>(up) * static_cast<double>(up) +
                          count_down * static_cast<double>(down) * static_cast<double>(down);
      a.errors[2 * row] = fmax(0.0, sums[3] - said);
      a.errors[2 * row + 1] = sums[3];
    }
  }
  const auto second_pass = [&](std::int64_t step, const Pack<T, kVec>& c) {
    const std::int64_t i = (step * kRowThreads + threadIdx.x) * kVec;
    if (i >= a.columns) return;
    Pack<T, kVec> rest;
#pragma unroll
    for (int k = 0; k < kVec; ++k) rest.v[k] = c.v[k] - (c.v[k] >= 0 ? up : down);
    *reinterpret_cast<Pack<T, kVec>*>(next + i) = rest;
  };
  if constexpr (kRegs > 0) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      if (r < steps) second_pass(r, held[r]);
    }
  } else {
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::int64_t i = (step * kRowThreads + threadIdx.x) * kVec;
      if (i < a.columns) second_pass(step, load_pack<kVec>(next + i));  // this thread's own
    }
  }
}

template <typename T, int kVec>
void launch_rows(const CudaRowCode& a, CudaStream stream) {
  const auto grid = static_cast<unsigned>(a.rows);
  const std::int64_t steps = divided_up(a.columns, kRowThreads * kVec);
  if (steps <= 1) {
    encode_rows_kernel<T, kVec, 1><<<grid, kRowThreads, 0, to_stream(stream)>>>(a);
  } else if (steps <= 4) {
    encode_rows_kernel<T, kVec, 4><<<grid, kRowThreads, 0, to_stream(stream)>>>(a);
  } else if (steps <= 8) {
    encode_rows_kernel<T, kVec, 8><<<grid, kRowThreads, 0, to_stream(stream)>>>(a);
  } else {
    encode_rows_kernel<T, kVec, 0><<<grid, kRowThreads, 0, to_stream(stream)>>>(a);
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads) decode_rows_kernel(const CudaRowDecode a) {
  const std::int64_t row = blockIdx.x, words = divided_up(a.columns, 32);
  const OwnedPlace place = owned_place(row, a.rows, a.owners);
  const std::uint8_t* code = a.codes + place.owner * a.slot_bytes;
  T* out = static_cast<T*>(a.out) + row * a.columns;
  for (std::int64_t i = threadIdx.x; i < a.columns; i += kRowThreads) {
    T sum = 0;
    for (std::int64_t m = 0; m < a.messages; ++m) {
      const std::uint8_t* message = code + m * a.message_bytes;
      const T* means = reinterpret_cast<const T*>(message) + 2 * place.place;
      const auto* signs = reinterpret_cast<const std::uint32_t*>(message + a.signs_at) + place.place * words;
      sum += means[signs[i / 32] >> (i % 32) & 1];
    }
    out[i] = sum;
  }
}

}  // namespace

CudaError encode_rows(const CudaRowCode& a, Element element, CudaStream stream) {
  if (a.rows == 0 || a.columns == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    using T = decltype(type);
    bool wide = true;
    for (const void* data : {a.gradient, a.kept, static_cast<const void*>(a.next)})
      wide = wide && wide_rows(data, a.columns, a.columns, sizeof(T));
    wide ? launch_rows<T, kWide<T>>(a, stream) : launch_rows<T, 1>(a, stream);
    return launched();
  });
}

CudaError decode_rows(const CudaRowDecode& a, Element element, CudaStream stream) {
  if (a.rows == 0 || a.columns == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    decode_rows_kernel<decltype(type)><<<static_cast<unsigned>(a.rows), kRowThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
