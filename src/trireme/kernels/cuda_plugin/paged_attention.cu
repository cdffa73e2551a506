// Attention of single queries over a paged KV cache.
//
// Decode reads every key and value once and does little with it, so what counts is bytes under way. A block of threads
// has one query, the queries' heads (up to eight) that share a head of keys, and a part of the keys; its warps take
// pages of 16 keys in turn. Scores are q k^T and sums p v on the tensor cores, with heads as rows. Both read their
// operands straight from memory into registers, 16 bytes a lane: which of the head's numbers stands where in the inner
// dimension does not matter as long as it is the same for both sides, so lanes take neighbouring numbers in place of
// the instruction's order.
#include "trireme/kernels/cuda_plugin/dependent.cuh"
#include "trireme/kernels/cuda_plugin/inference_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kPagedWarps = 4, kPage = 16, kHeadRows = 8;
constexpr unsigned kAll = 0xffffffffu;

struct PagedSpan {
  int begin, end;  // keys that the query sees
};
__device__ __forceinline__ PagedSpan span_of(const CudaPagedAttention& c, std::int64_t row) {
  const int end = c.lengths[row];
  return {c.window > 0 ? max(0, end - static_cast<int>(c.window)) : 0, end};
}

/// Where a thread block's results go: the output, or what the second kernel combines.
template <typename T>
__device__ __forceinline__ void put(const CudaPagedAttention& c, std::int64_t row, int head, int dim, int split,
                                    float sum, float total) {
  if (c.splits == 1) {
    static_cast<T*>(c.out)[row * c.out_row + head * c.out_head + dim] = narrow<T>(total > 0 ? sum / total : 0.0F);
  } else {
    c.partial_out[((row * c.heads + head) * c.splits + split) * c.head_dim + dim] = sum;
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(32 * kPagedWarps) paged_fast(const CudaPagedAttention c) {
  constexpr int kChunks = (kDim + 31) / 32;  // of keys' numbers, 16 bytes a lane of four
  constexpr int kWides = (kDim + 63) / 64;   // of values' numbers, 16 bytes a lane of eight
  __shared__ float sums[kPagedWarps][kHeadRows][kDim];
  __shared__ float tops[kPagedWarps][kHeadRows], totals[kPagedWarps][kHeadRows];
  let_next_start();
  wait_for_previous();
  const std::int64_t row = blockIdx.z;
  const int split = blockIdx.x, warp = threadIdx.y, lane = threadIdx.x, g = lane / 4, c4 = lane % 4;
  const int group = c.heads / c.kv_heads, parts = (group + kHeadRows - 1) / kHeadRows;
  const int kv_head = blockIdx.y / parts, first_head = kv_head * group + blockIdx.y % parts * kHeadRows;
  const int heads = min(kHeadRows, kv_head * group + group - first_head);
  const PagedSpan span = span_of(c, row);
  if (span.end == 0) return;
  const int first_page = span.begin / kPage, pages = (span.end + kPage - 1) / kPage - first_page;
  const int share = (pages + c.splits - 1) / c.splits;
  const int begin = first_page + split * share, end = min(begin + share, first_page + pages);
  const std::int32_t* table = c.block_tables + c.sequences[row] * c.table_stride;

  uint4 q[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int dim = 32 * i + 8 * c4;
    const T* from = static_cast<const T*>(c.q) + row * c.q_row + (first_head + g) * c.q_head + dim;
    q[i] = g < heads && dim < kDim ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  }
  const std::int64_t key_stride = static_cast<std::int64_t>(c.kv_heads) * kDim, page_stride = kPage * key_stride;
  const T* const keys = static_cast<const T*>(c.keys) + kv_head * kDim;
  const T* const values = static_cast<const T*>(c.values) + kv_head * kDim;
  const auto seen = [&](int page, int key) {
    const int at = page * kPage + key;
    return at >= span.begin && at < span.end;
  };
  const uint4 zero = make_uint4(0, 0, 0, 0);
  uint4 k[2][kChunks];
  const auto load_keys = [&](int page, int block) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool there = page < end && seen(page, 8 * h + g);
      const T* from = keys + block * page_stride + (8 * h + g) * key_stride + 8 * c4;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) k[h][i] = there && 32 * i + 8 * c4 < kDim ? load_once(from + 32 * i) : zero;
    }
  };
  // A lane looks up one of the warp's pages in the block table, for 32 of them at a time.
  const auto look_up = [&](int page) { return page < end ? table[page] : 0; };
  const float scale = static_cast<float>(c.scale) * 1.4426950408889634F;  // probabilities are powers of two
  float top = -INFINITY, total = 0, out[kWides][8][2] = {};
  int blocks = look_up(begin + warp + kPagedWarps * lane), step = 0;
  int block = __shfl_sync(kAll, blocks, 0);
  load_keys(begin + warp, block);
  for (int page = begin + warp; page < end; page += kPagedWarps) {
    const T* from = values + block * page_stride + 8 * g;
    uint4 v[4];
    const auto load_values = [&](int wide) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 2 * c4 + (i & 1) + 8 * (i >> 1);
        v[i] = seen(page, key) && 64 * wide + 8 * g < kDim ? load_once(from + key * key_stride + 64 * wide) : zero;
      }
    };
    uint4 ahead[kWides <= 2 ? kWides : 1][4];  // larger heads would not fit into registers
    if constexpr (kWides <= 2) {
#pragma unroll
      for (int wide = 0; wide < kWides; ++wide) {
        load_values(wide);
#pragma unroll
        for (int i = 0; i < 4; ++i) ahead[wide][i] = v[i];
      }
    }
    float s[2][2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        mma_upper<T>(s[h], q[i].x, q[i].y, k[h][i].x, k[h][i].y);
        mma_upper<T>(s[h], q[i].z, q[i].w, k[h][i].z, k[h][i].w);
      }
    }
    // The next page's keys are on their way while this one's values are waited for.
    if (++step % 32 == 0) blocks = look_up(page + kPagedWarps * (1 + lane));
    block = __shfl_sync(kAll, blocks, step % 32);
    load_keys(page + kPagedWarps, block);
    float most = top;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[h][i] = seen(page, 8 * h + 2 * c4 + i) ? s[h][i] * scale : -INFINITY;
        most = fmaxf(most, s[h][i]);
      }
    }
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
    const float base = most == -INFINITY ? 0.0F : most, shrink = fast_exp2(top - base);
    top = most;
    total *= shrink;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[h][i] = fast_exp2(s[h][i] - base);
        total += s[h][i];
      }
    }
    if (__any_sync(kAll, shrink != 1.0F)) {
#pragma unroll
      for (int wide = 0; wide < kWides; ++wide) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          out[wide][j][0] *= shrink;
          out[wide][j][1] *= shrink;
        }
      }
    }
    const std::uint32_t p0 = two_words<T>(s[0][0], s[0][1]), p1 = two_words<T>(s[1][0], s[1][1]);
