// kernels/cpu/embedding_table.h -- what the loops of embedding.h take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct EmbeddingForwardLoop {
  void* out;
  const std::int64_t *ids, *ids2;
  const void *table, *table2;  // table2 null: none
  std::int64_t out_stride, table_stride, table2_stride, width, first_row, table_rows, table2_rows;
};

struct EmbeddingBackwardLoop {
  void* dtable;  // float (double), or of dout's type
  const void* dout;
  const std::int64_t* order;  // rows of dout, those of one id together and ascending
  const std::int64_t* rows;   // the row of dtable that each belongs to
  std::int64_t dtable_stride, dout_stride, count;
  bool rounded = false;  // dtable has dout's type, which is narrower than sums are
};

constexpr std::int64_t kEmbeddingColumns = 256;  // that a backward loop is given at most

struct EmbeddingTable {
  void (*forward[kElements])(const EmbeddingForwardLoop& call, std::int64_t begin_row, std::int64_t end_row);
  /// The groups that begin in [begin, end) of `order`, and of them the columns given.
  void (*backward[kElements])(const EmbeddingBackwardLoop& call, std::int64_t begin, std::int64_t end,
                              std::int64_t begin_column, std::int64_t end_column);
  /// The same into a table of dout's type; null where that is as wide as its sums.
  void (*backward_rounded[kElements])(const EmbeddingBackwardLoop& call, std::int64_t begin, std::int64_t end,
                                      std::int64_t begin_column, std::int64_t end_column);
};
extern const EmbeddingTable kEmbeddingPlain, kEmbeddingV3, kEmbeddingV4, kEmbeddingV4Bf16;

}  // namespace trireme::kernels
