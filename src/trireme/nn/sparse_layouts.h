// nn/sparse_layouts.h -- the block layouts of a model's attention, one for each length of rows that it meets.
//
// Depends on: spec, kernels.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "trireme/kernels/sparse/block_layout.h"
#include "trireme/nn/flops.h"
#include "trireme/spec/sparse_attention.h"

namespace trireme::nn {

class SparseLayouts {
 public:
  /// `heads`: of the whole model; ranks that have some of them name their first.
  SparseLayouts(spec::SparseAttention sparse, std::int64_t heads, bool causal)
      : sparse_(std::move(sparse)), heads_(heads), causal_(causal) {}

  /// Lives as long as this; made by the first call with its length.
  const kernels::BlockLayout& layout(std::int64_t tokens);
  /// (query, key) pairs that are computed in all of these heads, divided by their number.
  double pairs(const TokenSpan& rows, std::int64_t batch, std::int64_t first_head, std::int64_t heads);

 private:
  spec::SparseAttention sparse_;
  std::int64_t heads_;
  bool causal_;
  std::mutex mutex_;  // micro-batches of several stages may run at once
  std::map<std::int64_t, std::unique_ptr<kernels::BlockLayout>> layouts_;
};

}  // namespace trireme::nn
