// kernels/cuda_plugin/block_attention_wgmma.cuh -- block-sparse attention on Hopper's tensor cores: the forward pass.
//
// A block of threads is two warp groups over a tile of eight chunks of 16 queries (sparse/chunk_tiles.h), a chunk a
// warp. Its list's keys and values are gathered into shared memory, kN at a time, and multiplied densely; bits and the
// mask only choose which scores count. While a tile's scores become probabilities, the product of the last ones with
// their values is under way (FlashAttention-3's overlap within a warp group), and the next rows are being copied.
// Depends on: wgmma.cuh, sparse/cuda_blocks.h.
#pragma once

#include "trireme/kernels/cuda_plugin/wgmma.cuh"
#include "trireme/kernels/sparse/cuda_blocks.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kGroupThreads = 256, kTileRows = 128, kChunk = 16, kRowGroups = kTileRows / kChunk;
constexpr float kLog2Of2E = 1.4426950408889634f, kLnOf2 = 0.6931471805599453f;

/// Rows of a head of a tensor.
template <typename T>
struct HeadRows {
  const T* data;
  std::int64_t stride;
  __device__ HeadRows(const void* tensor, const std::int64_t (&strides)[3], std::int64_t batch, std::int64_t head)
      : data(static_cast<const T*>(tensor) + batch * strides[0] + head * strides[2]), stride(strides[1]) {}
};

/// Copies gathered chunks of rows; which, a thread learns one tile ahead.
template <typename T, int kD, int kRows>
class Gather {
 public:
  static constexpr int kBytes = kRows * kD * 2;

  /// Numbers of the chunks that this thread's rows are of: entries of a list, or a tile's chunks.
  __device__ __forceinline__ void look(const std::int32_t* chunks, int shift) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) first_[i] = (__ldg(chunks + row(i) / kChunk) >> shift) * kChunk;
  }
  __device__ __forceinline__ void copy(std::uint32_t to, const HeadRows<T>& from, std::int64_t tokens) const {
    const int chunk = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = first_[i] + row(i) % kChunk;
      const bool there = first_[i] >= 0 && at < tokens;
      copy16(to + swizzled<kRows>(row(i), chunk), from.data + (there ? at : 0) * from.stride + chunk * 8, there);
    }
  }

 private:
  static constexpr int kPieces = kD / 8, kRowsAtOnce = kGroupThreads / kPieces, kSteps = kRows / kRowsAtOnce;
  __device__ __forceinline__ static int row(int step) {
    return static_cast<int>(threadIdx.x) / kPieces + step * kRowsAtOnce;
  }
  int first_[kSteps];
};

/// Scores [64, kN] of a warp group: its rows of `a` (matrix of kTileRows rows) times the rows of `b`.
template <typename T, int kD, int kN>
__device__ __forceinline__ void scores_of(float (&s)[kN / 2], const unsigned char* a, const unsigned char* b) {
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    wgmma_shared<T, kN>(s, panel_descriptor(a + k / 4 * (kTileRows * kRowBytes) + k % 4 * 32),
                        panel_descriptor(b + k / 4 * (kN * kRowBytes) + k % 4 * 32), k > 0);
  }
}

/// sums [64, kD] += p [64, kN] times `b` [kN, kD].
template <typename T, int kD, int kN>
__device__ __forceinline__ void add_product(float (&sums)[kD / 2], const std::uint32_t (&p)[kN / 16][4],
                                            const unsigned char* b) {
#pragma unroll
  for (int k = 0; k < kN / 16; ++k)
    wgmma_registers<T, kD>(sums, p[k], panel_descriptor(b + k * 16 * kRowBytes, kN * kRowBytes));
}

