#include "trireme/plan/layer_time.h"

#include <algorithm>
#include <array>

#include "trireme/cost/group_time.h"
#include "trireme/cost/roofline.h"

namespace trireme::plan {
namespace {

using cost::Hardware;
using cost::Product;

/// Sizes of one layer as a rank sees it.
struct Sizes {
  double tokens, width, queries, keys, inner, tp;
  double sequence_share;  // of the tokens outside of split matrices that this rank works on
  bool dropout;

  Sizes(const Job& job, const Layout& layout)
      : tokens(static_cast<double>(layout.microbatch) * static_cast<double>(job.length) / layout.cp),
        width(static_cast<double>(job.shape.width)),
        queries(static_cast<double>(job.shape.heads * job.shape.head_size) / layout.tp),
        // Fewer key heads than ranks: each rank keeps a whole one.
        keys(static_cast<double>(job.shape.head_size) *
             std::max(1.0, static_cast<double>(job.shape.kv_heads) / layout.tp)),
        inner(static_cast<double>(job.shape.inner) / layout.tp),
        tp(layout.tp),
        sequence_share(layout.sequence_parallel ? 1.0 / layout.tp : 1.0),
        dropout(job.shape.dropout > 0) {}
};

std::array<Product, 4> products(const Job& job, const Sizes& sizes) {
  return {{{sizes.tokens, sizes.queries + 2 * sizes.keys, sizes.width},
           {sizes.tokens, sizes.width, sizes.queries},
           {sizes.tokens, job.shape.gated ? 2 * sizes.inner : sizes.inner, sizes.width},
           {sizes.tokens, sizes.width, sizes.inner}}};
}

/// Weight gradients are added to sums in fp32: read and written once for each microbatch.
constexpr double kAccumulateBytes = 8;

void add_products(const Hardware& hardware, const Job& job, const Sizes& sizes, PassTimes& times) {
  for (const Product& product : products(job, sizes)) {
    const double forward = cost::matmul_seconds(hardware, job.arithmetic, product);
    const double inputs =
        cost::matmul_seconds(hardware, job.arithmetic, {product.rows, product.inner, product.columns});
    const double weights =
        cost::matmul_seconds(hardware, job.arithmetic, {product.inner, product.columns, product.rows}) +
        cost::stream_seconds(hardware, kAccumulateBytes * product.inner * product.columns, 0);
    times.forward.matmul += forward;
    times.backward.matmul += inputs + weights;
    times.backward_weight += weights;
  }
}

/// The share of all pairs of tokens that fused attention computes.
double computed_share(const Job& job) {
  const spec::ModelShape& shape = job.shape;
  const auto length = static_cast<double>(job.length);
  double pairs = 0;
  for (std::int64_t layer = 0; layer < std::min<std::int64_t>(shape.layers, 2);
       ++layer) {  // windows alternate in pairs
    const std::int64_t window = spec::window_of(shape, layer);
    const double visible = window > 0 ? std::min(static_cast<double>(window), length) : length;
    pairs += shape.causal ? visible * (length - visible / 2) : visible * length;
  }
  return pairs / static_cast<double>(std::min<std::int64_t>(shape.layers, 2)) / (length * length);
}

void add_attention(const Hardware& hardware, const Job& job, const Sizes& sizes, PassTimes& times) {
  const auto length = static_cast<double>(job.length);
  const double flops = 4 * sizes.tokens * length * sizes.queries;
  if (job.attention == AttentionKind::kFlash) {
    const double computed = flops * computed_share(job);
    times.forward.attention = cost::attention_seconds(hardware, job.arithmetic, computed);
    // Backward: five products where forward has two (Dao 2023).
    times.backward.attention = cost::attention_seconds(hardware, job.arithmetic, 2.5 * computed);
    return;
  }
  // Two products of all pairs for each head, and softmax with its dropout in between. Bytes for each score: written by
  // the first product, read and written by softmax and by dropout with its mask, read by the second product.
  const double scores = sizes.tokens * length * sizes.queries / static_cast<double>(job.shape.head_size);
  const double product_bytes = 2 * 2 * (scores + 2 * sizes.tokens * sizes.queries);
  const double forward_bytes = product_bytes + scores * (sizes.dropout ? 9 : 4);
  const double backward_bytes = 2 * product_bytes + scores * (sizes.dropout ? 11 : 6);
  const double computing = flops / (hardware.peak(job.arithmetic) * hardware.device.efficiency.matmul);
  times.forward.attention = computing + cost::stream_seconds(hardware, forward_bytes, 5);
  times.backward.attention = 2 * computing + cost::stream_seconds(hardware, backward_bytes, 7);
}

/// Norms, residual sums, dropout, activations, splitting and joining of heads; two bytes a number, one for a mask.
void add_streaming(const Hardware& hardware, const Job& job, const Sizes& sizes, PassTimes& times) {
  const bool gated = job.shape.gated;
  const double outside = sizes.tokens * sizes.width * sizes.sequence_share;
  const double heads = sizes.tokens * (sizes.queries + 2 * sizes.keys);
  const double middle = sizes.tokens * sizes.inner;
  // Two norms (in, out) and two residual sums (branch, residual, out, mask).
  const double forward_outside = outside * (2 * 4 + 2 * (sizes.dropout ? 7 : 6));
  // The norms' (gradient, input, out), the sums of both branches' gradients, dropout's (gradient, mask, out).
  const double backward_outside = outside * (2 * 6 + 2 * 6 + 2 * 5);
  const double forward_middle = middle * (gated ? 6 : 4);
  const double backward_middle = middle * (gated ? 10 : 8);
  const double reshape = 4 * heads;
  times.forward.streaming += cost::stream_seconds(hardware, forward_outside + forward_middle + reshape, 8);
  times.backward.streaming += cost::stream_seconds(hardware, backward_outside + backward_middle + reshape, 12);
}

void add_communication(const Hardware& hardware, const Layout& layout, const Sizes& sizes, PassTimes& times) {
  const double overlap = hardware.device.efficiency.overlap;
  const int per_node = hardware.cluster.gpus_per_node;
  if (layout.tp > 1) {
    // Megatron: two all-reduces each way; with sequence parallelism each is a reduce-scatter and an all-gather of the
    // same bytes, which can run beside the products they feed.
    const double one = cost::group_seconds(hardware, cost::Collective::kAllReduce,
                                           {.ranks = layout.tp, .per_node = std::min(layout.tp, per_node)},
                                           2 * sizes.tokens * sizes.width);
    const double exposed = 2 * one * (layout.sequence_parallel ? 1 - overlap : 1);
    times.forward.communication += exposed;
    times.backward.communication += exposed;
  }
  if (layout.cp > 1) {
    // Keys and values of the whole sequence come to every rank (Llama 3); their gradients go back. Ring attention
    // moves the same bytes.
    const cost::GroupShape group{.ranks = layout.cp,
                                 .per_node = std::clamp(per_node / layout.tp, 1, layout.cp),
                                 .groups = layout.gpus() / layout.cp,
                                 .extent = static_cast<double>(layout.tp) * layout.cp};
    const double bytes = 2 * 2 * sizes.tokens * layout.cp * sizes.keys;
    times.forward.communication +=
        (1 - overlap) * cost::group_seconds(hardware, cost::Collective::kAllGather, group, bytes);
    times.backward.communication +=
        (1 - overlap) * (cost::group_seconds(hardware, cost::Collective::kAllGather, group, bytes) +
                         cost::group_seconds(hardware, cost::Collective::kReduceScatter, group, bytes));
  }
}

}  // namespace

Parts& Parts::operator+=(const Parts& other) {
  matmul += other.matmul, attention += other.attention;
  streaming += other.streaming, communication += other.communication;
  return *this;
}

Parts operator*(double factor, const Parts& parts) {
  return {factor * parts.matmul, factor * parts.attention, factor * parts.streaming, factor * parts.communication};
}

PassTimes layer_times(const Hardware& hardware, const Job& job, const Layout& layout) {
  const Sizes sizes(job, layout);
  PassTimes times;
  add_products(hardware, job, sizes, times);
  add_attention(hardware, job, sizes, times);
  add_streaming(hardware, job, sizes, times);
  add_communication(hardware, layout, sizes, times);
  switch (layout.recompute) {
    case Recompute::kNone:
      break;
    case Recompute::kSelective:
      if (job.attention == AttentionKind::kUnfused) times.recompute.attention = times.forward.attention;
      break;
    case Recompute::kFull:
      times.recompute = times.forward;
      break;
  }
  return times;
}

PassTimes embedding_times(const Hardware& hardware, const Job& job, const Layout& layout) {
  const Sizes sizes(job, layout);
  PassTimes times;
  const double bytes = sizes.tokens * sizes.width * sizes.sequence_share;
  times.forward.streaming = cost::stream_seconds(hardware, 6 * bytes, 2);
  times.backward.streaming = cost::stream_seconds(hardware, 10 * bytes, 2);
  return times;
}

PassTimes head_times(const Hardware& hardware, const Job& job, const Layout& layout) {
  const Sizes sizes(job, layout);
  const double vocabulary = static_cast<double>(job.shape.vocabulary) / layout.tp;
  // Heads stay in sixteen bits where the rest is in eight (DeepSeek-V3, section 3.3).
  const cost::Arithmetic arithmetic =
      job.arithmetic == cost::Arithmetic::kFp8 ? cost::Arithmetic::kBf16 : job.arithmetic;
  const Product product{sizes.tokens, vocabulary, sizes.width};
  PassTimes times;
  times.forward.matmul = cost::matmul_seconds(hardware, arithmetic, product);
  times.backward.matmul =
      2 * times.forward.matmul + cost::stream_seconds(hardware, kAccumulateBytes * vocabulary * sizes.width, 0);
  // The loss in fp32: logits written, read for the maximum, for the sum, for the gradient; which is written twice.
  const double logits = sizes.tokens * vocabulary;
  times.forward.streaming = cost::stream_seconds(hardware, 16 * logits, 4);
  times.backward.streaming = cost::stream_seconds(hardware, 8 * logits, 2);
  if (layout.tp > 1) {
    const double overlap = layout.sequence_parallel ? hardware.device.efficiency.overlap : 0;
    times.backward.communication =
        (1 - overlap) *
        cost::group_seconds(hardware, cost::Collective::kAllReduce,
                            {.ranks = layout.tp, .per_node = std::min(layout.tp, hardware.cluster.gpus_per_node)},
                            2 * sizes.tokens * sizes.width);
  }
  return times;
}

}  // namespace trireme::plan
