#include "trireme/nn/parallel_context.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/nn/context.h"

namespace trireme::nn {
namespace {

/// Columns [begin, end) of what the stretches list, counted along them.
TokenRanges part_of(const TokenRanges& stretches, std::int64_t begin, std::int64_t end) {
  TokenRanges part;
  std::int64_t at = 0;
  for (const TokenRange& stretch : stretches) {
    const std::int64_t from = std::max(begin, at), to = std::min(end, at + stretch.count);
    if (from < to) part.push_back({stretch.first + from - at, to - from});
    at += stretch.count;
  }
  return part;
}

}  // namespace

TokenRanges TokenSplit::of_outer(int rank, std::int64_t length) const {
  TRIREME_CHECK(length % grain() == 0, "{} tokens cannot be shared by {} x {} ranks", length, outer, inner);
  if (!zigzag) return {{length / outer * rank, length / outer}};
  const std::int64_t chunk = length / (2 * outer);
  const std::int64_t early = chunk * rank, late = chunk * (2 * outer - 1 - rank);
  if (early + chunk == late) return {{early, 2 * chunk}};  // the last rank's two are neighbours
  return {{early, chunk}, {late, chunk}};
}

TokenRanges TokenSplit::mine(std::int64_t length) const {
  const std::int64_t count = length / ranks();
  return part_of(of_outer(outer_rank, length), count * inner_rank, count * (inner_rank + 1));
}

at::Tensor take_tokens(const at::Tensor& rows, const TokenRanges& stretches) {
  if (!rows.defined()) return rows;
  std::vector<at::Tensor> parts;
  for (const TokenRange& stretch : stretches) parts.push_back(rows.narrow(1, stretch.first, stretch.count));
  return at::cat(parts, 1);
}

void take_tokens(std::vector<at::Tensor>& ids, Context& context, const TokenSplit& split) {
  if (split.ranks() == 1) return;
  const auto take_stream = [&split](at::Tensor& tokens, Sequence& sequence) {
    const std::int64_t length = tokens.size(1);
    const TokenRanges mine = split.mine(length);
    tokens = take_tokens(tokens, mine);
    sequence.positions = take_tokens(sequence.positions, mine);
    const at::Tensor row = at::arange(length, at::kLong).unsqueeze(0);
    sequence.columns = take_tokens(row, mine).squeeze(0);
    sequence.row_length = length;
    return mine;
  };
  if (ids.size() > 1) take_stream(ids[0], context.source);  // of an encoder
  const TokenRanges mine = take_stream(ids.back(), context.sequence);
  context.targets = take_tokens(context.targets, mine);
  context.loss_weights = take_tokens(context.loss_weights, mine);
  for (at::Tensor* tensor : {&context.mtp.ids, &context.mtp.targets, &context.mtp.weights})
    *tensor = take_tokens(*tensor, mine);
  context.segments = take_tokens(context.segments, mine);
}

layout::Placing ParallelContext::placing(const std::string& name, layout::Shape shape) const {
  layout::Placing placing(mesh, rank, name, std::move(shape));
  for (const layout::Axis& axis : mesh.axes()) {
    if (axis.name == kPipelineAxis) placing.only_at(kPipelineAxis, mesh.coordinate(rank, kPipelineAxis));
  }
  return placing;
}

layout::AxisNames ParallelContext::sample_axes() const {
  layout::AxisNames axes = tensor_axes();
  if (tokens.ranks() > 1) axes.emplace_back(kContextAxis);
  return axes;
}

const ParallelContext& single_rank() {
  static const ParallelContext parallel;
  return parallel;
}

}  // namespace trireme::nn