#pragma unroll
    for (int wide = 0; wide < kWides; ++wide) {
      if constexpr (kWides <= 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = ahead[wide][i];
      } else {
        load_values(wide);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto word = [&](const uint4& of) {
          return j / 2 == 0 ? of.x : j / 2 == 1 ? of.y : j / 2 == 2 ? of.z : of.w;
        };
        const unsigned pick = j % 2 == 0 ? 0x5410 : 0x7632;
        mma_upper<T>(out[wide][j], p0, p1, __byte_perm(word(v[0]), word(v[1]), pick),
                     __byte_perm(word(v[2]), word(v[3]), pick));
      }
    }
  }
  total += __shfl_xor_sync(kAll, total, 1);
  total += __shfl_xor_sync(kAll, total, 2);
  if (c4 == 0) {
    tops[warp][g] = top;
    totals[warp][g] = total;
  }
#pragma unroll
  for (int wide = 0; wide < kWides; ++wide) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int dim = 64 * wide + 8 * (2 * c4 + i) + j;
        if (dim < kDim) sums[warp][g][dim] = out[wide][j][i];
      }
    }
  }
  __syncthreads();
  for (int i = warp * 32 + lane; i < heads * kDim; i += 32 * kPagedWarps) {
    const int head = i / kDim, dim = i % kDim;
    float most = -INFINITY, sum = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kPagedWarps; ++w) most = fmaxf(most, tops[w][head]);
#pragma unroll
    for (int w = 0; w < kPagedWarps; ++w) {
      const float weight = tops[w][head] == -INFINITY ? 0.0F : fast_exp2(tops[w][head] - most);
      sum += weight * sums[w][head][dim];
      all += weight * totals[w][head];
    }
    put<T>(c, row, first_head + head, dim, split, sum, all);
    if (c.splits > 1 && dim == 0) {
      float* lse = c.partial_lse + ((row * c.heads + first_head + head) * c.splits + split) * 2;
      lse[0] = most;
      lse[1] = all;
    }
  }
}

