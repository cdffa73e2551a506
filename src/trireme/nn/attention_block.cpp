#include "trireme/nn/attention_block.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "trireme/kernels/attention.h"
#include "trireme/kernels/attention_cuda.h"
#include "trireme/nn/relative_bias.h"

namespace trireme::nn {
namespace {

/// The kernel's options, and the pieces they point to.
struct Options {
  kernels::Attention attention;
  std::optional<kernels::AttentionDropout> dropout;

  Options(const AttentionShape& shape, const BlockPlace& place, const Context& context, std::int64_t queries,
          std::int64_t keys) {
    if (shape.sparse != nullptr) {
      attention.blocks = place.row == 0
                             ? &shape.sparse->layout(queries)
                             : &shape.sparse->rectangle(place.row, {place.query, queries}, {place.key, keys});
      attention.first_layout_head = shape.first_head;
    }
    attention.scale = score_scale(shape);
    attention.causal = shape.causal;
    attention.window = shape.window;
    attention.deterministic = shape.deterministic;
    attention.query_position = place.query;
    attention.key_position = place.key;
    if (place.query_documents.defined() && place.key_documents.defined()) {
      attention.query_documents = &place.query_documents;
      attention.key_documents = &place.key_documents;
    }
    if (context.training && shape.dropout > 0) {
      dropout.emplace(kernels::AttentionDropout{
          .stream = Random(context.seed, fmt::format("dropout/{}/step {}", shape.name, context.step)),
          .p = shape.dropout,
          .samples = &context.samples,
          .first_head = shape.first_head});
      attention.dropout = &*dropout;
    }
  }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
};

/// The kernels' heads have one size. Narrower values are filled up with zeros: so are then the outputs, and nothing
/// reads what is beyond.
at::Tensor filled_up(const at::Tensor& x, std::int64_t size) {
  return x.size(3) == size ? x : at::constant_pad_nd(x, {0, size - x.size(3)});
}

}  // namespace

double score_scale(const AttentionShape& shape) {
  return shape.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

BlockPlace place_in_rows(const Sequence& sequence, std::int64_t row, const TokenRange& queries,
                         const TokenRange& keys) {
  BlockPlace place{.query = queries.first, .key = keys.first, .row = row};
  if (sequence.documents.defined()) {
    place.query_documents = sequence.documents.narrow(1, queries.first, queries.count).contiguous();
    place.key_documents = sequence.documents.narrow(1, keys.first, keys.count).contiguous();
  }
  return place;
}

CoreResult forward_block(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                         const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (shape.relative) return shape.relative->forward(shape, place, context, q, k, v);
  const Options options(shape, place, context, q.size(1), k.size(1));
  if (v.size(3) != q.size(3)) {
    kernels::AttentionResult result;
    if (kernels::wide_keys_forward(result, q, k, v, options.attention))
      return {std::move(result.out), std::move(result.lse)};
  }
  auto [out, lse] = kernels::attention_forward(q, k, filled_up(v, q.size(3)), options.attention);
  if (v.size(3) != q.size(3)) out = out.narrow(3, 0, v.size(3)).contiguous();
  return {std::move(out), std::move(lse)};
}

void backward_block(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                    CoreGradients& gradients, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const CoreResult& result) {
  if (shape.relative) return shape.relative->backward(shape, place, context, gradients, dout, q, k, v, result);
  const Options options(shape, place, context, q.size(1), k.size(1));
  const std::int64_t size = q.size(3);
  if (v.size(3) == size) {
    kernels::attention_backward(gradients.q, gradients.k, gradients.v, dout, q, k, v, result.out, result.lse,
                                options.attention);
    return;
  }
  if (kernels::wide_keys_backward({gradients.q, gradients.k, gradients.v}, dout, q, k, v, result.out, result.lse,
                                  options.attention)) {
    return;
  }
  at::Tensor dv = at::empty({v.size(0), v.size(1), v.size(2), size}, v.options());
  kernels::attention_backward(gradients.q, gradients.k, dv, filled_up(dout, size), q, k, filled_up(v, size),
                              filled_up(result.out, size), result.lse, options.attention);
  gradients.v.copy_(dv.narrow(3, 0, v.size(3)));
}

bool sees(const AttentionShape& shape, std::int64_t row, const TokenRange& queries, const TokenRange& keys) {
  const std::int64_t last_query = queries.first + queries.count - 1, last_key = keys.first + keys.count - 1;
  if (shape.causal && keys.first > last_query) return false;
  if (shape.sparse != nullptr && shape.sparse->rectangle(row, queries, keys).lists().columns.empty()) return false;
  if (shape.window <= 0) return true;
  if (last_key <= queries.first - shape.window) return false;
  return shape.causal || keys.first < last_query + shape.window;
}

}  // namespace trireme::nn
