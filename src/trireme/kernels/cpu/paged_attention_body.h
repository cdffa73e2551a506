// kernels/cpu/paged_attention_body.h -- the loop behind paged_attention.h, included once per instruction set.
#include "trireme/kernels/cpu/paged_attention_table.h"
#include "trireme/kernels/cpu/vec.h"
#include "trireme/kernels/cpu/vec_math.h"

namespace trireme::kernels {
namespace {

/// scores[0 .. kKeys - 1] = query . key for neighbouring keys. A key's bits are the same for every kKeys.
template <int kKeys, typename T, typename A>
TRIREME_INLINE void score_keys(A* scores, const A* query, const T* keys, std::int64_t stride, std::int64_t size) {
  using V = typename LanesOf<T>::Type;
  V sums[kKeys];
  for (int key = 0; key < kKeys; ++key) sums[key] = V::all(0);
  each<V>(size, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    const V q = V::load(query + i, some);
    for (int key = 0; key < kKeys; ++key)
      sums[key] = multiply_add(q, V::load(keys + key * stride + i, some), sums[key]);
  });
  for (int key = 0; key < kKeys; ++key) scores[key] = sum_of(sums[key]);
}

/// Running maximum, sum and weighted values of one query head.
template <typename A>
struct Softmax {
  A largest, sum;
  A* values;  // [head_dim]
};

/// Takes in the scores of `count` keys, which become their weights.
template <typename T, typename A>
TRIREME_INLINE void take_in(Softmax<A>& state, A* scores, std::int64_t count, const T* values, std::int64_t stride,
                            std::int64_t size) {
  using V = typename LanesOf<T>::Type;
  A largest = state.largest;
  for (std::int64_t key = 0; key < count; ++key) largest = scores[key] > largest ? scores[key] : largest;
  if (largest > state.largest) {
    const V factor = exponential(V::all(state.largest - largest));
    state.sum *= factor.first();
    each<V>(size, [&](std::int64_t i, auto some)
                      TRIREME_LAMBDA { (V::load(state.values + i, some) * factor).store(state.values + i, some); });
    state.largest = largest;
  }
  each<V>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    exponential(V::load(scores + i, some) - V::all(largest)).store(scores + i, some);
  });
  for (std::int64_t key = 0; key < count; ++key) state.sum += scores[key];
  // Four columns side by side: one alone would wait for its own last addition.
  constexpr std::int64_t kColumns = 4;
  std::int64_t i = 0;
  for (; i + kColumns * V::kLanes <= size; i += kColumns * V::kLanes) {
    V sums[kColumns];
    for (std::int64_t column = 0; column < kColumns; ++column) {
      sums[column] = V::load(state.values + i + column * V::kLanes, All{});
    }
    for (std::int64_t key = 0; key < count; ++key) {
      const V weight = V::all(scores[key]);
      const T* row = values + key * stride + i;
      for (std::int64_t column = 0; column < kColumns; ++column) {
        sums[column] = multiply_add(weight, V::load(row + column * V::kLanes, All{}), sums[column]);
      }
    }
    for (std::int64_t column = 0; column < kColumns; ++column) {
      sums[column].store(state.values + i + column * V::kLanes, All{});
    }
  }
  each<V>(size - i, [&](std::int64_t rest, auto some) TRIREME_LAMBDA {
    V sum = V::load(state.values + i + rest, some);
    for (std::int64_t key = 0; key < count; ++key) {
      sum = multiply_add(V::all(scores[key]), V::load(values + key * stride + i + rest, some), sum);
    }
    sum.store(state.values + i + rest, some);
  });
}

/// One head's keys or values of a block as floats (doubles) side by side: several query heads then read them from the
/// first-level cache, where rows that lie a power of two apart would drive each other out.
template <typename T, typename A>
TRIREME_INLINE const A* stage(A* to, const T* from, std::int64_t count, std::int64_t stride, std::int64_t size) {
  using V = typename LanesOf<T>::Type;
  for (std::int64_t key = 0; key < count; ++key) {
    each<V>(size, [&](std::int64_t i, auto some)
                      TRIREME_LAMBDA { V::load(from + key * stride + i, some).store(to + key * size + i, some); });
  }
  return to;
}

/// What FP8 codes stand for, without their scale and times 2^-8.
template <typename V, typename Lanes>
TRIREME_INLINE V code_lanes(const std::uint8_t* codes, Lanes some) {
  if constexpr (V::kLanes == 1) {
    return V::all(e4m3_floats(codes, First{1}).first());
  } else {
    return e4m3_floats(codes, some);
  }
}

