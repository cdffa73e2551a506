// What is done for each token: rows of tables, rotary positions, draws of dropout.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 4;  // vectors that a thread has under way
constexpr int kTile = kAtOnce * kThreads;

/// Rows of `per_row` vectors, laid end to end and cut into a tile for each block: blocks are equally busy whatever the
/// width is.
struct Lines {
  std::int64_t rows;
  std::uint32_t per_row, step_rows, step_vectors;  // kThreads vectors on is so many rows down and vectors along

  Lines(std::int64_t all_rows, std::int64_t vectors)
      : rows(all_rows),
        per_row(static_cast<std::uint32_t>(vectors)),
        step_rows(kThreads / per_row),
        step_vectors(kThreads % per_row) {}
  unsigned blocks() const { return static_cast<unsigned>(divided_up(rows * per_row, kTile)); }
};

/// Where a thread's vectors lie. Rows behind the last one belong to nobody.
struct Spots {
  std::int64_t row[kAtOnce];
  std::uint32_t vector[kAtOnce];

  __device__ __forceinline__ explicit Spots(const Lines& lines) {
    const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * kTile, top = first / lines.per_row;
    const std::uint32_t along = static_cast<std::uint32_t>(first - top * lines.per_row) + threadIdx.x;
    const std::uint32_t down = along / lines.per_row;
    row[0] = static_cast<std::int64_t>(top + down);
    vector[0] = along - down * lines.per_row;
#pragma unroll
    for (int t = 1; t < kAtOnce; ++t) {
      const std::uint32_t next = vector[t - 1] + lines.step_vectors;
      const bool over = next >= lines.per_row;
      row[t] = row[t - 1] + lines.step_rows + (over ? 1 : 0);
      vector[t] = over ? next - lines.per_row : next;
    }
  }
};

/// A number of 16 bits that has no neighbour to share a register with.
template <typename T>
struct Single {
  T number;
  __device__ __forceinline__ Sum<T> operator[](int) const { return widen(number); }
};

/// kVec numbers as they lie, be it one.
template <int kVec, typename T>
__device__ __forceinline__ auto hold(const T* from) {
  if constexpr (sizeof(T) * kVec % 4 == 0) {
    return load_raw<kVec>(from);
  } else {
    static_assert(kVec == 1);
    return Single<T>{*from};
  }
}
template <typename T, int kVec>
using Held = decltype(hold<kVec>(static_cast<const T*>(nullptr)));

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) embedding_forward_vectors(const EmbeddingForwardLoop c, const Lines lines) {
  using A = Sum<T>;
  const Spots at(lines);
  const bool two = c.table2 != nullptr;
  std::int64_t from[kAtOnce], place[kAtOnce];  // -1: none
#pragma unroll
  for (int t = 0; t < kAtOnce; ++t) {
    from[t] = place[t] = -1;
    if (at.row[t] < lines.rows) from[t] = c.ids[at.row[t]] - c.first_row;
    if (at.row[t] < lines.rows && two) place[t] = c.ids2[at.row[t]];
  }
  Held<T, kVec> v[kAtOnce] = {}, more[kAtOnce] = {};
#pragma unroll
  for (int t = 0; t < kAtOnce; ++t) {
    const std::int64_t column = static_cast<std::int64_t>(at.vector[t]) * kVec;
    const bool here = from[t] >= 0 && from[t] < c.table_rows, known = place[t] >= 0 && place[t] < c.table2_rows;
    if (here) v[t] = hold<kVec>(row_of<const T>(c.table, from[t], c.table_stride) + column);
    if (known) more[t] = hold<kVec>(row_of<const T>(c.table2, place[t], c.table2_stride) + column);
  }
#pragma unroll
  for (int t = 0; t < kAtOnce; ++t) {
    if (at.row[t] >= lines.rows) continue;
    const bool known = place[t] >= 0 && place[t] < c.table2_rows;
    A sum[kVec];
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      sum[k] = v[t][k];
      if (two) sum[k] = known ? sum[k] + more[t][k] : A(NAN);
    }
    store<kVec>(row_of<T>(c.out, at.row[t], c.out_stride) + static_cast<std::int64_t>(at.vector[t]) * kVec, sum);
  }
}

