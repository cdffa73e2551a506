// nn/relative_bias.h -- T5's positions (Raffel et al. 2020): a learned number a head and distance, added to scores.
//
// Distances between a query and a key fall into buckets: half of them hold one distance each, the others ranges that
// grow with the logarithm up to max_distance, beyond which all share the last one. Where queries see keys on both sides
// (an encoder), each side has half of the buckets. One table [buckets, heads] serves all layers of a stack.
//
// Attention with such biases has no flash kernel here: scores of all pairs exist while a layer runs, forward and again
// in backward, which keeps no more than the others do. Queries and keys may be stretches of rows, of some of the heads
// (context parallelism), as forward_block() takes them.
// Depends on: base, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/nn/attention_block.h"

namespace trireme::nn {

struct RelativeBuckets {
  std::int64_t buckets = 32, max_distance = 128;
  bool both_sides = false;  ///< of an encoder

  /// Of a key so many tokens behind (negative: before) its query.
  std::int64_t bucket_of(std::int64_t distance) const;
};

class RelativeBias {
 public:
  /// `table` [buckets, heads of this rank], shared by the layers of a stack; `first_head` of the model's is its first.
  RelativeBias(RelativeBuckets buckets, Param& table, std::int64_t first_head = 0)
      : buckets_(buckets), table_(table), first_head_(first_head) {}

  /// A layer that will add to the table's gradient, once in each backward pass.
  void count_use() { ++table_.uses; }
  /// softmax(scale q k^T + bias + mask) v, with the mask of `shape` and documents.
  CoreResult forward(const AttentionShape& shape, const BlockPlace& place, const Context& context, const at::Tensor& q,
                     const at::Tensor& k, const at::Tensor& v) const;
  /// Also adds the table's gradient.
  void backward(const AttentionShape& shape, const BlockPlace& place, const Context& context, CoreGradients& gradients,
                const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const CoreResult& result) const;
  /// A layer's backward is over.
  void added(Context& context) const { context.added(table_); }

 private:
  /// A stretch of queries and one of keys.
  struct Pairs {
    std::int64_t queries = 0, keys = 0, first_distance = 0;  // of the first key from the last query
    std::int64_t distances() const { return queries + keys - 1; }
  };
  static Pairs pairs_of(const BlockPlace& place, const at::Tensor& q, const at::Tensor& k);
  /// int64 [distances]: in their order.
  at::Tensor buckets_by_distance(const Pairs& pairs, at::Device device) const;
  /// [heads, queries, keys]: what scores get.
  at::Tensor bias(const AttentionShape& shape, const Pairs& pairs, const Context& context, at::ScalarType type) const;
  /// [batch, heads, queries, keys], in float (double), -inf where a query does not see a key.
  at::Tensor scores(const AttentionShape& shape, const BlockPlace& place, const Context& context, const at::Tensor& q,
                    const at::Tensor& k) const;

  RelativeBuckets buckets_;
  Param& table_;
  std::int64_t first_head_;
};

}  // namespace trireme::nn
