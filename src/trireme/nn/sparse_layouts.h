// nn/sparse_layouts.h -- the block layouts of a model's attention, one for each length of rows that it meets.
//
// Sequences that grow, over a KV cache, have the layout of the longest rows: what a token sees must not change while
// others follow. Where a layout depends on the length of its rows (random blocks of mode "variable", several global
// blocks of a cut window of mode "fixed") that is another one than that of a whole row of their length.
// Ranks that share rows compute rectangles of a layout: some queries of a row and some of its keys.
// Depends on: spec, kernels.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "trireme/kernels/sparse/block_layout.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/spec/sparse_attention.h"

namespace trireme::nn {

class SparseLayouts {
 public:
  /// `heads`: of the whole model; ranks that have some of them name their first.
  /// `longest`: rows that the model was made for.
  SparseLayouts(spec::SparseAttention sparse, std::int64_t heads, bool causal, std::int64_t longest)
      : sparse_(std::move(sparse)), heads_(heads), longest_(longest), causal_(causal) {}

  /// Lives as long as this; made by the first call with its length.
  const kernels::BlockLayout& layout(std::int64_t tokens);
  /// Of these queries and keys of rows of so many tokens; all numbers are multiples of 16, but for the row's end.
  const kernels::BlockLayout& rectangle(std::int64_t tokens, const TokenRange& queries, const TokenRange& keys);
  /// Of sequences that grow and have so many tokens now.
  const kernels::BlockLists& growing(std::int64_t tokens);
  /// (query, key) pairs of whole rows' queries that are computed in all of these heads, divided by their number.
  double pairs(const TokenSpan& rows, const TokenRange& queries, std::int64_t batch, std::int64_t first_head,
               std::int64_t heads);
  /// The same of `count` queries of one growing sequence, the first at a position.
  double growing_pairs(std::int64_t first, std::int64_t count, std::int64_t first_head, std::int64_t heads);

 private:
  spec::SparseAttention sparse_;
  std::int64_t heads_, longest_;
  bool causal_;
  std::mutex mutex_;  // micro-batches of several stages may run at once
  std::map<std::int64_t, std::unique_ptr<kernels::BlockLayout>> layouts_;
  /// By tokens of a row, first query, queries, first key, keys.
  std::map<std::array<std::int64_t, 5>, std::unique_ptr<kernels::BlockLayout>> rectangles_;
};

}  // namespace trireme::nn