constexpr int kGroupThreads = 128;

/// The block of the first token of a group adds up all of it; other blocks have nothing to do. blockIdx.y: columns.
/// G is the table's type, into which a sum is rounded once.
template <typename T, typename G, int kVec>
__global__ void __launch_bounds__(kGroupThreads)
    embedding_backward_rows(const EmbeddingBackwardLoop c, std::int64_t first_row, std::int64_t table_rows,
                            std::int64_t width) {
  using A = Sum<T>;
  const std::int64_t begin = blockIdx.x, id = c.rows[begin], to = id - first_row;
  if ((begin > 0 && c.rows[begin - 1] == id) || to < 0 || to >= table_rows) return;
  const int column = (static_cast<int>(blockIdx.y) * kGroupThreads + threadIdx.x) * kVec, lane = threadIdx.x % 32;
  const bool busy = column < width;
  G* target = static_cast<G*>(c.dtable) + to * c.dtable_stride + column;
  A total[kVec] = {};
  if (busy) load<kVec>(target, total);
  constexpr int kAhead = 8;  // rows on their way at once
  static_assert(32 % kAhead == 0);
  // A warp, its idle lanes too, looks up 32 rows together: the group's come first, as all are sorted by it.
  int count = 32;
  for (std::int64_t at = begin; count == 32; at += 32) {
    const bool there = at + lane < c.count;
    const std::int64_t order = there ? c.order[at + lane] : 0;
    count = __popc(__ballot_sync(0xffffffffu, there && c.rows[at + lane] == id));
    for (int begun = 0; begun < count; begun += kAhead) {
      Held<T, kVec> v[kAhead] = {};
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const std::int64_t from = __shfl_sync(0xffffffffu, order, begun + j);
        if (busy && begun + j < count) v[j] = hold<kVec>(row_of<const T>(c.dout, from, c.dout_stride) + column);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (begun + j >= count) break;
#pragma unroll
        for (int k = 0; k < kVec; ++k) total[k] += v[j][k];
      }
    }
  }
  if (busy) store<kVec>(target, total);
}

/// Heads that a thread turns by the same angles: eight vectors of 16 bytes are under way.
template <bool kNeighbours>
inline constexpr int kHeadsAtOnce = kNeighbours ? 8 : 4;

/// The same kPairs pairs of every `groups`th head of a token are a thread's, so that it looks up their angles once.
template <typename T, int kPairs, bool kNeighbours>
__global__ void __launch_bounds__(kThreads)
    rotary_heads(const RotaryLoop c, std::int64_t tokens, std::uint32_t groups, std::uint32_t per_head) {
  using A = Sum<T>;
  constexpr int kHeads = kHeadsAtOnce<kNeighbours>, kVec = kNeighbours ? 2 * kPairs : kPairs;
  const std::uint32_t per_token = groups * per_head;
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * kThreads, top = first / per_token;
  const std::uint32_t along = static_cast<std::uint32_t>(first - top * per_token) + threadIdx.x;
  const std::uint32_t down = along / per_token, part = along - down * per_token, group = part / per_head;
  const std::int64_t token = static_cast<std::int64_t>(top + down), half = c.rotated / 2;
  const std::int64_t pair = static_cast<std::int64_t>(part - group * per_head) * kPairs;
  const std::uint32_t heads = token < tokens ? static_cast<std::uint32_t>(c.heads) : 0;
  const std::int64_t position = token < tokens ? c.positions[token] : -1, step = groups * c.head_stride;
  T* x = static_cast<T*>(c.x) + token / c.sequence * c.batch_stride + token % c.sequence * c.sequence_stride +
         group * c.head_stride + (kNeighbours ? 2 * pair : pair);
  Held<T, kVec> a[kHeads] = {}, b[kHeads] = {};
#pragma unroll
  for (int j = 0; j < kHeads; ++j) {
    if (group + j * groups >= heads) continue;
    a[j] = hold<kVec>(x + j * step);
    if constexpr (!kNeighbours) b[j] = hold<kVec>(x + j * step + half);
  }
  if (token >= tokens) return;  // not before: the numbers are asked for on this side of a branch, the angles behind it
  A cs[kPairs], sn[kPairs];
  if (position >= 0 && position < c.table_rows) {
    load<kPairs>(static_cast<const A*>(c.cosines) + position * half + pair, cs);
    load<kPairs>(static_cast<const A*>(c.sines) + position * half + pair, sn);
  } else {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) cs[k] = sn[k] = A(NAN);
  }
  const A sign = c.inverse ? A(-1) : A(1);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) sn[k] *= sign;
