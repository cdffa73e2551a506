// kernels/cuda_plugin/attention_plain.cuh -- attention from its definition, for what the fast kernels do not take:
// float and double, dropout by our own numbers, any mask, lists of blocks (`Lists`). A warp has a query (or, for the
// gradients of keys and values, a key); its lanes share out 32 keys for the scores and the head's numbers for the sums.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kWarps = 4, kMostSize = 256, kSlices = kMostSize / 32;

template <typename T>
__device__ __forceinline__ const T* row_at(const void* data, const std::int64_t (&strides)[3], std::int64_t batch,
                                           std::int64_t row, std::int64_t head) {
  return static_cast<const T*>(data) + batch * strides[0] + row * strides[1] + head * strides[2];
}

/// Keys [begin, end) that the mask leaves a query, documents aside.
struct Span {
  std::int64_t begin, end;
};
__device__ __forceinline__ Span keys_of(const CudaAttention& c, std::int64_t query) {
  const std::int64_t self = c.query_position + query - c.key_position;
  Span span{0, c.keys};
  if (c.causal) span.end = min(span.end, self + 1);
  if (c.window > 0) {
    span.begin = max(span.begin, self - c.window + 1);
    span.end = min(span.end, self + c.window);
  }
  return span;
}
__device__ __forceinline__ bool same_document(const CudaAttention& c, std::int64_t batch, std::int64_t query,
                                              std::int64_t key) {
  return c.query_documents == nullptr || c.query_documents[batch * c.query_document_stride + query] ==
                                             c.key_documents[batch * c.key_document_stride + key];
}

/// The parts of a query's keys, or of a key's queries, that are computed: all of them, or the blocks of a list.
struct Parts {
  const std::int32_t* list;  // null: one part, all
  int count;
  std::int64_t block;
  __device__ Span of(int part, Span all) const {
    if (list == nullptr) return all;
    const std::int64_t first = list[part] * block;
    return {max(all.begin, first), min(all.end, first + block)};
  }
};
struct NoLists {
  __device__ Parts of_query(std::int64_t, std::int64_t) const { return {nullptr, 1, 0}; }
  __device__ Parts of_key(std::int64_t, std::int64_t) const { return {nullptr, 1, 0}; }
};

/// What a probability is multiplied by: 0, or 1 / (1 - p). The draw is that of cpu/attention_dropout.h.
template <typename A>
__device__ __forceinline__ A kept(const CudaAttention& c, std::int64_t batch, std::int64_t head, std::int64_t query,
                                  std::int64_t key) {
  if (c.dropout_rng == nullptr) return A(1);
  const std::uint32_t* stream = c.dropout_rng + 4 * (batch * c.heads + head);
  const auto position = static_cast<std::uint32_t>(c.key_position + key);
  std::uint32_t words[4] = {static_cast<std::uint32_t>(c.query_position + query), position / 64 * 16 + position % 16,
                            stream[2], stream[3]};
  philox(words, stream[0], stream[1]);
  const std::uint32_t which = position % 64 / 16;
  const std::uint32_t draw = which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
  return draw < c.threshold ? A(0) : static_cast<A>(c.dropout_scale);
}

template <typename A, typename T>
__device__ __forceinline__ A dot(const A* held, const T* row, int size) {
  A sum = 0;
  for (int d = 0; d < size; ++d) sum += held[d] * widen(row[d]);
  return sum;
}

