#include "trireme/train/engine/feed.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/ne.h>
#include <fmt/format.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/nn/multi_token.h"

namespace trireme::train {
namespace {

template <typename T>
at::Tensor rows_of(std::vector<T>& numbers, std::int64_t rows, std::int64_t length) {
  if (numbers.empty()) return {};
  constexpr auto kType = c10::CppTypeToScalarType<T>::value;
  return at::from_blob(numbers.data(), {rows, length}, at::TensorOptions(kType));
}

nn::Sequence sequence_of(data::TokenRows& tokens, std::int64_t rows) {
  return {.positions = rows_of(tokens.positions, rows, tokens.length),
          .documents = rows_of(tokens.documents, rows, tokens.length)};
}

/// The smallest and the largest, or 0 and -1 where there is none.
std::pair<std::int64_t, std::int64_t> range_of(const at::Tensor& numbers) {
  if (!numbers.defined() || numbers.numel() == 0) return {0, -1};
  return {at::min(numbers).item<std::int64_t>(), at::max(numbers).item<std::int64_t>()};
}

void require_below(const at::Tensor& numbers, std::int64_t end, const char* what, const char* table) {
  const auto [smallest, largest] = range_of(numbers);
  if (smallest >= 0 && largest < end) return;
  throw ConfigError(
      fmt::format("{} {} is outside the model's {} of {}", what, smallest < 0 ? smallest : largest, table, end));
}

/// A GPU would read beside its tables, where the host looks at every number when it uses it.
void check_numbers(const nn::Tensors& ids, const nn::Context& context, const spec::ModelShape& shape) {
  for (const at::Tensor& numbers : ids) require_below(numbers, shape.vocab_size, "token", "vocabulary");
  if (context.targets.defined()) {
    require_below(context.targets.masked_select(context.targets.ne(data::kNoTarget)), shape.vocab_size, "target",
                  "vocabulary");
  }
  if (context.segments.defined()) require_below(context.segments, shape.segments, "token type", "token types");
  if (shape.position_kind == spec::PositionKind::kRotary) return;
  for (const nn::Sequence* sequence : {&context.sequence, &context.source}) {
    require_below(sequence->positions, shape.max_seq_len, "position", "table of positions");
  }
}

}  // namespace

nn::Tensors feed(data::Batch& batch, nn::Context& context, const spec::ModelShape& shape) {
  const std::int64_t rows = batch.rows(), length = batch.tokens.length;
  context.samples = at::from_blob(batch.samples.data(), {rows}, at::TensorOptions(at::kLong));
  context.sequence = sequence_of(batch.tokens, rows);
  context.targets = rows_of(batch.targets, rows, length);
  context.loss_weights = rows_of(batch.weights, rows, length);
  context.segments = rows_of(batch.segments, rows, length);
  context.filler = batch.filler;
  if (batch.filler) context.gradient_scale = context.sample_scale = 0;
  nn::Tensors ids;
  if (batch.source.length > 0) {
    context.source = sequence_of(batch.source, rows);
    ids.push_back(rows_of(batch.source.ids, rows, batch.source.length));
  }
  ids.push_back(rows_of(batch.tokens.ids, rows, length));
  // Before ranks share the rows: the token after a rank's last may be another's.
  nn::shift_tokens(ids.back(), context, shape.mtp_depth);
  return ids;
}

void move_to(at::Device device, nn::Tensors& ids, nn::Context& context, const spec::ModelShape& shape) {
  if (device.is_cpu()) return;
  check_numbers(ids, context, shape);
  for (nn::Sequence* sequence : {&context.sequence, &context.source}) {
    sequence->position_count = range_of(sequence->positions).second + 1;
    sequence->documents_here = sequence->documents;
  }
  // By way of pinned memory, which the tensor library keeps until the copy is done: a plain copy would wait for all
  // that the GPU was given before.
  const auto there = [&](const at::Tensor& tensor) { return tensor.pin_memory().to(device, /*non_blocking=*/true); };
  for (at::Tensor& tensor : ids) tensor = there(tensor);
  for (at::Tensor* tensor : {&context.samples, &context.targets, &context.loss_weights, &context.segments,
                             &context.sequence.positions, &context.sequence.documents, &context.source.positions,
                             &context.source.documents, &context.mtp.ids, &context.mtp.targets, &context.mtp.weights}) {
    if (tensor->defined()) *tensor = there(*tensor);
  }
}

double count_targets(const data::Batch& batch) {
  double count = 0;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] != data::kNoTarget) count += batch.weights.empty() ? 1.0 : batch.weights[i];
  }
  return count;
}

}  // namespace trireme::train