#pragma unroll
  for (int j = 0; j < kHeads; ++j) {
    if (group + j * groups >= heads) continue;
    A left[kVec], right[kVec];  // neighbours lie side by side in the one, halves in both
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const A p = kNeighbours ? a[j][2 * k] : a[j][k], q = kNeighbours ? a[j][2 * k + 1] : b[j][k];
      const A turned_p = p * cs[k] - q * sn[k], turned_q = p * sn[k] + q * cs[k];
      if constexpr (kNeighbours) {
        left[2 * k] = turned_p, left[2 * k + 1] = turned_q;
      } else {
        left[k] = turned_p, right[k] = turned_q;
      }
    }
    store<kVec>(x + j * step, left);
    if constexpr (!kNeighbours) store<kVec>(x + j * step + half, right);
  }
}

/// Whole blocks of draws, and at least 16 bytes.
template <typename T>
inline constexpr int kCoinVec = kWide<T> < 4 ? 4 : kWide<T>;

/// For rows that begin with a block of four draws and can be moved in whole vectors.
template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_vectors(const DropoutLoop c, const Lines lines) {
  using A = Sum<T>;
  constexpr int kVec = kCoinVec<T>;
  const Spots at(lines);
  const bool there = c.words != nullptr;
  const std::uint32_t key[2] = {there ? c.words[0] : c.key[0], there ? c.words[1] : c.key[1]};
  const std::uint32_t salt[2] = {there ? c.words[2] : c.salt[0], there ? c.words[3] : c.salt[1]};
  std::int64_t index[kAtOnce];
  T* x[kAtOnce];
  Raw<T, kVec> v[kAtOnce] = {};
#pragma unroll
  for (int t = 0; t < kAtOnce; ++t) {
    index[t] = 0;
    x[t] = row_of<T>(c.x, at.row[t], c.stride) + static_cast<std::int64_t>(at.vector[t]) * kVec;
    if (at.row[t] >= lines.rows) continue;
    index[t] = c.row_index[at.row[t]];
    v[t] = load_raw<kVec>(x[t]);
  }
  if (at.row[0] >= lines.rows) return;  // not before: all loads are begun on this side of a branch
  const A kept = static_cast<A>(c.factor);
#pragma unroll
  for (int t = 0; t < kAtOnce; ++t) {
    const std::uint64_t first = static_cast<std::uint64_t>(index[t]) * static_cast<std::uint64_t>(c.columns_total) +
                                static_cast<std::uint64_t>(c.first_column) +
                                static_cast<std::uint64_t>(at.vector[t]) * kVec;
    A left[kVec];
#pragma unroll
    for (int block = 0; block < kVec / 4; ++block) {
      const std::uint64_t number = first / 4 + block;
      std::uint32_t dropout_rng[4] = {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
                                      salt[0], salt[1]};
      philox(dropout_rng, key[0], key[1]);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        left[4 * block + k] = dropout_rng[k] < c.threshold ? A(0) : v[t][4 * block + k] * kept;
    }
    // Draws without a row cost nothing beside those of others; only the store is skipped.
    const Raw<T, kVec> rounded = to_raw<T>(left);
    if (at.row[t] < lines.rows) store_raw(x[t], rounded);
  }
}

