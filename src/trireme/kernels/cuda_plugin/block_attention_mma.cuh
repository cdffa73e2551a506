// kernels/cuda_plugin/block_attention_mma.cuh -- block-sparse attention on tensor cores: bfloat16 and half, heads of 64
// and 128.
//
// FlashAttention-2's loops over tiles of 64 x 64 that a list names (sparse/cuda_blocks.h), each with 16 bits for its
// blocks of 16 x 16; what a bit rules out is not multiplied. Four warps share a tile, 16 rows each. Two products make
// up everything: rows times a tile's rows (scores, dP), and what came of them times a tile (outputs, gradients).
// Backward computes scores twice, once for dq and once for dk and dv: nothing is added atomically, so bits repeat.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/sparse/cuda_blocks.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kSide = 64, kThreads = 128, kBlocksN = kSide / 8;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int kD>
struct TileShape {
  static constexpr int kStride = kD + 8;  // elements: rows lie in different banks
  static constexpr int kElements = kSide * kStride;
};

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

template <bool kTranspose>
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const void* at) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at)));
  }
}

template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (__is_same(T, Bf16)) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Rows [first, first + 64) of a head into shared memory; those behind `rows` become zeros. Not waited for.
template <typename T, int kD>
__device__ __forceinline__ void fetch_tile(T* to, const void* data, const std::int64_t (&strides)[3],
                                           std::int64_t batch, std::int64_t head, std::int64_t first,
                                           std::int64_t rows) {
  constexpr int kChunks = kD / 8;
  const T* from = static_cast<const T*>(data) + batch * strides[0] + head * strides[2];
#pragma unroll
  for (int i = threadIdx.x; i < kSide * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool there = first + row < rows;
    const T* source = from + (there ? first + row : 0) * strides[1] + column;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     shared_address(to + row * TileShape<kD>::kStride + column)),
                 "l"(source), "r"(there ? 16 : 0)
                 : "memory");
  }
}
__device__ __forceinline__ void end_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_fetched() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// c [16, 64] = this warp's 16 rows of `a` times the rows of `b`; groups of 16 columns whose bit is 0 are left out.
template <typename T, int kD>
__device__ __forceinline__ void times_rows(float (&c)[kBlocksN][4], const T* a, const T* b, unsigned bits) {
  constexpr int kStride = TileShape<kD>::kStride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int j = 0; j < kBlocksN; ++j) c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
#pragma unroll
  for (int k = 0; k < kD; k += 32) {
    std::uint32_t left[4], right[4];
    const T* row = a + (warp * 16 + lane / 8 % 2 * 8 + lane % 8) * kStride + k + lane / 16 * 8;
    load_matrices<false>(left, row);
    load_matrices<false>(right, row + 16);
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
      if ((bits >> (j / 2) & 1) == 0) continue;
      std::uint32_t m[4];
      load_matrices<false>(m, b + (j * 8 + lane % 8) * kStride + k + lane / 8 * 8);
      multiply_add<T>(c[j], left, m[0], m[1]);
      multiply_add<T>(c[j], right, m[2], m[3]);
    }
  }
}

/// c [16, kD] += p [16, 64] times `b` [64, kD]; rows of b whose bit is 0 are left out.
template <typename T, int kD>
__device__ __forceinline__ void times_tile(float (&c)[kD / 8][4], const float (&p)[kBlocksN][4], const T* b,
                                           unsigned bits) {
  constexpr int kStride = TileShape<kD>::kStride;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kSide / 16; ++k) {
    if ((bits >> k & 1) == 0) continue;
    const std::uint32_t a[4] = {two_words<T>(p[2 * k][0], p[2 * k][1]), two_words<T>(p[2 * k][2], p[2 * k][3]),
                                two_words<T>(p[2 * k + 1][0], p[2 * k + 1][1]),
                                two_words<T>(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kD; n += 16) {
      std::uint32_t m[4];
      load_matrices<true>(m, b + (k * 16 + lane / 8 % 2 * 8 + lane % 8) * kStride + n + lane / 16 * 8);
      multiply_add<T>(c[n / 8], a, m[0], m[1]);
      multiply_add<T>(c[n / 8 + 1], a, m[2], m[3]);
    }
  }
}

