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

// ---- rows of floats whose columns come in fours, up to 16 warps' worth: all of a row is on its way at once

constexpr int kHeldPacks = 8, kHeldColumns = 32 * 4 * kHeldPacks;  // of a warp

/// Sums of four numbers over a warp, on all lanes, in ten shuffles: each step halves what a lane still adds up.
__device__ __forceinline__ void sum_four(float (&x)[4]) {
  const int lane = threadIdx.x % 32;
  const bool high = (lane & 16) != 0, odd = (lane & 8) != 0;
  const float a = (high ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, high ? x[0] : x[2], 16);
  const float b = (high ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, high ? x[1] : x[3], 16);
  float sum = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
#pragma unroll
  for (int n = 0; n < 4; ++n) x[n] = __shfl_sync(0xffffffffu, sum, 8 * n);
}

/// A row for kWarps warps, each with kHeldColumns of it. Nothing is stored before everything is loaded: a store between
/// two loads would make the second wait, as they might be of one address. Two blocks at a time: one loads while the
/// other waits for its sums.
template <int kWarps>
__global__ void __launch_bounds__(kWarps > 8 ? 32 * kWarps : kRowThreads, 2)
    encode_held_rows_kernel(const CudaRowCode a) {
  constexpr int kRows = (kWarps > 8 ? 32 * kWarps : kRowThreads) / 32 / kWarps;  // of a block
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % kWarps;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + warp / kWarps, at = row * a.columns;
  const std::int64_t first = part * kHeldColumns + lane * 4, end = row < a.rows ? a.columns : 0;
  const float *g = static_cast<const float*>(a.gradient) + at, *e = static_cast<const float*>(a.kept) + at;
  float* next = static_cast<float*>(a.next) + at;
  constexpr int kAtOnce = kWarps > 8 ? kHeldPacks / 2 : kHeldPacks;  // of which both terms are in registers
  Pack<float, 4> c[kHeldPacks], kept[kAtOnce];
  float sums[4] = {};  // of those >= 0, of the others, their number, squares
  std::uint32_t ups = 0;
#pragma unroll
  for (int from = 0; from < kHeldPacks; from += kAtOnce) {
#pragma unroll
    for (int r = from; r < from + kAtOnce; ++r) {
      if (first + 128 * r >= end) continue;
      c[r] = load_pack<4>(g + first + 128 * r), kept[r - from] = load_pack<4>(e + first + 128 * r);
    }
#pragma unroll
    for (int r = from; r < from + kAtOnce; ++r) {
      if (first + 128 * r >= end) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float value = c[r].v[k] + kept[r - from].v[k];
        const bool up = value >= 0;
        c[r].v[k] = value;
        sums[0] += up ? value : 0.0F;
        sums[1] += up ? 0.0F : value;
        sums[3] += value * value;
        ups |= (up ? 1u : 0u) << (4 * r + k);
      }
    }
  }
  sums[2] = static_cast<float>(__popc(ups));
  sum_four(sums);
  double total[4] = {sums[0], sums[1], sums[2], sums[3]};
  if constexpr (kWarps > 1) {
    __shared__ float4 parts[kRows * kWarps];
    if (lane == 0) parts[warp] = {sums[0], sums[1], sums[2], sums[3]};
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) total[n] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 x = parts[warp / kWarps * kWarps + w];
      total[0] += x.x, total[1] += x.y, total[2] += x.z, total[3] += x.w;
    }
  }
  const double downs = static_cast<double>(a.columns) - total[2];
  const float down = static_cast<float>(downs > 0 ? total[1] / downs : 0),
              up = static_cast<float>(total[2] > 0 ? total[0] / total[2] : 0);
#pragma unroll
  for (int r = 0; r < kHeldPacks; ++r) {
    if (first + 128 * r >= end) continue;
    float rest[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) rest[k] = c[r].v[k] - (c[r].v[k] >= 0 ? up : down);
    store<4>(next + first + 128 * r, rest);
  }
  const std::uint32_t word = transpose_nibbles(ups);  // of pack lane % 8
  if (row >= a.rows) return;
  const OwnedPlace place = owned_place(row, a.rows, a.owners);
  std::uint8_t* code = a.codes + place.owner * a.slot_bytes;
  const std::int64_t words = divided_up(a.columns, 32),
                     number = part * (kHeldColumns / 32) + lane % 8 * 4 + lane / 8;  // of this word in the row
  if (number < words) reinterpret_cast<std::uint32_t*>(code + a.signs_at)[place.place * words + number] = word;
  if (lane != 0 || part != 0) return;
  float* means = reinterpret_cast<float*>(code) + 2 * place.place;
  means[0] = down;
  means[1] = up;
  if (a.errors != nullptr) {
    const double said = total[2] * static_cast<double>(up) * static_cast<double>(up) +
                        downs * static_cast<double>(down) * static_cast<double>(down);
    a.errors[2 * row] = fmax(0.0, total[3] - said);
    a.errors[2 * row + 1] = total[3];
  }
}

template <int kWarps>
void launch_held_rows(const CudaRowCode& a, CudaStream stream) {
  constexpr int kThreads = kWarps > 8 ? 32 * kWarps : kRowThreads, kRows = kThreads / 32 / kWarps;
  encode_held_rows_kernel<kWarps>
      <<<static_cast<unsigned>(divided_up(a.rows, kRows)), kThreads, 0, to_stream(stream)>>>(a);
}

template <typename T, int kVec>
void launch_rows(const CudaRowCode& a, CudaStream stream) {
  if constexpr (sizeof(T) == 4 && kVec == 4) {
    const std::int64_t warps = divided_up(a.columns, kHeldColumns);
    if (warps <= 1) return launch_held_rows<1>(a, stream);
    if (warps <= 2) return launch_held_rows<2>(a, stream);
    if (warps <= 4) return launch_held_rows<4>(a, stream);
    if (warps <= 8) return launch_held_rows<8>(a, stream);
    if (warps <= 16) return launch_held_rows<16>(a, stream);
  }
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

template <typename T, int kVec>
__global__ void __launch_bounds__(kRowThreads) decode_rows_kernel(const CudaRowDecode a) {
  const std::int64_t row = blockIdx.x, words = divided_up(a.columns, 32);
  const OwnedPlace place = owned_place(row, a.rows, a.owners);
  const std::uint8_t* code = a.codes + place.owner * a.slot_bytes;
  T* out = static_cast<T*>(a.out) + row * a.columns;
  for (std::int64_t i = threadIdx.x * kVec; i < a.columns; i += kRowThreads * kVec) {
    T sum[kVec] = {};
    for (std::int64_t m = 0; m < a.messages; ++m) {
      const std::uint8_t* message = code + m * a.message_bytes;
      const T* means = reinterpret_cast<const T*>(message) + 2 * place.place;
      const auto* signs = reinterpret_cast<const std::uint32_t*>(message + a.signs_at) + place.place * words;
      const std::uint32_t word = signs[i / 32] >> (i % 32);
      const T down = means[0], up = means[1];
#pragma unroll
      for (int k = 0; k < kVec; ++k) sum[k] += (word >> k & 1) != 0 ? up : down;
    }
    store<kVec>(out + i, sum);
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
    using T = decltype(type);
    const auto grid = static_cast<unsigned>(a.rows);
    wide_rows(a.out, a.columns, a.columns, sizeof(T))
        ? decode_rows_kernel<T, kWide<T>><<<grid, kRowThreads, 0, to_stream(stream)>>>(a)
        : decode_rows_kernel<T, 1><<<grid, kRowThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