/// Any type and size up to 256: a warp has a query's head; its lanes share out 32 keys for scores, the head's numbers
/// for sums.
template <typename T>
__global__ void __launch_bounds__(32 * kPagedWarps) paged_plain(const CudaPagedAttention c) {
  using A = Sum<T>;
  constexpr int kMost = 256, kSlots = kMost / 32;
  __shared__ A held[kPagedWarps][kMost];
  wait_for_previous();
  const int lane = threadIdx.x, size = c.head_dim;
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kPagedWarps + threadIdx.y;
  if (task >= c.rows * c.heads) return;
  const std::int64_t row = task / c.heads;
  const int head = static_cast<int>(task % c.heads), kv_head = head / (c.heads / c.kv_heads);
  const PagedSpan span = span_of(c, row);
  if (span.end == 0) return;
  const std::int32_t* table = c.block_tables + c.sequences[row] * c.table_stride;
  A* q = held[threadIdx.y];
  const T* from = static_cast<const T*>(c.q) + row * c.q_row + head * c.q_head;
  for (int d = lane; d < size; d += 32) q[d] = widen(from[d]) * static_cast<A>(c.scale);
  __syncwarp();
  const auto entry = [&](const void* blocks, int key) {
    return static_cast<const T*>(blocks) +
           ((static_cast<std::int64_t>(table[key / c.block_size]) * c.block_size + key % c.block_size) * c.kv_heads +
            kv_head) *
               size;
  };
  A top = -INFINITY, total = 0, out[kSlots] = {};
  for (int first = span.begin; first < span.end; first += 32) {
    const int key = first + lane;
    A score = -INFINITY;
    if (key < span.end) {
      const T* k = entry(c.keys, key);
      score = 0;
      for (int d = 0; d < size; ++d) score += q[d] * widen(k[d]);
    }
    const A most = max(top, warp_max(score)), shrink = exp(top - most), p = exp(score - most);
    total = total * shrink + warp_sum(p);
    top = most;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) out[i] *= shrink;
    for (int j = 0; j < min(32, span.end - first); ++j) {
      const A weight = __shfl_sync(kAll, p, j);
      const T* v = entry(c.values, first + j);
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        if (lane + 32 * i < size) out[i] += weight * widen(v[lane + 32 * i]);
      }
    }
  }
  T* to = static_cast<T*>(c.out) + row * c.out_row + head * c.out_head;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (lane + 32 * i < size) to[lane + 32 * i] = narrow<T>(out[i] / total);
  }
}

/// The splits' results, each weighted by its share of the softmax's sum. A lane asks for one split's share: all at
/// once.
template <typename T>
__global__ void __launch_bounds__(128) combine_splits(const CudaPagedAttention c) {
  __shared__ float shares[32];
  let_next_start();
  wait_for_previous();
  const std::int64_t row = blockIdx.y;
  const int head = blockIdx.x, lane = threadIdx.x % 32;
  if (c.lengths[row] == 0) return;
  const std::int64_t first = (row * c.heads + head) * c.splits;
  if (threadIdx.x < 32) {
    const bool there = lane < c.splits;
    const float top = there ? c.partial_lse[(first + lane) * 2] : -INFINITY;
    const float total = there ? c.partial_lse[(first + lane) * 2 + 1] : 0.0F;
    const float most = warp_max(top), weight = top == -INFINITY ? 0.0F : fast_exp2(top - most);
    shares[lane] = weight / warp_sum(weight * total);
  }
  __syncthreads();
  for (int dim = threadIdx.x; dim < c.head_dim; dim += blockDim.x) {
    float sum = 0;
#pragma unroll 8
    for (int split = 0; split < c.splits; ++split) {
      sum += shares[split] * c.partial_out[(first + split) * c.head_dim + dim];
    }
    static_cast<T*>(c.out)[row * c.out_row + head * c.out_head + dim] = narrow<T>(sum);
  }
}

template <typename T, int kDim>
CudaError run_fast(const CudaPagedAttention& c, CudaStream stream) {
  const int parts = (c.heads / c.kv_heads + kHeadRows - 1) / kHeadRows;
  const dim3 grid(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.kv_heads * parts),
                  static_cast<unsigned>(c.rows));
  if (CudaError error = launch_dependent(paged_fast<T, kDim>, grid, dim3(32, kPagedWarps), 0, stream, c)) return error;
  if (c.splits == 1) return nullptr;
  return launch_dependent(combine_splits<T>, dim3(static_cast<unsigned>(c.heads), static_cast<unsigned>(c.rows)),
                          dim3(128), 0, stream, c);
}

template <typename T>
CudaError run_paged(const CudaPagedAttention& c, CudaStream stream) {
  if constexpr (sizeof(T) == 2) {
    const auto wide = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
    const bool aligned = wide(c.q) && wide(c.keys) && wide(c.values) && c.q_row % 8 == 0 && c.q_head % 8 == 0;
    if (aligned && c.block_size == kPage && c.rows <= 65535) {
      switch (c.head_dim) {
        case 32:
          return run_fast<T, 32>(c, stream);
        case 64:
          return run_fast<T, 64>(c, stream);
        case 80:
          return run_fast<T, 80>(c, stream);
        case 96:
          return run_fast<T, 96>(c, stream);
        case 128:
          return run_fast<T, 128>(c, stream);
        case 256:
          return run_fast<T, 256>(c, stream);
        default:
          break;
      }
    }
  }
  const dim3 grid(static_cast<unsigned>(divided_up(c.rows * c.heads, kPagedWarps)));
  return launch_dependent(paged_plain<T>, grid, dim3(32, kPagedWarps), 0, stream, c);
}

}  // namespace

CudaError paged_attention(const CudaPagedAttention& c, Element element, CudaStream stream) {
  if (c.head_dim > 256) return "heads of more than 256 numbers";
  if (c.rows == 0) return nullptr;
  return by_type(element, [&](auto type) { return run_paged<decltype(type)>(c, stream); });
}

}  // namespace trireme::kernels::gpu
