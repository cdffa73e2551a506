#include "trireme/train/feed.h"

#include <ATen/ops/from_blob.h>

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

}  // namespace

nn::Tensors feed(data::Batch& batch, nn::Context& context) {
  const std::int64_t rows = batch.rows(), length = batch.tokens.length;
  context.samples = at::from_blob(batch.samples.data(), {rows}, at::TensorOptions(at::kLong));
  context.sequence = sequence_of(batch.tokens, rows);
  context.targets = rows_of(batch.targets, rows, length);
  context.loss_weights = rows_of(batch.weights, rows, length);
  context.segments = rows_of(batch.segments, rows, length);
  nn::Tensors ids;
  if (batch.source.length > 0) {
    context.source = sequence_of(batch.source, rows);
    ids.push_back(rows_of(batch.source.ids, rows, batch.source.length));
  }
  ids.push_back(rows_of(batch.tokens.ids, rows, length));
  return ids;
}

double count_targets(const data::Batch& batch) {
  double count = 0;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] != data::kNoTarget) count += batch.weights.empty() ? 1.0 : batch.weights[i];
  }
  return count;
}

}  // namespace trireme::train
