// kernels/cuda_plugin/block_attention_wgmma_backward.cuh -- block-sparse attention on Hopper's tensor cores: gradients.
//
//   P = 2^(scale log2(e) q k^T - lse log2(e))   dS = P (dout v^T - delta)   dv = P^T dout   dk = scale dS^T q   dq =
//   scale dS k
//
// One kernel over tiles of queries gives dq, one over tiles of keys dk and dv: scores are computed twice, and nothing
// is added atomically, so that bits repeat. Each is the forward pass's loop over gathered chunks with three stages of
// shared memory: products with what a tile's scores became are under way while the next tile's scores are computed.
// Depends on: block_attention_wgmma.cuh.
#pragma once

#include "trireme/kernels/cuda_plugin/block_attention_wgmma.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kStages = 3;

/// delta = rowsum(dout * out): kD / 8 threads a row.
template <typename T, int kD>
__global__ void __launch_bounds__(kGroupThreads) wgmma_delta(const CudaAttention c) {
  constexpr int kThreadsOfRow = kD / 8;
  const std::int64_t task = (static_cast<std::int64_t>(blockIdx.x) * kGroupThreads + threadIdx.x) / kThreadsOfRow;
  const std::int64_t rows = c.batch * c.heads * c.queries, at = task < rows ? task : rows - 1;
  const std::int64_t head = at % c.heads, row = at / c.heads % c.queries, batch = at / c.heads / c.queries;
  const std::int64_t column = threadIdx.x % kThreadsOfRow * 8;
  float dout[8], out[8], sum = 0;
  load(static_cast<const T*>(c.dout) + batch * c.dout_strides[0] + row * c.dout_strides[1] + head * c.dout_strides[2] +
           column,
       dout);
  load(static_cast<const T*>(c.out_read) + batch * c.out_strides[0] + row * c.out_strides[1] + head * c.out_strides[2] +
           column,
       out);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += dout[i] * out[i];
#pragma unroll
  for (int lanes = kThreadsOfRow / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (task < rows && column == 0) static_cast<float*>(c.delta)[(batch * c.heads + head) * c.queries + row] = sum;
}

template <typename T, int kD, int kN, int kBlocks>
__global__ void __launch_bounds__(kGroupThreads, kBlocks)
    wgmma_backward_queries(const CudaAttention c, const CudaChunkTiles lists) {
#ifdef TRIREME_WGMMA
  constexpr int kBytes = Gather<T, kD, kN>::kBytes;
  extern __shared__ __align__(1024) unsigned char panels[];
  unsigned char* const q = panels;
  unsigned char* const dout = q + kTileRows * kD * 2;
  unsigned char* const stages = dout + kTileRows * kD * 2;  // keys and values
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t head = blockIdx.y, batch = blockIdx.z, key_head = head / (c.heads / c.key_heads);
  const std::int64_t tile = head * lists.tiles + blockIdx.x;
  const std::int32_t* const list = lists.entries + lists.begin[tile];
  const int count = (lists.begin[tile + 1] - lists.begin[tile]) * kChunk / kN;
  auto pairs = pairs_of<false>(c, batch, lists.chunks[tile * kRowGroups + warp]);
  const HeadRows<T> k_rows(c.k, c.k_strides, batch, key_head), v_rows(c.v, c.v_strides, batch, key_head);
  const int my_rows = static_cast<int>(threadIdx.x) / 128 * (64 * kRowBytes);

  Gather<T, kD, kN> copies;
  const auto fetch = [&](int n) {
    unsigned char* const to = stages + n % kStages * 2 * kBytes;
    copies.copy(shared_offset(to), k_rows, c.keys);
    copies.copy(shared_offset(to + kBytes), v_rows, c.keys);
  };
  const auto look = [&](int n) {
    if (n < count) copies.look(list + n * (kN / kChunk), 8);
  };
  {
    Gather<T, kD, kTileRows> rows;
    rows.look(lists.chunks + tile * kRowGroups, 0);
    rows.copy(shared_offset(q), HeadRows<T>(c.q, c.q_strides, batch, head), c.queries);
    rows.copy(shared_offset(dout), HeadRows<T>(c.dout, c.dout_strides, batch, head), c.queries);
  }
  if (count > 0) {
    look(0);
    fetch(0);
    pairs.template look<kN>(list);
  }
  copies_commit();
  look(1);
  const float scale = static_cast<float>(c.scale) * kLog2Of2E;
  float lse[2] = {0, 0}, delta[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = pairs.first + lane / 4 + half * 8;
    if (row >= c.queries) continue;
    lse[half] = static_cast<const float*>(c.lse)[(batch * c.heads + head) * c.queries + row] * kLog2Of2E;
    delta[half] = static_cast<const float*>(c.delta)[(batch * c.heads + head) * c.queries + row];
  }
  float dq[kD / 2] = {}, s[kN / 2], dp[kN / 2];
  hold(dq);
  for (int n = 0; n < count; ++n) {
    copies_wait();
    __syncthreads();  // tile n is here, and nobody reads tile n - 2 any more
    if (n + 1 < count) fetch(n + 1);
    copies_commit();
    const unsigned char* const keys = stages + n % kStages * 2 * kBytes;
    hold(s);
    hold(dp);
    wgmma_begin();
    scores_of<T, kD, kN>(s, q + my_rows, keys);
    wgmma_commit();
    scores_of<T, kD, kN>(dp, dout + my_rows, keys + kBytes);
    wgmma_commit();
    look(n + 2);
    pairs.entry = pairs.next;
    if (n + 1 < count) pairs.template look<kN>(list + (n + 1) * (kN / kChunk));
    wgmma_wait<1>();
    hold(s);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) s[i] = exp2_fast(s[i] * scale - lse[i / 2 % 2]);
    if (!pairs.template whole<kN>()) pairs.template for_hidden<kN>([&](int i) { s[i] = 0; });
    wgmma_wait<0>();
    hold(dp);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) dp[i] = s[i] * (dp[i] - delta[i / 2 % 2]);
    std::uint32_t ds[kN / 16][4];
    round_products<T, kN>(ds, dp);
    wgmma_begin();
    add_product<T, kD, kN>(dq, ds, keys);
    wgmma_commit();
  }
  wgmma_wait<0>();
  hold(dq);
  asm volatile("cp.async.wait_all;" ::: "memory");
  const auto factor = static_cast<float>(c.scale);
  write_chunk<T, kD>(c.dq, c.dq_strides, batch, head, pairs.first, c.queries, dq, factor, factor);