template <typename T, typename Lists>
__global__ void __launch_bounds__(32 * kWarps) forward(const CudaAttention c, const Lists lists) {
  using A = Sum<T>;
  __shared__ A held[kWarps][kMostSize];
  const int lane = threadIdx.x, size = static_cast<int>(c.head_dim);
  A* q = held[threadIdx.y];
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (task >= c.batch * c.heads * c.queries) return;
  const std::int64_t query = task % c.queries, head = task / c.queries % c.heads, batch = task / c.queries / c.heads;
  const std::int64_t key_head = head / (c.heads / c.key_heads);
  const T* from = row_at<T>(c.q, c.q_strides, batch, query, head);
  for (int d = lane; d < size; d += 32) q[d] = widen(from[d]) * static_cast<A>(c.scale);
  __syncwarp();
  const Span all = keys_of(c, query);
  const Parts parts = lists.of_query(head, query);
  A largest = -INFINITY, total = 0, out[kSlices] = {};
  for (int part = 0; part < parts.count; ++part) {
    const Span span = parts.of(part, all);
    for (std::int64_t first = span.begin; first < span.end; first += 32) {
      const std::int64_t key = first + lane;
      const bool seen = key < span.end && same_document(c, batch, query, key);
      const A score = seen ? dot(q, row_at<T>(c.k, c.k_strides, batch, key, key_head), size) : A(-INFINITY);
      const A top = max(largest, warp_max(score));
      if (top == A(-INFINITY)) continue;
      const A shrink = exp(largest - top);
      A p = exp(score - top);
      total = total * shrink + warp_sum(p);
      largest = top;
      if (seen) p *= kept<A>(c, batch, head, query, key);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) out[i] *= shrink;
      const int here = static_cast<int>(min(span.end - first, std::int64_t{32}));
      for (int j = 0; j < here; ++j) {
        const A weight = __shfl_sync(0xffffffffu, p, j);
        const T* v = row_at<T>(c.v, c.v_strides, batch, first + j, key_head);
#pragma unroll
        for (int i = 0; i < kSlices; ++i) {
          if (lane + 32 * i < size) out[i] += weight * widen(v[lane + 32 * i]);
        }
      }
    }
  }
  T* to = const_cast<T*>(row_at<T>(c.out, c.out_strides, batch, query, head));
  const A share = total > 0 ? A(1) / total : A(0);
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (lane + 32 * i < size) to[lane + 32 * i] = narrow<T>(out[i] * share);
  }
  if (lane == 0) static_cast<A*>(c.lse)[task] = total > 0 ? largest + log(total) : A(-INFINITY);
}

template <typename T, typename Lists>
__global__ void __launch_bounds__(32 * kWarps) backward_queries(const CudaAttention c, const Lists lists) {
  using A = Sum<T>;
  __shared__ A held[kWarps][2][kMostSize];
  const int lane = threadIdx.x, size = static_cast<int>(c.head_dim);
  A *q = held[threadIdx.y][0], *dout = held[threadIdx.y][1];
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (task >= c.batch * c.heads * c.queries) return;
  const std::int64_t query = task % c.queries, head = task / c.queries % c.heads, batch = task / c.queries / c.heads;
  const std::int64_t key_head = head / (c.heads / c.key_heads);
  const T* from = row_at<T>(c.q, c.q_strides, batch, query, head);
  const T* gradient = row_at<T>(c.dout, c.dout_strides, batch, query, head);
  const T* result = row_at<T>(c.out_read, c.out_strides, batch, query, head);
  A delta = 0;
  for (int d = lane; d < size; d += 32) {
    q[d] = widen(from[d]) * static_cast<A>(c.scale);
    dout[d] = widen(gradient[d]);
    delta += dout[d] * widen(result[d]);
  }
  delta = warp_sum(delta);
  if (lane == 0) static_cast<A*>(c.delta)[task] = delta;
  __syncwarp();
  const A lse = static_cast<const A*>(c.lse)[task];
  const Span all = keys_of(c, query);
  const Parts parts = lists.of_query(head, query);
  A dq[kSlices] = {};
  for (int part = 0; part < parts.count; ++part) {
    const Span span = parts.of(part, all);
    for (std::int64_t first = span.begin; first < span.end; first += 32) {
      const std::int64_t key = first + lane;
      A ds = 0;
      if (key < span.end && same_document(c, batch, query, key)) {
        const A p = exp(dot(q, row_at<T>(c.k, c.k_strides, batch, key, key_head), size) - lse);
        const A dp =
            dot(dout, row_at<T>(c.v, c.v_strides, batch, key, key_head), size) * kept<A>(c, batch, head, query, key);
        ds = p * (dp - delta) * static_cast<A>(c.scale);
      }
      const int here = static_cast<int>(min(span.end - first, std::int64_t{32}));
      for (int j = 0; j < here; ++j) {
        const A weight = __shfl_sync(0xffffffffu, ds, j);
        const T* k = row_at<T>(c.k, c.k_strides, batch, first + j, key_head);
#pragma unroll
        for (int i = 0; i < kSlices; ++i) {
          if (lane + 32 * i < size) dq[i] += weight * widen(k[lane + 32 * i]);
        }
      }
    }
  }
  T* to = const_cast<T*>(row_at<T>(c.dq, c.dq_strides, batch, query, head));
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (lane + 32 * i < size) to[lane + 32 * i] = narrow<T>(dq[i]);
  }
}