/// The same of FP8 codes, with `parts` scales a head.
template <typename V, typename A>
TRIREME_INLINE const A* stage_codes(A* to, const std::uint8_t* from, const float* scales, std::int64_t count,
                                    std::int64_t stride, std::int64_t size, std::int64_t parts,
                                    std::int64_t scale_stride) {
  const std::int64_t part = size / parts;
  for (std::int64_t key = 0; key < count; ++key) {
    for (std::int64_t p = 0; p < parts; ++p) {
      const V scale = V::all(static_cast<A>(scales[key * scale_stride + p]) * 256);
      const std::uint8_t* codes = from + key * stride + p * part;
      A* const out = to + key * size + p * part;
      each<V>(part, [&](std::int64_t i, auto some)
                        TRIREME_LAMBDA { (code_lanes<V>(codes + i, some) * scale).store(out + i, some); });
    }
  }
  return to;
}

template <typename T>
TRIREME_INLINE void fetch_ahead(const T* rows, std::int64_t count, std::int64_t stride, std::int64_t size) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t key = 0; key < count; ++key) {
    for (std::int64_t i = 0; i < size; i += kLine) __builtin_prefetch(rows + key * stride + i);
  }
}

/// Scores of one query head with the keys of a block, and what follows from them.
template <typename T, typename A>
TRIREME_INLINE void attend_block(A* state, A* scores, const A* query, const T* keys, const T* values,
                                 std::int64_t count, std::int64_t stride, std::int64_t size) {
  std::int64_t key = 0;
  for (; key + 4 <= count; key += 4) score_keys<4>(scores + key, query, keys + key * stride, stride, size);
  for (; key < count; ++key) score_keys<1>(scores + key, query, keys + key * stride, stride, size);
  Softmax<A> softmax{state[size], state[size + 1], state};
  take_in(softmax, scores, count, values, stride, size);
  state[size] = softmax.largest;
  state[size + 1] = softmax.sum;
}

/// The lists of a query's heads that share keys, walked together.
class SparseWalk {
 public:
  /// `room` for two numbers a head.
  TRIREME_INLINE SparseWalk(const PagedAttentionLoop::Blocks& blocks, std::int64_t* room, std::int64_t heads)
      : blocks_(blocks), at_(room), end_(room + heads), heads_(heads) {}
  TRIREME_INLINE void begin(std::int64_t first_head, std::int64_t position) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      const std::int64_t list = (blocks_.first_head + first_head + head) * blocks_.rows + position / blocks_.tokens;
      at_[head] = blocks_.begin[list];
      end_[head] = blocks_.begin[list + 1];
    }
  }
  /// The next block that some head sees; -1: none.
  TRIREME_INLINE std::int64_t next() const {
    std::int64_t next = -1;
    for (std::int64_t head = 0; head < heads_; ++head) {
      if (at_[head] == end_[head]) continue;
      const std::int64_t column = blocks_.columns[at_[head]];
      next = next < 0 || column < next ? column : next;
    }
    return next;
  }
  TRIREME_INLINE bool sees(std::int64_t head, std::int64_t column) const {
    return at_[head] < end_[head] && blocks_.columns[at_[head]] == column;
  }
  TRIREME_INLINE void pass(std::int64_t column) {
    for (std::int64_t head = 0; head < heads_; ++head) at_[head] += sees(head, column) ? 1 : 0;
  }

 private:
  const PagedAttentionLoop::Blocks& blocks_;
  std::int64_t *at_, *end_, heads_;
};

