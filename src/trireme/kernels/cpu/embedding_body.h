// kernels/cpu/embedding_body.h -- the loops behind embedding.h, included once per instruction set.
#include "trireme/kernels/cpu/embedding_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

template <typename T>
void embedding_forward_rows(const EmbeddingForwardLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  for (std::int64_t row = begin; row < end; ++row) {
    T* out = row_of(static_cast<T*>(c.out), row, c.out_stride);
    const std::int64_t id = c.ids[row] - c.first_row;
    const bool ours = id >= 0 && id < c.table_rows;
    const T* first = row_of(static_cast<const T*>(c.table), ours ? id : 0, c.table_stride);
    const std::size_t bytes = static_cast<std::size_t>(c.width) * sizeof(T);
    if (c.table2 == nullptr) {
      if (ours) {
        __builtin_memcpy(out, first, bytes);
      } else {
        __builtin_memset(out, 0, bytes);
      }
      continue;
    }
    const T* second = row_of(static_cast<const T*>(c.table2), c.ids2[row], c.table2_stride);
    if (ours) {
      each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        (V::load(first + i, some) + V::load(second + i, some)).store(out + i, some);
      });
    } else {
      __builtin_memcpy(out, second, bytes);
    }
  }
}

template <typename T>
void embedding_backward_columns(const EmbeddingBackwardLoop& c, std::int64_t begin, std::int64_t end,
                                std::int64_t begin_column, std::int64_t end_column) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  std::int64_t at = begin;
  while (at > 0 && at < end && c.rows[at] == c.rows[at - 1]) ++at;  // another call's group
  while (at < end) {
    std::int64_t after = at + 1;
    while (after < c.count && c.rows[after] == c.rows[at]) ++after;
    A* to = row_of(static_cast<A*>(c.dtable), c.rows[at], c.dtable_stride) + begin_column;
    for (; at < after; ++at) {
      const T* from = row_of(static_cast<const T*>(c.dout), c.order[at], c.dout_stride) + begin_column;
      each<V>(end_column - begin_column, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        (V::load(to + i, some) + V::load(from + i, some)).store(to + i, some);
      });
    }
  }
}

/// A group's columns are added up beside the table, from what it held, and rounded into it once.
template <typename T>
void embedding_backward_rounded(const EmbeddingBackwardLoop& c, std::int64_t begin, std::int64_t end,
                                std::int64_t begin_column, std::int64_t end_column) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const std::int64_t columns = end_column - begin_column;
  A total[kEmbeddingColumns];
  std::int64_t at = begin;
  while (at > 0 && at < end && c.rows[at] == c.rows[at - 1]) ++at;  // another call's group
  while (at < end) {
    std::int64_t after = at + 1;
    while (after < c.count && c.rows[after] == c.rows[at]) ++after;
    T* to = row_of(static_cast<T*>(c.dtable), c.rows[at], c.dtable_stride) + begin_column;
    each<V>(columns, [&](std::int64_t i, auto some) TRIREME_LAMBDA { V::load(to + i, some).store(total + i, some); });
    for (; at < after; ++at) {
      const T* from = row_of(static_cast<const T*>(c.dout), c.order[at], c.dout_stride) + begin_column;
      each<V>(columns, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        (V::load(total + i, some) + V::load(from + i, some)).store(total + i, some);
      });
    }
    each<V>(columns, [&](std::int64_t i, auto some) TRIREME_LAMBDA { V::load(total + i, some).store(to + i, some); });
  }
}

}  // namespace

extern const EmbeddingTable TRIREME_EMBEDDING_TABLE = {
    {embedding_forward_rows<float>, embedding_forward_rows<double>, embedding_forward_rows<Bf16>,
     embedding_forward_rows<F16>},
    {embedding_backward_columns<float>, embedding_backward_columns<double>, embedding_backward_columns<Bf16>,
     embedding_backward_columns<F16>},
    {nullptr, nullptr, embedding_backward_rounded<Bf16>, embedding_backward_rounded<F16>}};

}  // namespace trireme::kernels