template <typename T, typename Lists>
__global__ void __launch_bounds__(32 * kWarps) backward_keys(const CudaAttention c, const Lists lists) {
  using A = Sum<T>;
  __shared__ A held[kWarps][2][kMostSize];
  const int lane = threadIdx.x, size = static_cast<int>(c.head_dim);
  A *k = held[threadIdx.y][0], *v = held[threadIdx.y][1];
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (task >= c.batch * c.key_heads * c.keys) return;
  const std::int64_t key = task % c.keys, key_head = task / c.keys % c.key_heads, batch = task / c.keys / c.key_heads;
  const std::int64_t group = c.heads / c.key_heads;
  const T* key_row = row_at<T>(c.k, c.k_strides, batch, key, key_head);
  const T* value_row = row_at<T>(c.v, c.v_strides, batch, key, key_head);
  for (int d = lane; d < size; d += 32) {
    k[d] = widen(key_row[d]) * static_cast<A>(c.scale);
    v[d] = widen(value_row[d]);
  }
  __syncwarp();
  // Queries that may see this key.
  const std::int64_t self = c.key_position + key - c.query_position;
  Span all{c.causal ? max(self, std::int64_t{0}) : 0, c.queries};
  if (c.window > 0) {
    all.begin = max(all.begin, self - c.window + 1);
    all.end = min(all.end, self + c.window);
  }
  A dk[kSlices] = {}, dv[kSlices] = {};
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const std::int64_t row = (batch * c.heads + head) * c.queries;
    const Parts parts = lists.of_key(head, key);
    for (int part = 0; part < parts.count; ++part) {
      const Span span = parts.of(part, all);
      for (std::int64_t first = span.begin; first < span.end; first += 32) {
        const std::int64_t query = first + lane;
        A ds = 0, weight = 0;
        if (query < span.end && same_document(c, batch, query, key)) {
          const A p = exp(dot(k, row_at<T>(c.q, c.q_strides, batch, query, head), size) -
                          static_cast<const A*>(c.lse)[row + query]);
          const A keep = kept<A>(c, batch, head, query, key);
          const A dp = dot(v, row_at<T>(c.dout, c.dout_strides, batch, query, head), size) * keep;
          weight = p * keep;
          ds = p * (dp - static_cast<const A*>(c.delta)[row + query]) * static_cast<A>(c.scale);
        }
        const int here = static_cast<int>(min(span.end - first, std::int64_t{32}));
        for (int j = 0; j < here; ++j) {
          const A one = __shfl_sync(0xffffffffu, weight, j), other = __shfl_sync(0xffffffffu, ds, j);
          const T* dout = row_at<T>(c.dout, c.dout_strides, batch, first + j, head);
          const T* q = row_at<T>(c.q, c.q_strides, batch, first + j, head);
#pragma unroll
          for (int i = 0; i < kSlices; ++i) {
            if (lane + 32 * i >= size) continue;
            dv[i] += one * widen(dout[lane + 32 * i]);
            dk[i] += other * widen(q[lane + 32 * i]);
          }
        }
      }
    }
  }
  T* to_k = const_cast<T*>(row_at<T>(c.dk, c.dk_strides, batch, key, key_head));
  T* to_v = const_cast<T*>(row_at<T>(c.dv, c.dv_strides, batch, key, key_head));
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (lane + 32 * i >= size) continue;
    to_k[lane + 32 * i] = narrow<T>(dk[i]);
    to_v[lane + 32 * i] = narrow<T>(dv[i]);
  }
}

inline unsigned grid_of(std::int64_t tasks) { return static_cast<unsigned>(divided_up(tasks, kWarps)); }
constexpr CudaError kTooLarge = "heads of more than 256 numbers";

template <typename Lists>
CudaError launch_forward(const CudaAttention& c, const Lists& lists, Element element, CudaStream stream) {
  if (c.head_dim > kMostSize) return kTooLarge;
  if (c.batch * c.queries == 0) return nullptr;
  return by_type(element, [&](auto type) {
    forward<decltype(type)>
        <<<grid_of(c.batch * c.heads * c.queries), dim3(32, kWarps), 0, to_stream(stream)>>>(c, lists);
    return launched();
  });
}

template <typename Lists>
CudaError launch_backward(const CudaAttention& c, const Lists& lists, Element element, CudaStream stream) {
  if (c.head_dim > kMostSize) return kTooLarge;
  if (c.batch == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const dim3 threads(32, kWarps);
    if (c.queries > 0) {
      backward_queries<T><<<grid_of(c.batch * c.heads * c.queries), threads, 0, to_stream(stream)>>>(c, lists);
    }
    if (c.keys > 0) {
      backward_keys<T><<<grid_of(c.batch * c.key_heads * c.keys), threads, 0, to_stream(stream)>>>(c, lists);
    }
    return launched();
  });
}

}  // namespace
}  // namespace trireme::kernels::gpu