/// Whether a query sees a key, blocks aside.
struct PairMask {
  const std::int32_t* documents;  // of this row of the batch; null: none
  std::int64_t tokens;
  bool causal;
  __device__ bool sees(std::int64_t query, std::int64_t key) const {
    if (query >= tokens || key >= tokens || (causal && key > query)) return false;
    return documents == nullptr || documents[query] == documents[key];
  }
  /// All pairs of two tiles are seen.
  __device__ bool whole(std::int64_t query, std::int64_t key) const {
    return documents == nullptr && query + kSide <= tokens && key + kSide <= tokens &&
           (!causal || key + kSide <= query + 1);
  }
};
__device__ __forceinline__ PairMask pair_mask(const CudaAttention& c, std::int64_t batch) {
  return {c.query_documents == nullptr ? nullptr : c.query_documents + batch * c.query_document_stride, c.queries,
          c.causal};
}

/// Rows of a warp's result, times a factor for each of the thread's two rows.
template <typename T, int kD>
__device__ __forceinline__ void write_rows(void* data, const std::int64_t (&strides)[3], std::int64_t batch,
                                           std::int64_t head, std::int64_t first, std::int64_t rows,
                                           const float (&c)[kD / 8][4], float upper, float lower) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* to = static_cast<T*>(data) + batch * strides[0] + head * strides[2] + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + warp * 16 + lane / 4 + half * 8;
    if (row >= rows) continue;
    const float factor = half == 0 ? upper : lower;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      *reinterpret_cast<std::uint32_t*>(to + row * strides[1] + n * 8) =
          two_words<T>(c[n][2 * half] * factor, c[n][2 * half + 1] * factor);
  }
}

/// Bits of the blocks in this warp's rows of a tile; by columns: of the blocks in its columns.
__device__ __forceinline__ unsigned row_bits(unsigned mask) { return mask >> (threadIdx.x / 32 * 4) & 15; }
__device__ __forceinline__ unsigned column_bits(unsigned mask) {
  const unsigned of = mask >> (threadIdx.x / 32);
  return (of & 1) | (of >> 3 & 2) | (of >> 6 & 4) | (of >> 9 & 8);
}

template <typename T, int kD>
__global__ void __launch_bounds__(kThreads) mma_forward(const CudaAttention c, const CudaBlocks lists) {
  extern __shared__ __align__(16) unsigned char shared[];
  T* const q = reinterpret_cast<T*>(shared);
  T* const kv = q + TileShape<kD>::kElements;  // keys and values, twice
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, batch = blockIdx.z, first = tile * kSide;
  const std::int64_t key_head = head / (c.heads / c.key_heads);
  const std::int32_t* const begin = lists.row_tile_begin + head * lists.tile_rows + tile;
  const std::int32_t* const tiles = lists.row_tiles + 2 * begin[0];
  const int count = begin[1] - begin[0];
  const PairMask mask = pair_mask(c, batch);
  const auto fetch = [&](int n) {
    T* const to = kv + n % 2 * 2 * TileShape<kD>::kElements;
    fetch_tile<T, kD>(to, c.k, c.k_strides, batch, key_head, tiles[2 * n] * std::int64_t{kSide}, c.keys);
    fetch_tile<T, kD>(to + TileShape<kD>::kElements, c.v, c.v_strides, batch, key_head,
                      tiles[2 * n] * std::int64_t{kSide}, c.keys);
  };
  fetch_tile<T, kD>(q, c.q, c.q_strides, batch, head, first, c.queries);
  if (count > 0) fetch(0);
  end_fetch();
  const float scale = static_cast<float>(c.scale) * kLog2e;
  float out[kD / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int n = 0; n < count; ++n) {
    if (n + 1 < count) fetch(n + 1);
    end_fetch();
    wait_fetched<1>();
    __syncthreads();
    const T* const keys = kv + n % 2 * 2 * TileShape<kD>::kElements;
    const std::int64_t key = tiles[2 * n] * std::int64_t{kSide};
    const unsigned bits = row_bits(static_cast<unsigned>(tiles[2 * n + 1]));
    if (bits != 0 && !(c.causal && key > first + warp * 16 + 15)) {
      float s[kBlocksN][4];
      times_rows<T, kD>(s, q, keys, bits);
      const bool whole = bits == 15 && mask.whole(first, key);
      float top[2] = {most[0], most[1]};
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[j][i] *= scale;
          if (!whole) {
            const bool seen = (bits >> (j / 2) & 1) != 0 &&
                              mask.sees(first + warp * 16 + lane / 4 + i / 2 * 8, key + j * 8 + lane % 4 * 2 + i % 2);
            if (!seen) s[j][i] = -INFINITY;
          }
          top[i / 2] = fmaxf(top[i / 2], s[j][i]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
        const float base = top[half] == -INFINITY ? 0.0f : top[half];
        const float shrink = exp2f(most[half] - base);
        most[half] = top[half];
        top[half] = base;
        sum[half] *= shrink;
#pragma unroll
        for (int d = 0; d < kD / 8; ++d) out[d][2 * half] *= shrink, out[d][2 * half + 1] *= shrink;
      }
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[j][i] = exp2f(s[j][i] - top[i / 2]);
          sum[i / 2] += s[j][i];
        }
      }
      times_tile<T, kD>(out, s, keys + TileShape<kD>::kElements, bits);
    }
    __syncthreads();
  }
  wait_fetched<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    const std::int64_t row = first + warp * 16 + lane / 4 + half * 8;
    if (lane % 4 == 0 && row < c.queries)
      static_cast<float*>(c.lse)[(batch * c.heads + head) * c.queries + row] =
          sum[half] > 0 ? (most[half] + log2f(sum[half])) * kLn2 : -INFINITY;
  }
  write_rows<T, kD>(c.out, c.out_strides, batch, head, first, c.queries, out, sum[0] > 0 ? 1 / sum[0] : 0.0f,
                    sum[1] > 0 ? 1 / sum[1] : 0.0f);
}

