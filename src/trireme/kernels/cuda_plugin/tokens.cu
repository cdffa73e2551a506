// What is done for each token: rows of tables, rotary positions, coins of dropout.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 128;

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) embedding_forward_rows(const EmbeddingForwardLoop c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x, from = c.ids[row] - c.first_row;
  const bool here = from >= 0 && from < c.table_rows;
  const T* table = row_of<const T>(c.table, from, c.table_stride);
  const std::int64_t place = c.table2 == nullptr ? -1 : c.ids2[row];
  const bool known = place >= 0 && place < c.table2_rows;
  const T* second = c.table2 == nullptr ? nullptr : row_of<const T>(c.table2, known ? place : 0, c.table2_stride);
  T* out = row_of<T>(c.out, row, c.out_stride);
  for (int i = threadIdx.x * kVec; i < c.width; i += kThreads * kVec) {
    A v[kVec] = {};
    if (here) load<kVec>(table + i, v);
    if (second != nullptr) {
      A more[kVec];
      load<kVec>(second + i, more);
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[k] = known ? v[k] + more[k] : A(NAN);
    }
    store<kVec>(out + i, v);
  }
}

/// The block of the first token of a group adds up all of it; other blocks have nothing to do. blockIdx.y: columns.
/// G is the table's type, into which a sum is rounded once.
template <typename T, typename G, int kVec>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_rows(const EmbeddingBackwardLoop c, std::int64_t first_row, std::int64_t table_rows,
                            std::int64_t width) {
  using A = Sum<T>;
  const std::int64_t begin = blockIdx.x, id = c.rows[begin], to = id - first_row;
  if ((begin > 0 && c.rows[begin - 1] == id) || to < 0 || to >= table_rows) return;
  const int column = (static_cast<int>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (column >= width) return;
  G* target = static_cast<G*>(c.dtable) + to * c.dtable_stride + column;
  A total[kVec];
  load<kVec>(target, total);
  constexpr int kAhead = 4;  // rows on their way at once
  std::int64_t at = begin;
  while (at < c.count && c.rows[at] == id) {
    A v[kAhead][kVec];
    bool ours[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      ours[j] = at + j < c.count && c.rows[at + j] == id;
      if (ours[j]) load<kVec>(row_of<const T>(c.dout, c.order[at + j], c.dout_stride) + column, v[j]);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (!ours[j]) continue;
#pragma unroll
      for (int k = 0; k < kVec; ++k) total[k] += v[j][k];
    }
    at += kAhead;
  }
  store<kVec>(target, total);
}

/// A block turns the heads of a token; a thread kVec pairs of a head.
template <typename T, int kVec, bool kNeighbours>
__global__ void __launch_bounds__(kThreads) rotary_tokens(const RotaryLoop c) {
  using A = Sum<T>;
  const std::int64_t token = blockIdx.x, position = c.positions[token];
  const int half = static_cast<int>(c.rotated / 2), per_head = half / kVec;
  const bool known = position >= 0 && position < c.table_rows;
  const A* cosine = static_cast<const A*>(c.cosines) + position * half;
  const A* sine = static_cast<const A*>(c.sines) + position * half;
  T* x = static_cast<T*>(c.x) + token / c.sequence * c.batch_stride + token % c.sequence * c.sequence_stride;
  const A sign = c.inverse ? A(-1) : A(1);
  for (int i = threadIdx.x; i < c.heads * per_head; i += kThreads) {
    T* head = x + i / per_head * c.head_stride;
    const int pair = i % per_head * kVec;
    A a[kVec], b[kVec], turned_a[kVec], turned_b[kVec], cs[kVec], sn[kVec];
    if (known) {
      load<kVec>(cosine + pair, cs);
      load<kVec>(sine + pair, sn);
    } else {
#pragma unroll
      for (int k = 0; k < kVec; ++k) cs[k] = sn[k] = A(NAN);
    }
    if constexpr (kNeighbours) {
      A both[2 * kVec];
      load<2 * kVec>(head + 2 * pair, both);
#pragma unroll
      for (int k = 0; k < kVec; ++k) a[k] = both[2 * k], b[k] = both[2 * k + 1];
    } else {
      load<kVec>(head + pair, a);
      load<kVec>(head + half + pair, b);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const A s = sn[k] * sign;
      turned_a[k] = a[k] * cs[k] - b[k] * s;
      turned_b[k] = a[k] * s + b[k] * cs[k];
    }
    if constexpr (kNeighbours) {
      A both[2 * kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) both[2 * k] = turned_a[k], both[2 * k + 1] = turned_b[k];
      store<2 * kVec>(head + 2 * pair, both);
    } else {
      store<kVec>(head + pair, turned_a);
      store<kVec>(head + half + pair, turned_b);
    }
  }
}

/// A thread makes a block of four coins and drops the elements that they belong to.
template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_rows(const DropoutLoop c) {
  using A = Sum<T>;
  T* x = row_of<T>(c.x, blockIdx.x, c.stride);
  const std::uint64_t first =
      static_cast<std::uint64_t>(c.row_index[blockIdx.x]) * static_cast<std::uint64_t>(c.columns_total) +
      static_cast<std::uint64_t>(c.first_column);
  const std::int64_t skip = static_cast<std::int64_t>(first % 4);
  const std::int64_t groups = (skip + c.width + 3) / 4;
  const A kept = static_cast<A>(c.factor);
  const bool there = c.words != nullptr;
  const std::uint32_t key[2] = {there ? c.words[0] : c.key[0], there ? c.words[1] : c.key[1]};
  const std::uint32_t salt[2] = {there ? c.words[2] : c.salt[0], there ? c.words[3] : c.salt[1]};
  for (std::int64_t group = threadIdx.x; group < groups; group += kThreads) {
    const std::uint64_t number = first / 4 + static_cast<std::uint64_t>(group);
    std::uint32_t coins[4] = {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), salt[0],
                              salt[1]};
    philox(coins, key[0], key[1]);
    const std::int64_t column = group * 4 - skip;
    if (column >= 0 && column + 4 <= c.width && reinterpret_cast<std::uintptr_t>(x + column) % (4 * sizeof(T)) == 0 &&
        sizeof(T) <= 4) {
      A v[4];
      load<4>(x + column, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = coins[k] < c.threshold ? A(0) : v[k] * kept;
      store<4>(x + column, v);
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (column + k < 0 || column + k >= c.width) continue;
      x[column + k] = narrow<T>(coins[k] < c.threshold ? A(0) : widen(x[column + k]) * kept);
    }
  }
}

}  // namespace