template <typename T, int kN>
__device__ __forceinline__ void round_products(std::uint32_t (&p)[kN / 16][4], const float (&s)[kN / 2]) {
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = two_words<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

/// Which pairs of this warp's chunk of rows and a tile's gathered chunks count. Rows are queries or, kTurned, keys.
template <bool kTurned>
struct PairsOf {
  const std::int32_t* documents;  // of this row of the batch; null: none
  int tokens, first;              // first: the chunk's first row
  bool causal;
  int entry = 0, next = 0;  // lane j: the list's entry of gathered chunk j

  template <int kN>
  __device__ __forceinline__ void look(const std::int32_t* list) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    next = lane < kN / kChunk ? __ldg(list + lane) : -256;
  }
  /// All pairs count.
  template <int kN>
  __device__ __forceinline__ bool whole() const {
    const int warp = static_cast<int>(threadIdx.x) / 32, other = (entry >> 8) * kChunk;
    const bool before = kTurned ? other >= first + kChunk - 1 : other + kChunk - 1 <= first;
    const bool good = (entry >> warp & 1) != 0 && other + kChunk <= tokens && (!causal || before);
    constexpr unsigned kAll = kN / kChunk == 32 ? ~0u : (1u << kN / kChunk) - 1;
    return documents == nullptr && (__ballot_sync(~0u, good) & kAll) == kAll;
  }
  /// Calls set(i) for the numbers i of a warp's [16, kN] that do not count.
  template <int kN, typename Set>
  __device__ __forceinline__ void for_hidden(const Set& set) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    int row_document[2] = {0, 0};
    if (documents != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + half * 8;
        row_document[half] = row < tokens ? documents[row] : -1;
      }
    }
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int of = __shfl_sync(~0u, entry, j / 2);
      const int column = (of >> 8) * kChunk + j % 2 * 8 + lane % 4 * 2;
      const bool met = (of >> warp & 1) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + lane / 4 + i / 2 * 8, other = column + i % 2;
        bool seen = met && other < tokens && row < tokens;
        if (causal) seen = seen && (kTurned ? row <= other : other <= row);
        if (documents != nullptr && seen) seen = documents[other] == row_document[i / 2];
        if (!seen) set(4 * j + i);
      }
    }
  }
};

template <bool kTurned>
__device__ __forceinline__ PairsOf<kTurned> pairs_of(const CudaAttention& c, std::int64_t batch, int chunk) {
  return {c.query_documents == nullptr ? nullptr : c.query_documents + batch * c.query_document_stride,
          static_cast<int>(c.queries), chunk < 0 ? static_cast<int>(c.queries) : chunk * kChunk, c.causal};
}

/// A warp's rows of a result, times a factor for each of the thread's two.
template <typename T, int kD>
__device__ __forceinline__ void write_chunk(void* data, const std::int64_t (&strides)[3], std::int64_t batch,
                                            std::int64_t head, int first, std::int64_t rows,
                                            const float (&sums)[kD / 2], float upper, float lower) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  T* to = static_cast<T*>(data) + batch * strides[0] + head * strides[2] + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + lane / 4 + half * 8;
    if (row >= rows) continue;
    const float factor = half == 0 ? upper : lower;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      *reinterpret_cast<std::uint32_t*>(to + row * strides[1] + n * 8) =
          two_words<T>(sums[4 * n + 2 * half] * factor, sums[4 * n + 2 * half + 1] * factor);
  }
}

/// A row's largest score and sum of powers so far, for each of a thread's two rows.
struct RunningSoftmax {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, shrink[2] = {1, 1};

  /// Scores become powers of two; what was summed before shrinks by `shrink`.
  template <int kN>
  __device__ __forceinline__ void take(float (&s)[kN / 2], float scale) {
    float top[2] = {most[0], most[1]};
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 2));
      const float base = top[half] == -INFINITY ? 0.0f : top[half] * scale;
      shrink[half] = exp2_fast(most[half] * scale - base);
      most[half] = top[half];
      top[half] = base;
      sum[half] *= shrink[half];
    }
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      s[i] = exp2_fast(s[i] * scale - top[i / 2 % 2]);
      sum[i / 2 % 2] += s[i];
    }
  }
};