/// delta = rowsum(dout * out), a warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) mma_delta(const CudaAttention c) {
  const std::int64_t task = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (task >= c.batch * c.heads * c.queries) return;
  const std::int64_t row = task % c.queries, head = task / c.queries % c.heads, batch = task / c.queries / c.heads;
  const T* dout =
      static_cast<const T*>(c.dout) + batch * c.dout_strides[0] + row * c.dout_strides[1] + head * c.dout_strides[2];
  const T* out =
      static_cast<const T*>(c.out_read) + batch * c.out_strides[0] + row * c.out_strides[1] + head * c.out_strides[2];
  float sum = 0;
  for (int d = threadIdx.x % 32; d < c.head_dim; d += 32) sum += widen(dout[d]) * widen(out[d]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) static_cast<float*>(c.delta)[task] = sum;
}

template <typename T, int kD>
__global__ void __launch_bounds__(kThreads) mma_backward_queries(const CudaAttention c, const CudaBlocks lists) {
  extern __shared__ __align__(16) unsigned char shared[];
  T* const q = reinterpret_cast<T*>(shared);
  T* const dout = q + TileShape<kD>::kElements;
  T* const kv = dout + TileShape<kD>::kElements;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, batch = blockIdx.z, first = tile * kSide;
  const std::int64_t key_head = head / (c.heads / c.key_heads);
  const std::int32_t* const begin = lists.row_tile_begin + head * lists.tile_rows + tile;
  const std::int32_t* const tiles = lists.row_tiles + 2 * begin[0];
  const int count = begin[1] - begin[0];
  const PairMask mask = pair_mask(c, batch);
  const auto fetch = [&](int n) {
    T* const to = kv + n % 2 * 2 * TileShape<kD>::kElements;
    fetch_tile<T, kD>(to, c.k, c.k_strides, batch, key_head, tiles[2 * n] * std::int64_t{kSide}, c.keys);
    fetch_tile<T, kD>(to + TileShape<kD>::kElements, c.v, c.v_strides, batch, key_head,
                      tiles[2 * n] * std::int64_t{kSide}, c.keys);
  };
  fetch_tile<T, kD>(q, c.q, c.q_strides, batch, head, first, c.queries);
  fetch_tile<T, kD>(dout, c.dout, c.dout_strides, batch, head, first, c.queries);
  if (count > 0) fetch(0);
  end_fetch();
  const float scale = static_cast<float>(c.scale) * kLog2e;
  float lse[2] = {0, 0}, delta[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + warp * 16 + lane / 4 + half * 8;
    if (row >= c.queries) continue;
    lse[half] = static_cast<const float*>(c.lse)[(batch * c.heads + head) * c.queries + row] * kLog2e;
    delta[half] = static_cast<const float*>(c.delta)[(batch * c.heads + head) * c.queries + row];
  }
  float dq[kD / 8][4] = {};
  for (int n = 0; n < count; ++n) {
    if (n + 1 < count) fetch(n + 1);
    end_fetch();
    wait_fetched<1>();
    __syncthreads();
    const T* const keys = kv + n % 2 * 2 * TileShape<kD>::kElements;
    const std::int64_t key = tiles[2 * n] * std::int64_t{kSide};
    const unsigned bits = row_bits(static_cast<unsigned>(tiles[2 * n + 1]));
    if (bits != 0 && !(c.causal && key > first + warp * 16 + 15)) {
      float s[kBlocksN][4], dp[kBlocksN][4];
      times_rows<T, kD>(s, q, keys, bits);
      times_rows<T, kD>(dp, dout, keys + TileShape<kD>::kElements, bits);
      const bool whole = bits == 15 && mask.whole(first, key);
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool seen = whole || ((bits >> (j / 2) & 1) != 0 && mask.sees(first + warp * 16 + lane / 4 + i / 2 * 8,
                                                                              key + j * 8 + lane % 4 * 2 + i % 2));
          s[j][i] = seen ? exp2f(s[j][i] * scale - lse[i / 2]) * (dp[j][i] - delta[i / 2]) : 0.0f;
        }
      }
      times_tile<T, kD>(dq, s, keys, bits);
    }
    __syncthreads();
  }
  wait_fetched<0>();
  const auto factor = static_cast<float>(c.scale);
  write_rows<T, kD>(c.dq, c.dq_strides, batch, head, first, c.queries, dq, factor, factor);
}