/// `kSparse`: blocks that the lists name; else all. K: what keys and values are, T or codes.
template <typename T, typename K, bool kSparse>
void attend_queries(const PagedAttentionLoop& c, std::int64_t begin_task, std::int64_t end_task) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  constexpr bool kCodes = sizeof(K) == 1;
  const std::int64_t group = c.heads / c.kv_heads, size = c.head_dim, stride = c.kv_heads * size;
  const std::int64_t walk_bytes = kSparse ? 2 * group * static_cast<std::int64_t>(sizeof(std::int64_t)) : 0;
  char* const room = static_cast<char*>(c.scratch(
      walk_bytes + (group * (2 * size + 2) + c.block_size * (1 + 2 * size)) * static_cast<std::int64_t>(sizeof(A))));
  A* const queries = reinterpret_cast<A*>(room + walk_bytes);
  A* const sums = queries + group * size;  // per head: its values, then largest and sum
  A* const scores = sums + group * (size + 2);
  A* const staged = scores + c.block_size;
  for (std::int64_t task = begin_task; task < end_task; ++task) {
    const PagedAttentionLoop::Query& query = c.queries[task / c.kv_heads];
    const std::int64_t kv_head = task % c.kv_heads, first_head = kv_head * group;
    for (std::int64_t head = 0; head < group; ++head) {
      const T* from = static_cast<const T*>(c.q) + query.row * c.q_row + (first_head + head) * c.q_head;
      A *to = queries + head * size, *zero = sums + head * (size + 2);
      const V scale = V::all(static_cast<A>(c.scale)), none = V::all(0);
      each<V>(size, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        (V::load(from + i, some) * scale).store(to + i, some);
        none.store(zero + i, some);
      });
      zero[size] = -__builtin_huge_val();
      zero[size + 1] = 0;
    }
    const auto attend_to = [&](std::int64_t block, const auto& sees) TRIREME_LAMBDA {
      const std::int64_t start = block * c.block_size;
      const std::int64_t first = query.begin > start ? query.begin - start : 0;
      const std::int64_t last = query.end < start + c.block_size ? query.end - start : c.block_size;
      const std::int64_t at = (query.block_table[block] * c.block_size + first) * stride + kv_head * size;
      const K *keys = static_cast<const K*>(c.keys) + at, *values = static_cast<const K*>(c.values) + at;
      const std::int64_t count = last - first;
      if (start + c.block_size < query.end) {
        const std::int64_t next = query.block_table[block + 1] * c.block_size * stride + kv_head * size;
        fetch_ahead(static_cast<const K*>(c.keys) + next, c.block_size, stride, size);
        fetch_ahead(static_cast<const K*>(c.values) + next, c.block_size, stride, size);
      }
      const A *near_keys = nullptr, *near_values = nullptr;
      if constexpr (kCodes) {
        const std::int64_t scale_stride = c.kv_heads * c.parts;
        const std::int64_t scale_at =
            (query.block_table[block] * c.block_size + first) * scale_stride + kv_head * c.parts;
        near_keys = stage_codes<V>(staged, keys, c.key_scales + scale_at, count, stride, size, c.parts, scale_stride);
        near_values = stage_codes<V>(staged + c.block_size * size, values, c.value_scales + scale_at, count, stride,
                                     size, c.parts, scale_stride);
      } else {
        if (group == 1) {
          attend_block(sums, scores, queries, keys, values, count, stride, size);
          return;
        }
        near_keys = stage(staged, keys, count, stride, size);
        near_values = stage(staged + c.block_size * size, values, count, stride, size);
      }
      for (std::int64_t head = 0; head < group; ++head) {
        if (!sees(head)) continue;
        attend_block(sums + head * (size + 2), scores, queries + head * size, near_keys, near_values, count, size,
                     size);
      }
    };
    if constexpr (kSparse) {
      const std::int64_t tokens = c.blocks->tokens;
      SparseWalk walk(*c.blocks, reinterpret_cast<std::int64_t*>(room), group);
      walk.begin(first_head, query.end - 1);
      for (std::int64_t column = walk.next(); column >= 0 && column * tokens < query.end; column = walk.next()) {
        const std::int64_t end = (column + 1) * tokens < query.end ? (column + 1) * tokens : query.end;
        for (std::int64_t block = column * tokens / c.block_size; block * c.block_size < end; ++block)
          attend_to(block, [&](std::int64_t head) TRIREME_LAMBDA { return walk.sees(head, column); });
        walk.pass(column);
      }
    } else {
      for (std::int64_t block = query.begin / c.block_size; block * c.block_size < query.end; ++block)
        attend_to(block, [](std::int64_t) TRIREME_LAMBDA { return true; });
    }
    for (std::int64_t head = 0; head < group; ++head) {
      const A* state = sums + head * (size + 2);
      T* to = static_cast<T*>(c.out) + query.row * c.out_row + (first_head + head) * c.out_head;
      const V sum = V::all(state[size + 1]);
      each<V>(size,
              [&](std::int64_t i, auto some) TRIREME_LAMBDA { (V::load(state + i, some) / sum).store(to + i, some); });
    }
  }
}

template <typename T, typename K>
void attend(const PagedAttentionLoop& c, std::int64_t begin_task, std::int64_t end_task) {
  c.blocks != nullptr ? attend_queries<T, K, true>(c, begin_task, end_task)
                      : attend_queries<T, K, false>(c, begin_task, end_task);
}

}  // namespace

extern const PagedAttentionTable TRIREME_PAGED_ATTENTION_TABLE = {
    {attend<float, float>, attend<double, double>, attend<Bf16, Bf16>, attend<F16, F16>},
    {attend<float, std::uint8_t>, attend<double, std::uint8_t>, attend<Bf16, std::uint8_t>, attend<F16, std::uint8_t>}};

}  // namespace trireme::kernels
