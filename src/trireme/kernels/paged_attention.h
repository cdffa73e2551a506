// kernels/paged_attention.h -- attention of single queries over a paged KV cache: decode, and short prefill chunks.
//
// Keys and values lie in blocks; the block table of a sequence says in which. Each query reads the keys it sees where
// they are, so a step neither copies nor packs the cache. Queries are computed one by one, block by block in the order
// of positions: a query's bits depend on the tokens of its own sequence alone, not on the other sequences of the batch,
// on how the sequence was cut into chunks, on where its blocks lie, or on the number of threads.
// Many queries of one sequence are faster with attention.h over gathered blocks.
//
// On a GPU what a step reads from block tables and lengths lies on the device too, so that a CUDA graph that was
// captured once serves all steps of a size. There sums are split by the number of queries: bits may differ with it.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "trireme/kernels/sparse/block_lists.h"

namespace trireme::kernels {

/// The queries of one sequence: rows [first_row, first_row + query_len) of q, at positions context_len, ...
struct PagedSequence {
  std::int64_t first_row = 0, query_len = 0, context_len = 0;
  /// Physical block of each logical one, up to the last query's; those that no query sees may be anything.
  std::span<const std::int32_t> block_table = {};
};

struct PagedAttention {
  double scale = 1.0;
  std::int64_t window = 0;  ///< a query sees at most this many positions back, itself included; 0: all
  /// Block-sparse, on the CPU and without a window: which blocks of keys a query sees, by its position. Borrowed; of
  /// rows as long as the longest sequence at least, in blocks that those of the cache divide. Null: all.
  const BlockLists* blocks = nullptr;
  std::int64_t first_layout_head = 0;  ///< what the lists call the first head of q
  /// On the CPU: keys and values are FP8 codes, and these their scales (kv_codes.h), contiguous float [blocks, block
  /// size, kv heads, parts]. Undefined: they are of q's type.
  at::Tensor key_scales = {}, value_scales = {};
};

/// Causal. `q` and `out` are [tokens, heads, head size], any strides but a contiguous last dimension; rows of no
/// sequence are left alone. `keys` and `values` are contiguous [blocks, block size, kv heads, head size], and hold the
/// queries' own keys too. All of one type: float, double, bfloat16 or half; or codes. Sums are kept in float (double).
void paged_attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                     std::span<const PagedSequence> sequences, const PagedAttention& options);

/// Where the keys of each query lie, on a GPU.
struct PagedRows {
  at::Tensor block_tables;  ///< int32 [sequences, blocks], contiguous; entries that no query sees may be anything
  at::Tensor sequences;     ///< int32 [tokens]: which row of the tables
  at::Tensor lengths;       ///< int32 [tokens]: keys up to and with the query's own; 0: its row of `out` is left alone
};
/// The same on a GPU, heads of at most 256 numbers; sums in float (double). Numbers in `rows` are not looked at here.
void paged_attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                     const PagedRows& rows, const PagedAttention& options);

/// GPU: k and v [tokens, kv heads, head size] go to slots block * block size + offset; below 0: nowhere. `v` and
/// `values` may be undefined.
void write_paged(at::Tensor& keys, at::Tensor& values, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& slots);

}  // namespace trireme::kernels