template <typename T, int kD>
__global__ void __launch_bounds__(kThreads) mma_backward_keys(const CudaAttention c, const CudaBlocks lists) {
  extern __shared__ __align__(16) unsigned char shared[];
  T* const k = reinterpret_cast<T*>(shared);
  T* const v = k + TileShape<kD>::kElements;
  T* const qd = v + TileShape<kD>::kElements;  // queries and dout, twice
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tile = blockIdx.x, key_head = blockIdx.y, batch = blockIdx.z, first = tile * kSide;
  const std::int64_t group = c.heads / c.key_heads;
  const PairMask mask = pair_mask(c, batch);
  fetch_tile<T, kD>(k, c.k, c.k_strides, batch, key_head, first, c.keys);
  fetch_tile<T, kD>(v, c.v, c.v_strides, batch, key_head, first, c.keys);
  end_fetch();
  const float scale = static_cast<float>(c.scale) * kLog2e;
  float dk[kD / 8][4] = {}, dv[kD / 8][4] = {};
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const std::int32_t* const begin = lists.column_tile_begin + head * lists.tile_rows + tile;
    const std::int32_t* const tiles = lists.column_tiles + 2 * begin[0];
    const int count = begin[1] - begin[0];
    const float* const all_lse = static_cast<const float*>(c.lse) + (batch * c.heads + head) * c.queries;
    const float* const all_delta = static_cast<const float*>(c.delta) + (batch * c.heads + head) * c.queries;
    const auto fetch = [&](int n) {
      T* const to = qd + n % 2 * 2 * TileShape<kD>::kElements;
      fetch_tile<T, kD>(to, c.q, c.q_strides, batch, head, tiles[2 * n] * std::int64_t{kSide}, c.queries);
      fetch_tile<T, kD>(to + TileShape<kD>::kElements, c.dout, c.dout_strides, batch, head,
                        tiles[2 * n] * std::int64_t{kSide}, c.queries);
    };
    if (count > 0) fetch(0);
    end_fetch();
    for (int n = 0; n < count; ++n) {
      if (n + 1 < count) fetch(n + 1);
      end_fetch();
      wait_fetched<1>();
      __syncthreads();
      const T* const queries = qd + n % 2 * 2 * TileShape<kD>::kElements;
      const std::int64_t query = tiles[2 * n] * std::int64_t{kSide};
      const unsigned bits = column_bits(static_cast<unsigned>(tiles[2 * n + 1]));
      if (bits != 0 && !(c.causal && first + warp * 16 > query + kSide - 1)) {
        float s[kBlocksN][4], dp[kBlocksN][4];  // by keys and queries
        times_rows<T, kD>(s, k, queries, bits);
        times_rows<T, kD>(dp, v, queries + TileShape<kD>::kElements, bits);
        const bool whole = bits == 15 && mask.whole(query, first);
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const std::int64_t column = query + j * 8 + lane % 4 * 2 + i % 2;
            const bool seen =
                whole || ((bits >> (j / 2) & 1) != 0 && mask.sees(column, first + warp * 16 + lane / 4 + i / 2 * 8));
            const float p = seen ? exp2f(s[j][i] * scale - all_lse[seen ? column : 0] * kLog2e) : 0.0f;
            s[j][i] = p;
            dp[j][i] = seen ? p * (dp[j][i] - all_delta[column]) : 0.0f;
          }
        }
        times_tile<T, kD>(dv, s, queries + TileShape<kD>::kElements, bits);
        times_tile<T, kD>(dk, dp, queries, bits);
      }
      __syncthreads();
    }
    wait_fetched<0>();
    __syncthreads();
  }
  wait_fetched<0>();
  const auto factor = static_cast<float>(c.scale);
  write_rows<T, kD>(c.dk, c.dk_strides, batch, key_head, first, c.keys, dk, factor, factor);
  write_rows<T, kD>(c.dv, c.dv_strides, batch, key_head, first, c.keys, dv, 1.0f, 1.0f);
}