/// For any rows: a thread makes a block of four draws and drops the elements that they belong to.
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
    std::uint32_t dropout_rng[4] = {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
                                    salt[0], salt[1]};
    philox(dropout_rng, key[0], key[1]);
    const std::int64_t column = group * 4 - skip;
    if (column >= 0 && column + 4 <= c.width && reinterpret_cast<std::uintptr_t>(x + column) % (4 * sizeof(T)) == 0 &&
        sizeof(T) <= 4) {
      A v[4];
      load<4>(x + column, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = dropout_rng[k] < c.threshold ? A(0) : v[k] * kept;
      store<4>(x + column, v);
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (column + k < 0 || column + k >= c.width) continue;
      x[column + k] = narrow<T>(dropout_rng[k] < c.threshold ? A(0) : widen(x[column + k]) * kept);
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
    const Lines lines(rows, wide ? c.width / kWide<T> : c.width);
    if (wide) {
      embedding_forward_vectors<T, kWide<T>><<<lines.blocks(), kThreads, 0, to_stream(stream)>>>(c, lines);
    } else {
      embedding_forward_vectors<T, 1><<<lines.blocks(), kThreads, 0, to_stream(stream)>>>(c, lines);
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
      const dim3 grid(static_cast<unsigned>(c.count), static_cast<unsigned>(divided_up(width, kGroupThreads * vec)));
      const auto s = to_stream(stream);
      if (wide) {
        embedding_backward_rows<T, G, kWide<T>><<<grid, kGroupThreads, 0, s>>>(c, first_row, table_rows, width);
      } else {
        embedding_backward_rows<T, G, 1><<<grid, kGroupThreads, 0, s>>>(c, first_row, table_rows, width);
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
    const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
    const bool wide = aligned(c.x) && aligned(c.cosines) && aligned(c.sines) && c.head_stride * size % 16 == 0 &&
                      c.sequence_stride * size % 16 == 0 && c.batch_stride * size % 16 == 0 &&
                      (c.neighbours ? c.rotated : c.rotated / 2) % kVec == 0;
    const auto rotate = [&]<int kPairs, bool kNeighbours>() {
      const std::int64_t groups = divided_up(c.heads, kHeadsAtOnce<kNeighbours>), per_head = c.rotated / 2 / kPairs;
      const auto grid = static_cast<unsigned>(divided_up(tokens * groups * per_head, kThreads));
      rotary_heads<T, kPairs, kNeighbours><<<grid, kThreads, 0, to_stream(stream)>>>(
          c, tokens, static_cast<std::uint32_t>(groups), static_cast<std::uint32_t>(per_head));
      return launched();
    };
    if (wide && c.neighbours) return rotate.template operator()<kVec / 2, true>();
    if (wide) return rotate.template operator()<kVec, false>();
    if (!c.neighbours) return rotate.template operator()<1, false>();
    // Two neighbours lie at an even place of a head, but a head may begin anywhere.
    const bool even = reinterpret_cast<std::uintptr_t>(c.x) % (2 * size) == 0 && c.head_stride % 2 == 0 &&
                      c.sequence_stride % 2 == 0 && c.batch_stride % 2 == 0;
    if (!even) return static_cast<CudaError>("rotary positions of neighbours need heads that begin at even places");
    return rotate.template operator()<1, true>();
  });
}

CudaError dropout(const DropoutLoop& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    constexpr int kVec = kCoinVec<T>;
    if (wide_rows(c.x, c.stride, c.width, sizeof(T)) && c.width % kVec == 0 && c.columns_total % 4 == 0 &&
        c.first_column % 4 == 0) {
      const Lines lines(rows, c.width / kVec);
      dropout_vectors<T><<<lines.blocks(), kThreads, 0, to_stream(stream)>>>(c, lines);
    } else {
      dropout_rows<T><<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    }
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
