#include "trireme/nn/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/kernels/embedding.h"
#include "trireme/nn/exchange.h"

namespace trireme::nn {
namespace {

void check_range(const at::Tensor& numbers, std::int64_t end, const char* what, const char* table) {
  // On a GPU looking would mean waiting: whoever puts numbers there has looked at them before.
  if (numbers.numel() == 0 || numbers.is_cuda()) return;
  const auto smallest = at::min(numbers).item<std::int64_t>(), largest = at::max(numbers).item<std::int64_t>();
  if (smallest >= 0 && largest < end) return;
  const std::int64_t wrong = smallest < 0 ? smallest : largest;
  throw ConfigError(fmt::format("{} {} is outside the model's {} of {}", what, wrong, table, end));
}

void add_rows(Param& param, const at::Tensor& ids, const at::Tensor& rows, std::int64_t first_row, Context& context) {
  if (!param.trainable) return;
  context.begin_adding(param);
  kernels::embedding_backward(gradient_to_add_to(param), ids.contiguous(), rows, first_row);
  context.end_adding(param);
  context.added(param);
}

}  // namespace

Embedding::Embedding(EmbeddingParts parts, std::optional<Norm> norm, Dropout dropout, const ParallelContext& parallel)
    : parts_(std::move(parts)), norm_(std::move(norm)), dropout_(std::move(dropout)), parallel_(&parallel) {
  for (Param* param : {parts_.tokens, parts_.positions, parts_.segments}) {
    if (param) ++param->uses;
  }
}

void Embedding::check(const at::Tensor& ids, const at::Tensor& positions, Context& context) const {
  check_range(ids, parts_.tokens->placement.shape[0], "token", "vocabulary");
  if (parts_.positions) {
    check_range(positions, context.value(*parts_.positions).size(0), "position", "table of positions");
  } else if (parts_.fixed_positions.defined()) {
    check_range(positions, parts_.fixed_positions.size(0), "position", "table of positions");
  }
}

at::Tensor Embedding::part_of(const at::Tensor& numbers) const {
  if (!parallel_->splits_sequence()) return numbers;
  const std::int64_t part = numbers.size(1) / parallel_->tensor_ranks();
  TRIREME_CHECK(part * parallel_->tensor_ranks() == numbers.size(1), "{} tokens cannot be split over {} ranks",
                numbers.size(1), parallel_->tensor_ranks());
  return numbers.narrow(1, part * parallel_->tensor_rank(), part);
}

at::Tensor Embedding::position_table(Context& context) {
  if (parts_.positions) return context.value(*parts_.positions);
  if (!parts_.fixed_positions.defined()) return {};
  const at::Tensor& table = context.value(*parts_.tokens);
  if (!fixed_.defined() || fixed_.scalar_type() != table.scalar_type()) {
    fixed_ = parts_.fixed_positions.to(table.options());
  }
  return fixed_;
}

at::Tensor Embedding::token_vectors(const at::Tensor& ids, const at::Tensor& positions, const at::Tensor& table,
                                    Context& context) const {
  const at::Tensor& tokens = context.value(*parts_.tokens);
  at::Tensor out = at::empty({ids.size(0), ids.size(1), tokens.size(1)}, tokens.options());
  // A scale applies to the token vectors alone, and slices are summed first: then positions come after.
  const bool slices = parallel_->tensor_ranks() > 1;
  const bool together = parts_.scale == 1 && table.defined() && !slices;
  const at::Tensor none;
  kernels::embedding_forward({.out = out,
                              .ids = ids,
                              .table = tokens,
                              .ids2 = together ? positions : none,
                              .table2 = together ? table : none,
                              .first_row = parts_.tokens->placement.pieces.at(0).box.begin[0]});
  if (parallel_->splits_sequence()) {
    out = reduce_scatter_tokens(out, *parallel_->tensor);
  } else if (slices) {
    sum_over(out, *parallel_->tensor);
  }
  if (parts_.scale != 1) out.mul_(parts_.scale);
  if (table.defined() && !together) {
    out.add_(table.index_select(0, part_of(positions).reshape(-1)).view_as(out));
  }
  return out;
}

at::Tensor Embedding::forward(at::Tensor ids, Context& context, Tape* tape) {
  const Sequence& sequence = sequence_of(context, parts_.stream);
  check(ids, sequence.positions, context);
  at::Tensor out = token_vectors(ids, sequence.positions, position_table(context), context);
  at::Tensor segments;
  if (parts_.segments) {
    segments = context.segments.defined() ? context.segments : at::zeros_like(ids);
    check_range(segments, context.value(*parts_.segments).size(0), "token type", "token types");
    segments = part_of(segments);
    out.add_(context.value(*parts_.segments).index_select(0, segments.reshape(-1)).view_as(out));
  }
  if (tape) tape->push({std::move(ids), std::move(segments)});
  if (norm_) out = norm_->forward(std::move(out), context, tape);
  dropout_.apply(out, sequence, context);
  return out;
}

at::Tensor Embedding::backward(at::Tensor dy, Context& context, Tape& tape) {
  const Sequence& sequence = sequence_of(context, parts_.stream);
  if (dropout_.active(context)) {
    if (!may_overwrite(dy)) dy = dy.clone();
    dropout_.apply(dy, sequence, context);
  }
  if (norm_) dy = norm_->backward(std::move(dy), context, tape);
  const auto [ids, segments] = tape.pop<2>();
  const at::Tensor rows = as_rows(dy);
  if (parts_.positions) add_rows(*parts_.positions, part_of(sequence.positions), rows, 0, context);
  if (parts_.segments) add_rows(*parts_.segments, segments, rows, 0, context);
  const at::Tensor whole = parallel_->splits_sequence() ? as_rows(all_gather_tokens(dy, *parallel_->tensor)) : rows;
  add_rows(*parts_.tokens, ids, parts_.scale == 1 ? whole : whole * parts_.scale,
           parts_.tokens->placement.pieces.at(0).box.begin[0], context);
  return {};
}

at::Tensor sinusoidal_positions(std::int64_t positions, std::int64_t width) {
  at::Tensor table = at::empty({positions, width}, at::kDouble);
  auto* out = table.data_ptr<double>();
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::int64_t column = 0; column < width; ++column) {
      const double pair = static_cast<double>(column / 2 * 2) / static_cast<double>(width);
      const double angle = static_cast<double>(position) / std::pow(10000.0, pair);
      *out++ = column % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  }
  return table;
}

}  // namespace trireme::nn
