#include "trireme/nn/attention_block.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "trireme/kernels/attention.h"

namespace trireme::nn {
namespace {

/// The kernel's options, and the pieces they point to.
struct Options {
  kernels::Attention attention;
  std::optional<kernels::AttentionDropout> dropout;

  Options(const AttentionShape& shape, const BlockPlace& place, const Context& context) {
    attention.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
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

}  // namespace

BlockPlace place_in_rows(const Sequence& sequence, const TokenRange& queries, const TokenRange& keys) {
  BlockPlace place{.query = queries.first, .key = keys.first};
  if (sequence.documents.defined()) {
    place.query_documents = sequence.documents.narrow(1, queries.first, queries.count).contiguous();
    place.key_documents = sequence.documents.narrow(1, keys.first, keys.count).contiguous();
  }
  return place;
}

CoreResult forward_block(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                         const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  auto [out, lse] = kernels::attention_forward(q, k, v, Options(shape, place, context).attention);
  return {std::move(out), std::move(lse)};
}

void backward_block(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                    CoreGradients& gradients, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const CoreResult& result) {
  kernels::attention_backward(gradients.q, gradients.k, gradients.v, dout, q, k, v, result.out, result.lse,
                              Options(shape, place, context).attention);
}

bool sees(const AttentionShape& shape, const TokenRange& queries, const TokenRange& keys) {
  const std::int64_t last_query = queries.first + queries.count - 1, last_key = keys.first + keys.count - 1;
  if (shape.causal && keys.first > last_query) return false;
  if (shape.window <= 0) return true;
  if (last_key <= queries.first - shape.window) return false;
  return shape.causal || keys.first < last_query + shape.window;
}

}  // namespace trireme::nn
