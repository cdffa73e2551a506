// kernels/cpu/paged_attention_table.h -- what the loop of paged_attention.h takes: pointers, and strides in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct PagedAttentionLoop {
  struct Query {
    std::int64_t row, begin, end;  // in q and out; the positions that it sees
    const std::int32_t* block_table;
  };
  /// Block-sparse: of each head, those blocks of `tokens` positions that a query sees. Null: all.
  struct Blocks {
    const std::int64_t* begin;
    const std::int32_t* columns;
    std::int64_t tokens, rows, first_head;
  };
  const Query* queries;
  const void *q, *keys, *values;
  const float *key_scales, *value_scales;  // of FP8 codes (kv_codes.h): `parts` for each head of each token
  std::int64_t parts;
  void* out;
  std::int64_t q_row, q_head, out_row, out_head;
  std::int64_t heads, kv_heads, head_dim, block_size;
  double scale;
  const Blocks* blocks;
  /// A thread's room for `bytes`.
  void* (*scratch)(std::int64_t bytes);
};

struct PagedAttentionTable {
  /// Task query * kv_heads + kv head: the heads of queries that share a head of keys.
  void (*attend[kElements])(const PagedAttentionLoop& call, std::int64_t begin_task, std::int64_t end_task);
  /// Keys and values are codes.
  void (*attend_codes[kElements])(const PagedAttentionLoop& call, std::int64_t begin_task, std::int64_t end_task);
};
extern const PagedAttentionTable kPagedAttentionPlain, kPagedAttentionV3, kPagedAttentionV4, kPagedAttentionV4Bf16;

}  // namespace trireme::kernels