template <typename T, int kD, int kN>
__global__ void __launch_bounds__(kGroupThreads, kD + kN == 128 ? 2 : 1)
    wgmma_forward(const CudaAttention c, const CudaChunkTiles lists) {
#ifdef TRIREME_WGMMA
  extern __shared__ __align__(1024) unsigned char panels[];
  unsigned char* const q = panels;
  unsigned char* const keys = q + kTileRows * kD * 2;  // two of them
  unsigned char* const values = keys + 2 * Gather<T, kD, kN>::kBytes;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t head = blockIdx.y, batch = blockIdx.z, key_head = head / (c.heads / c.key_heads);
  const std::int64_t tile = head * lists.tiles + blockIdx.x;
  const std::int32_t* const list = lists.entries + lists.begin[tile];
  const int count = (lists.begin[tile + 1] - lists.begin[tile]) * kChunk / kN;
  auto pairs = pairs_of<false>(c, batch, lists.chunks[tile * kRowGroups + warp]);
  const HeadRows<T> k_rows(c.k, c.k_strides, batch, key_head), v_rows(c.v, c.v_strides, batch, key_head);
  const unsigned char* const my_q = q + threadIdx.x / 128 * (64 * kRowBytes);

  Gather<T, kD, kN> key_copies, value_copies, coming;
  const auto fetch_keys = [&](int n) {
    key_copies.copy(shared_offset(keys + n % 2 * Gather<T, kD, kN>::kBytes), k_rows, c.keys);
  };
  const auto fetch_values = [&](int n) {
    value_copies.copy(shared_offset(values + n % 2 * Gather<T, kD, kN>::kBytes), v_rows, c.keys);
  };
  const auto look = [&](int n) {
    if (n < count) coming.look(list + n * (kN / kChunk), 8);
  };
  {
    Gather<T, kD, kTileRows> query_copies;
    query_copies.look(lists.chunks + tile * kRowGroups, 0);
    query_copies.copy(shared_offset(q), HeadRows<T>(c.q, c.q_strides, batch, head), c.queries);
  }
  float out[kD / 2] = {}, s[kN / 2];
  std::uint32_t p[kN / 16][4];
  RunningSoftmax softmax;
  const float scale = static_cast<float>(c.scale) * kLog2Of2E;
  const auto take_scores = [&](int coming_tile) {
    hold(s);
    pairs.entry = pairs.next;
    if (coming_tile < count) pairs.template look<kN>(list + coming_tile * (kN / kChunk));
    if (!pairs.template whole<kN>()) pairs.template for_hidden<kN>([&](int i) { s[i] = -INFINITY; });
    softmax.take<kN>(s, scale);
  };
  if (count > 0) {
    key_copies.look(list, 8);
    fetch_keys(0);
    copies_commit();
    look(1);
    pairs.template look<kN>(list);
    value_copies = key_copies, key_copies = coming;
    copies_wait();
    __syncthreads();
    if (count > 1) fetch_keys(1);
    fetch_values(0);
    copies_commit();
    hold(s);
    wgmma_begin();
    scores_of<T, kD, kN>(s, my_q, keys);
    wgmma_commit();
    look(2);
    wgmma_wait<0>();
    take_scores(1);
    round_products<T, kN>(p, s);
    for (int n = 1; n < count; ++n) {
      value_copies = key_copies, key_copies = coming;
      copies_wait();
      __syncthreads();  // keys n and values n - 1 are here, and nobody reads keys n - 1 or values n - 2 any more
      if (n + 1 < count) fetch_keys(n + 1);
      fetch_values(n);
      copies_commit();
      hold(s);
      hold(out);
      wgmma_begin();
      scores_of<T, kD, kN>(s, my_q, keys + n % 2 * Gather<T, kD, kN>::kBytes);
      wgmma_commit();
      add_product<T, kD, kN>(out, p, values + (n - 1) % 2 * Gather<T, kD, kN>::kBytes);
      wgmma_commit();
      look(n + 2);
      wgmma_wait<1>();
      take_scores(n + 1);
      wgmma_wait<0>();
      hold(out);
#pragma unroll
      for (int i = 0; i < kD / 2; ++i) out[i] *= softmax.shrink[i / 2 % 2];
      round_products<T, kN>(p, s);
    }
    copies_wait();
    __syncthreads();
    hold(out);
    wgmma_begin();
    add_product<T, kD, kN>(out, p, values + (count - 1) % 2 * Gather<T, kD, kN>::kBytes);
    wgmma_commit();
    wgmma_wait<0>();
    hold(out);
  } else {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = softmax.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    factor[half] = sum > 0 ? 1 / sum : 0.0f;
    const std::int64_t row = pairs.first + lane / 4 + half * 8;
    if (lane % 4 == 0 && row < c.queries)
      static_cast<float*>(c.lse)[(batch * c.heads + head) * c.queries + row] =
          sum > 0 ? (softmax.most[half] * scale + log2f(sum)) * kLnOf2 : -INFINITY;
  }
  write_chunk<T, kD>(c.out, c.out_strides, batch, head, pairs.first, c.queries, out, factor[0], factor[1]);
#else
  __trap();  // wgmma exists on sm_90a alone
#endif
}

template <typename Kernel>
CudaError launch_chunk_tiles(Kernel kernel, std::int64_t heads, int bytes, CudaStream stream, const CudaAttention& c,
                             const CudaChunkTiles& lists) {
  if (CudaError error = allow_shared(kernel, static_cast<std::size_t>(bytes)); error != nullptr) return error;
  const dim3 grid(static_cast<unsigned>(lists.tiles), static_cast<unsigned>(heads), static_cast<unsigned>(c.batch));
  kernel<<<grid, kGroupThreads, bytes, to_stream(stream)>>>(c, lists);
  return launched();
}

template <typename T, int kD, int kN>
CudaError wgmma_forward_call(const CudaAttention& c, const CudaChunkTiles& lists, CudaStream stream) {
  const int bytes = kTileRows * kD * 2 + 4 * Gather<T, kD, kN>::kBytes;
  return launch_chunk_tiles(wgmma_forward<T, kD, kN>, c.heads, bytes, stream, c, lists);
}

}  // namespace
}  // namespace trireme::kernels::gpu
