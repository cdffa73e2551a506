#include "trireme/nn/relative_bias.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::nn {
namespace {

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// [batch, tokens, heads, size] to [batch, heads, tokens, size] in the type of sums; keys and values that several heads
/// of queries share are repeated.
at::Tensor by_heads(const at::Tensor& x, std::int64_t heads) {
  const at::Tensor wide = x.to(sum_type(x)).transpose(1, 2);
  return x.size(2) == heads ? wide : at::repeat_interleave(wide, heads / x.size(2), 1);
}

/// The other way for a gradient: heads that shared one add up.
void write_heads(at::Tensor& to, const at::Tensor& grad) {
  const std::int64_t heads = to.size(2), shared = grad.size(1) / heads;
  at::Tensor sums = grad;
  if (shared > 1) sums = at::sum(grad.reshape({grad.size(0), heads, shared, grad.size(2), grad.size(3)}), {2});
  to.copy_(sums.transpose(1, 2));
}

/// [heads, queries, keys] summed along equal distances of key from query: [heads, queries + keys - 1]. Rows are padded
/// by the number of queries and read one element shorter, so that each lies one place further than the one before it.
at::Tensor sum_by_distance(const at::Tensor& of_pairs) {
  const std::int64_t heads = of_pairs.size(0), queries = of_pairs.size(1), distances = queries + of_pairs.size(2) - 1;
  const at::Tensor padded = at::constant_pad_nd(of_pairs.flip({1}), {0, queries});  // the last query first
  const at::Tensor skewed =
      padded.reshape({heads, -1}).narrow(1, 0, queries * distances).reshape({heads, queries, distances});
  return at::sum(skewed, {1});
}

}  // namespace

std::int64_t RelativeBuckets::bucket_of(std::int64_t distance) const {
  std::int64_t count = buckets, first = 0, far = 0;
  if (both_sides) {
    count /= 2;
    if (distance > 0) first = count;
    far = std::abs(distance);
  } else {
    far = std::max<std::int64_t>(0, -distance);
  }
  const std::int64_t exact = count / 2;
  if (far < exact) return first + far;
  // In float, step by step, as the reference computes it: a rounding may decide at the edge of a bucket.
  const float share = std::log(static_cast<float>(far) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const auto beyond = static_cast<std::int64_t>(share * static_cast<float>(count - exact));
  return first + std::min(exact + beyond, count - 1);
}

RelativeBias::Pairs RelativeBias::pairs_of(const BlockPlace& place, const at::Tensor& q, const at::Tensor& k) {
  return {.queries = q.size(1), .keys = k.size(1), .first_distance = place.key - (place.query + q.size(1) - 1)};
}

at::Tensor RelativeBias::buckets_by_distance(const Pairs& pairs, at::Device device) const {
  at::Tensor found = at::empty({pairs.distances()}, at::kLong);
  auto* bucket = found.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < pairs.distances(); ++i) *bucket++ = buckets_.bucket_of(pairs.first_distance + i);
  return found.to(device);
}

at::Tensor RelativeBias::bias(const AttentionShape& shape, const Pairs& pairs, const Context& context,
                              at::ScalarType type) const {
  const at::Tensor table = context.value(table_).narrow(1, shape.first_head - first_head_, shape.num_heads).to(type);
  const at::Tensor by_distance = table.t().index_select(1, buckets_by_distance(pairs, table.device()));
  return by_distance.unfold(1, pairs.keys, 1).flip({1});  // the first window is the last query's
}

at::Tensor RelativeBias::scores(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                                const at::Tensor& q, const at::Tensor& k) const {
  const std::int64_t heads = q.size(2);
  const Pairs pairs = pairs_of(place, q, k);
  at::Tensor found = at::matmul(by_heads(q, heads), by_heads(k, heads).transpose(2, 3)).mul_(score_scale(shape));
  found.add_(bias(shape, pairs, context, found.scalar_type()));
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  if (shape.causal) {
    const auto positions = [&](std::int64_t first, std::int64_t count) {
      return at::arange(first, first + count, at::TensorOptions(at::kLong).device(q.device()));
    };
    found.masked_fill_(
        positions(place.key, pairs.keys).unsqueeze(0) > positions(place.query, pairs.queries).unsqueeze(1), kNever);
  }
  if (place.query_documents.defined()) {
    const at::Tensor other = place.query_documents.unsqueeze(2) != place.key_documents.unsqueeze(1);
    found.masked_fill_(other.unsqueeze(1), kNever);
  }
  return found;
}

CoreResult RelativeBias::forward(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                                 const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
  at::Tensor probabilities = scores(shape, place, context, q, k);
  at::Tensor lse = at::logsumexp(probabilities, {3});
  // A query may see none of these keys: then it has no probabilities, and no NaN either.
  const at::Tensor shift = lse.masked_fill(lse == -std::numeric_limits<double>::infinity(), 0);
  probabilities.sub_(shift.unsqueeze(3)).exp_();
  const at::Tensor out = at::matmul(probabilities, by_heads(v, q.size(2)));
  return {out.transpose(1, 2).to(q.scalar_type()).contiguous(), std::move(lse)};
}

void RelativeBias::backward(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                            CoreGradients& gradients, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const CoreResult& result) const {
  const std::int64_t heads = q.size(2);
  const at::Tensor probabilities = scores(shape, place, context, q, k).sub_(result.lse.unsqueeze(3)).exp_();
  const at::Tensor dy = by_heads(dout, heads), values = by_heads(v, heads);
  write_heads(gradients.v, at::matmul(probabilities.transpose(2, 3), dy));
  // d score = p (dp - sum over keys of p dp), and that sum is dy . y.
  const at::Tensor mean = at::sum(dy * by_heads(result.out, heads), {3}, /*keepdim=*/true);
  const at::Tensor of_scores = at::matmul(dy, values.transpose(2, 3)).sub_(mean).mul_(probabilities);
  if (table_.trainable) {
    const at::Tensor by_distance = sum_by_distance(at::sum(of_scores, {0}));
    const at::Tensor chosen = at::one_hot(buckets_by_distance(pairs_of(place, q, k), q.device()), buckets_.buckets)
                                  .to(by_distance.scalar_type());
    at::Tensor gradient = at::zeros(context.value(table_).sizes(), by_distance.options());
    gradient.narrow(1, shape.first_head - first_head_, heads).copy_(at::matmul(chosen.t(), by_distance.t()));
    context.begin_adding(table_);
    add_gradient(table_, gradient);
    context.end_adding(table_);
  }
  const double scale = score_scale(shape);
  write_heads(gradients.q, at::matmul(of_scores, by_heads(k, heads)).mul_(scale));
  write_heads(gradients.k, at::matmul(of_scores.transpose(2, 3), by_heads(q, heads)).mul_(scale));
}

}  // namespace trireme::nn