CudaError embedding_forward(const EmbeddingForwardLoop& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_rows(c.table, c.table_stride, c.width, sizeof(T)) &&
                      wide_rows(c.table2, c.table2_stride, c.width, sizeof(T)) &&
                      wide_rows(c.out, c.out_stride, c.width, sizeof(T));
    const unsigned grid = static_cast<unsigned>(rows);
    if (wide) {
      embedding_forward_rows<T, kWide<T>><<<grid, kThreads, 0, to_stream(stream)>>>(c);
    } else {
      embedding_forward_rows<T, 1><<<grid, kThreads, 0, to_stream(stream)>>>(c);
    }
    return launched();
  });
}

CudaError embedding_backward(const EmbeddingBackwardLoop& c, Element element, std::int64_t first_row,
                             std::int64_t table_rows, std::int64_t width, CudaStream stream) {
  if (c.count == 0 || width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const auto into = [&](auto table) {
      using G = decltype(table);
      const bool wide =
          wide_rows(c.dout, c.dout_stride, width, sizeof(T)) && wide_rows(c.dtable, c.dtable_stride, width, sizeof(G));
      const int vec = wide ? kWide<T> : 1;
      const dim3 grid(static_cast<unsigned>(c.count), static_cast<unsigned>(divided_up(width, kThreads * vec)));
      const auto s = to_stream(stream);
      if (wide) {
        embedding_backward_rows<T, G, kWide<T>><<<grid, kThreads, 0, s>>>(c, first_row, table_rows, width);
      } else {
        embedding_backward_rows<T, G, 1><<<grid, kThreads, 0, s>>>(c, first_row, table_rows, width);
      }
      return launched();
    };
    return c.rounded ? into(T()) : into(Sum<T>());
  });
}

CudaError rotary(const RotaryLoop& c, Element element, std::int64_t tokens, CudaStream stream) {
  if (tokens == 0 || c.rotated == 0 || c.heads == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = kWide<T>;
    const int size = sizeof(T);
    const bool wide = reinterpret_cast<std::uintptr_t>(c.x) % 16 == 0 && c.head_stride * size % 16 == 0 &&
                      c.sequence_stride * size % 16 == 0 && c.batch_stride * size % 16 == 0 &&
                      c.rotated / 2 % kVec == 0;
    const unsigned grid = static_cast<unsigned>(tokens);
    const auto s = to_stream(stream);
    if (wide && c.neighbours) {
      rotary_tokens<T, kVec, true><<<grid, kThreads, 0, s>>>(c);
    } else if (wide) {
      rotary_tokens<T, kVec, false><<<grid, kThreads, 0, s>>>(c);
    } else if (c.neighbours) {
      // Two neighbours lie at an even place of a head, but a head may begin anywhere.
      const bool even = reinterpret_cast<std::uintptr_t>(c.x) % (2 * size) == 0 && c.head_stride % 2 == 0 &&
                        c.sequence_stride % 2 == 0 && c.batch_stride % 2 == 0;
      if (!even) return static_cast<CudaError>("rotary positions of neighbours need heads that begin at even places");
      rotary_tokens<T, 1, true><<<grid, kThreads, 0, s>>>(c);
    } else {
      rotary_tokens<T, 1, false><<<grid, kThreads, 0, s>>>(c);
    }
    return launched();
  });
}

CudaError dropout(const DropoutLoop& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    dropout_rows<decltype(type)><<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