/// Whether the kernels above take a call; `strides` of all its tensors are looked at by whoever made the lists of
/// tiles.
inline bool is_mma_call(const CudaAttention& c, Element element) {
  return (element == Element::kBfloat16 || element == Element::kHalf) && (c.head_dim == 64 || c.head_dim == 128) &&
         c.dropout_rng == nullptr && c.window == 0;
}
inline bool takes_mma(const CudaAttention& c, const CudaBlocks& lists, Element element) {
  return lists.row_tile_begin != nullptr && is_mma_call(c, element);
}

template <typename Kernel>
CudaError launch_tiles(Kernel kernel, dim3 grid, int tiles, int head_dim, CudaStream stream, const CudaAttention& c,
                       const CudaBlocks& lists) {
  const int bytes = tiles * kSide * (head_dim + 8) * 2;
  if (CudaError error = allow_shared(kernel, static_cast<std::size_t>(bytes)); error != nullptr) return error;
  kernel<<<grid, kThreads, bytes, to_stream(stream)>>>(c, lists);
  return launched();
}

template <typename T, int kD>
CudaError mma_forward_call(const CudaAttention& c, const CudaBlocks& lists, CudaStream stream) {
  const dim3 grid(static_cast<unsigned>(lists.tile_rows), static_cast<unsigned>(c.heads),
                  static_cast<unsigned>(c.batch));
  return launch_tiles(mma_forward<T, kD>, grid, 5, kD, stream, c, lists);
}

template <typename T, int kD>
CudaError mma_backward_call(const CudaAttention& c, const CudaBlocks& lists, CudaStream stream) {
  const std::int64_t rows = c.batch * c.heads * c.queries;
  mma_delta<T><<<static_cast<unsigned>(divided_up(rows, kThreads / 32)), kThreads, 0, to_stream(stream)>>>(c);
  const dim3 of_queries(static_cast<unsigned>(lists.tile_rows), static_cast<unsigned>(c.heads),
                        static_cast<unsigned>(c.batch));
  if (CudaError error = launch_tiles(mma_backward_queries<T, kD>, of_queries, 6, kD, stream, c, lists)) return error;
  const dim3 of_keys(static_cast<unsigned>(lists.tile_rows), static_cast<unsigned>(c.key_heads),
                     static_cast<unsigned>(c.batch));
  return launch_tiles(mma_backward_keys<T, kD>, of_keys, 6, kD, stream, c, lists);
}

/// call(type, head size) of those that are compiled.
template <typename Call>
CudaError by_mma_type(const CudaAttention& c, Element element, const Call& call) {
  if (element == Element::kBfloat16)
    return c.head_dim == 64 ? call(Bf16{}, std::integral_constant<int, 64>{})
                            : call(Bf16{}, std::integral_constant<int, 128>{});
  return c.head_dim == 64 ? call(F16{}, std::integral_constant<int, 64>{})
                          : call(F16{}, std::integral_constant<int, 128>{});
}

}  // namespace
}  // namespace trireme::kernels::gpu