#else
  __trap();  // wgmma exists on sm_90a alone
#endif
}

template <typename T, int kD, int kN>
__global__ void __launch_bounds__(kGroupThreads)
    wgmma_backward_keys(const CudaAttention c, const CudaChunkTiles lists) {
#ifdef TRIREME_WGMMA
  constexpr int kBytes = Gather<T, kD, kN>::kBytes;
  extern __shared__ __align__(1024) unsigned char panels[];
  unsigned char* const k = panels;
  unsigned char* const v = k + kTileRows * kD * 2;
  unsigned char* const stages = v + kTileRows * kD * 2;                                // queries and dout
  float* const row_numbers = reinterpret_cast<float*>(stages + kStages * 2 * kBytes);  // lse and delta of each stage
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t key_head = blockIdx.y, batch = blockIdx.z, group = c.heads / c.key_heads;
  const std::int32_t* const chunks = lists.chunks + (key_head * group * lists.tiles + blockIdx.x) * kRowGroups;
  auto pairs = pairs_of<true>(c, batch, chunks[warp]);
  const int my_rows = static_cast<int>(threadIdx.x) / 128 * (64 * kRowBytes);
  {
    Gather<T, kD, kTileRows> rows;
    rows.look(chunks, 0);
    rows.copy(shared_offset(k), HeadRows<T>(c.k, c.k_strides, batch, key_head), c.keys);
    rows.copy(shared_offset(v), HeadRows<T>(c.v, c.v_strides, batch, key_head), c.keys);
  }
  const float scale = static_cast<float>(c.scale) * kLog2Of2E;
  float dk[kD / 2] = {}, dv[kD / 2] = {}, s[kN / 2], dp[kN / 2];
  std::uint32_t p[kN / 16][4];
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const std::int64_t tile = head * lists.tiles + blockIdx.x;
    const std::int32_t* const list = lists.entries + lists.begin[tile];
    const int count = (lists.begin[tile + 1] - lists.begin[tile]) * kChunk / kN;
    if (count == 0) continue;
    const HeadRows<T> q_rows(c.q, c.q_strides, batch, head), dout_rows(c.dout, c.dout_strides, batch, head);
    const float* const numbers =
        static_cast<const float*>(threadIdx.x < kN ? c.lse : c.delta) + (batch * c.heads + head) * c.queries;
    Gather<T, kD, kN> copies;
    int number_row = 0;  // of the lse or delta that this thread copies
    const auto look = [&](int n) {
      if (n >= count) return;
      copies.look(list + n * (kN / kChunk), 8);
      if (threadIdx.x < 2 * kN)
        number_row = (__ldg(list + n * (kN / kChunk) + threadIdx.x % kN / kChunk) >> 8) * kChunk +
                     static_cast<int>(threadIdx.x) % kChunk;
    };
    const auto fetch = [&](int n) {
      unsigned char* const to = stages + n % kStages * 2 * kBytes;
      copies.copy(shared_offset(to), q_rows, c.queries);
      copies.copy(shared_offset(to + kBytes), dout_rows, c.queries);
      const bool there = number_row >= 0 && number_row < c.queries;
      if (threadIdx.x < 2 * kN)
        copy4(shared_offset(row_numbers + n % kStages * 2 * kN + threadIdx.x), numbers + (there ? number_row : 0),
              there);
    };
    look(0);
    fetch(0);
    copies_commit();
    pairs.template look<kN>(list);
    look(1);
    for (int n = 0; n < count; ++n) {
      copies_wait();
      __syncthreads();  // tile n is here, and nobody reads tile n - 2 any more
      if (n + 1 < count) fetch(n + 1);
      copies_commit();
      const unsigned char* const queries = stages + n % kStages * 2 * kBytes;
      const float* const lse = row_numbers + n % kStages * 2 * kN + lane % 4 * 2;
      hold(s);
      hold(dp);
      wgmma_begin();
      scores_of<T, kD, kN>(s, k + my_rows, queries);
      wgmma_commit();
      scores_of<T, kD, kN>(dp, v + my_rows, queries + kBytes);
      wgmma_commit();
      look(n + 2);
      pairs.entry = pairs.next;
      if (n + 1 < count) pairs.template look<kN>(list + (n + 1) * (kN / kChunk));
      wgmma_wait<1>();
      hold(s);
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const float2 two = *reinterpret_cast<const float2*>(lse + j * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[4 * j + i] = exp2_fast(s[4 * j + i] * scale - (i % 2 == 0 ? two.x : two.y) * kLog2Of2E);
      }
      if (!pairs.template whole<kN>()) pairs.template for_hidden<kN>([&](int i) { s[i] = 0; });
      round_products<T, kN>(p, s);
      wgmma_begin();
      add_product<T, kD, kN>(dv, p, queries + kBytes);
      wgmma_commit();
      wgmma_wait<1>();
      hold(dp);
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const float2 two = *reinterpret_cast<const float2*>(lse + kN + j * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) dp[4 * j + i] = s[4 * j + i] * (dp[4 * j + i] - (i % 2 == 0 ? two.x : two.y));
      }
      std::uint32_t ds[kN / 16][4];
      round_products<T, kN>(ds, dp);
      wgmma_begin();
      add_product<T, kD, kN>(dk, ds, queries);
      wgmma_commit();
    }
    wgmma_wait<0>();
    __syncthreads();  // the next head's first tiles may overwrite the stages
  }
  hold(dk);
  hold(dv);
  asm volatile("cp.async.wait_all;" ::: "memory");
  const auto factor = static_cast<float>(c.scale);
  write_chunk<T, kD>(c.dk, c.dk_strides, batch, key_head, pairs.first, c.keys, dk, factor, factor);
  write_chunk<T, kD>(c.dv, c.dv_strides, batch, key_head, pairs.first, c.keys, dv, 1.0f, 1.0f);
#else
  __trap();  // wgmma exists on sm_90a alone
#endif
}

template <typename T, int kD, int kN, int kBlocks>
CudaError wgmma_backward_call(const CudaAttention& c, const CudaChunkTiles& queries, const CudaChunkTiles& keys,
                              CudaStream stream) {
  const std::int64_t threads = c.batch * c.heads * c.queries * (kD / 8);
  wgmma_delta<T, kD>
      <<<static_cast<unsigned>(divided_up(threads, kGroupThreads)), kGroupThreads, 0, to_stream(stream)>>>(c);
  constexpr int kBytes = 2 * kTileRows * kD * 2 + kStages * 2 * Gather<T, kD, kN>::kBytes;
  if (CudaError error =
          launch_chunk_tiles(wgmma_backward_queries<T, kD, kN, kBlocks>, c.heads, kBytes, stream, c, queries))
    return error;
  return launch_chunk_tiles(wgmma_backward_keys<T, kD, kN>, c.key_heads, kBytes + kStages * 2 * kN * 4, stream, c,
                            keys);
}

}  // namespace
}  // namespace trireme::kernels::gpu
