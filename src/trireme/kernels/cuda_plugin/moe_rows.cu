// Rows of tokens on their way to experts and back: a warp takes a token, 16 bytes a lane at a time. Sums are in a fixed
// order, without atomics.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/moe_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kRowThreads = 256, kTokens = kRowThreads / 32;
constexpr unsigned kLanes = 0xffffffffu;

/// Words of kVec bytes; each is read once and written top_k times.
template <typename Word>
__global__ void __launch_bounds__(kRowThreads) permute(const CudaTokenRows c, std::int64_t words) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTokens + threadIdx.x / 32;
  if (token >= c.tokens) return;
  const int lane = threadIdx.x % 32, k = static_cast<int>(c.top_k);
  const Word* from = static_cast<const Word*>(c.from) + token * words;
  const int mine = lane < k ? c.row_of[token * k + lane] : -1;
  constexpr int kAhead = 4;
  for (std::int64_t first = lane; first - lane < words; first += 32 * kAhead) {
    Word held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + 32 * i < words) held[i] = from[first + 32 * i];
    }
    for (int j = 0; j < k; ++j) {
      const int row = __shfl_sync(kLanes, mine, j);
      if (row < 0) continue;
      Word* to = static_cast<Word*>(c.to) + row * words;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + 32 * i < words) to[first + 32 * i] = held[i];
      }
    }
  }
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kRowThreads) combine(const CudaTokenRows c) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTokens + threadIdx.x / 32;
  if (token >= c.tokens) return;
  const int lane = threadIdx.x % 32, k = static_cast<int>(c.top_k);
  const T* from = static_cast<const T*>(c.from);
  const int mine = lane < k ? c.row_of[token * k + lane] : -1;
  constexpr int kAhead = 4;
  for (std::int64_t first = 0; first < c.width; first += 32 * kVec) {
    const std::int64_t column = first + lane * kVec;
    const bool inside = column < c.width;
    Sum<T> sum[kVec] = {};
    for (int j = 0; j < k; j += kAhead) {
      Raw<T, kVec> held[kAhead];
      bool there[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int row = __shfl_sync(kLanes, mine, (j + i) % 32);
        there[i] = inside && j + i < k && row >= 0;
        if (there[i]) held[i] = load_raw<kVec>(from + row * c.width + column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (!there[i]) continue;
#pragma unroll
        for (int v = 0; v < kVec; ++v) sum[v] += held[i][v];
      }
    }
    if (!inside) continue;
    const std::int64_t at = token * c.width + column;
    if (c.add != nullptr) {
      Sum<T> more[kVec];
      load<kVec>(static_cast<const T*>(c.add) + at, more);
#pragma unroll
      for (int v = 0; v < kVec; ++v) sum[v] += more[v];
    }
    if (c.add_wide != nullptr) {
      Sum<T> more[kVec];
      load<kVec>(static_cast<const Sum<T>*>(c.add_wide) + at, more);
#pragma unroll
      for (int v = 0; v < kVec; ++v) sum[v] += more[v];
    }
    store<kVec>(static_cast<T*>(c.to) + at, sum);
  }
}

/// Rows of any width, number by number.
template <typename T>
__global__ void __launch_bounds__(kRowThreads) combine_narrow(const CudaTokenRows c) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kTokens + threadIdx.x / 32;
  if (token >= c.tokens) return;
  const T* from = static_cast<const T*>(c.from);
  for (std::int64_t column = threadIdx.x % 32; column < c.width; column += 32) {
    Sum<T> sum = 0;
    for (std::int64_t j = 0; j < c.top_k; ++j) {
      const std::int64_t row = c.row_of[token * c.top_k + j];
      if (row >= 0) sum += widen(from[row * c.width + column]);
    }
    const std::int64_t at = token * c.width + column;
    if (c.add != nullptr) sum += widen(static_cast<const T*>(c.add)[at]);
    if (c.add_wide != nullptr) sum += static_cast<const Sum<T>*>(c.add_wide)[at];
    static_cast<T*>(c.to)[at] = narrow<T>(sum);
  }
}

template <typename To>
__global__ void __launch_bounds__(256) add_groups(const CudaAddGroups c) {
  const std::int64_t group = blockIdx.y;
  const bool has_rows = c.ends[group] > (group == 0 ? 0 : c.ends[group - 1]);
  if (!has_rows && c.accumulate) return;
  const Bf16* from = static_cast<const Bf16*>(c.from) + group * c.each;
  To* to = static_cast<To*>(c.to) + group * c.each;
  constexpr int kVec = 8;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x) * kVec; i < c.each;
       i += static_cast<std::int64_t>(gridDim.x) * 256 * kVec) {
    float sum[kVec] = {};
    if (has_rows) load<kVec>(from + i, sum);
    if (c.accumulate) {
      float old[kVec];
      load<kVec>(to + i, old);
#pragma unroll
      for (int v = 0; v < kVec; ++v) sum[v] += old[v];
    }
    store<kVec>(to + i, sum);
  }
}

unsigned token_blocks(std::int64_t tokens) { return static_cast<unsigned>(divided_up(tokens, kTokens)); }

}  // namespace

CudaError moe_permute(const CudaTokenRows& c, Element element, CudaStream stream) {
  if (c.tokens == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    if (wide_rows(c.from, c.width, c.width, sizeof(T)) && wide_rows(c.to, c.width, c.width, sizeof(T))) {
      permute<uint4><<<token_blocks(c.tokens), kRowThreads, 0, to_stream(stream)>>>(c, c.width / kWide<T>);
    } else {
      permute<T><<<token_blocks(c.tokens), kRowThreads, 0, to_stream(stream)>>>(c, c.width);
    }
    return launched();
  });
}

CudaError moe_combine(const CudaTokenRows& c, Element element, CudaStream stream) {
  if (c.tokens == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_rows(c.from, c.width, c.width, sizeof(T)) && wide_rows(c.to, c.width, c.width, sizeof(T)) &&
                      wide_rows(c.add, c.width, c.width, sizeof(T)) &&
                      wide_rows(c.add_wide, c.width, c.width, sizeof(Sum<T>)) && c.top_k <= 32;
    if (wide) {
      combine<T, kWide<T>><<<token_blocks(c.tokens), kRowThreads, 0, to_stream(stream)>>>(c);
    } else {
      combine_narrow<T><<<token_blocks(c.tokens), kRowThreads, 0, to_stream(stream)>>>(c);
    }
    return launched();
  });
}

CudaError moe_add_groups(const CudaAddGroups& c, CudaStream stream) {
  if (c.groups == 0 || c.each == 0) return nullptr;
  if (c.each % 8 != 0) return "matrices of experts whose sizes are no multiples of 8";
  const std::int64_t share = divided_up(c.each, 256 * 8);
  const dim3 grid(static_cast<unsigned>(share > 1024 ? 1024 : share), static_cast<unsigned>(c.groups));
  if (c.wide) {
    add_groups<float><<<grid, 256, 0, to_stream(stream)>>>(c);
  } else {
    add_groups<Bf16><<<grid, 256, 0, to_stream(stream)>>>(c);
  }
  return launched();
}

}  // namespace trireme::kernels::gpu
