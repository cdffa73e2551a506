#include "trireme/data/rows.h"

#include <algorithm>
#include <numeric>

namespace trireme::data {
namespace {

TokenRows padding(std::int64_t rows, std::int64_t length, bool documents, std::int64_t pad) {
  const auto size = static_cast<std::size_t>(rows * length);
  TokenRows tokens{.length = length, .ids = std::vector<std::int64_t>(size, pad), .positions = {}, .documents = {}};
  tokens.positions.resize(size);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = tokens.positions.begin() + row * length;
    std::iota(begin, begin + length, std::int64_t{0});
  }
  if (documents) tokens.documents.resize(size);
  return tokens;
}

}  // namespace

Batch empty_batch(std::span<const std::int64_t> samples, const RowShape& shape) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  const std::int64_t pad = std::max(shape.special.pad, 0);
  Batch batch;
  batch.samples.assign(samples.begin(), samples.end());
  batch.tokens = padding(rows, shape.length, shape.documents, pad);
  if (shape.source_length > 0) batch.source = padding(rows, shape.source_length, shape.documents, pad);
  batch.targets.assign(static_cast<std::size_t>(rows * shape.length), kNoTarget);
  return batch;
}

}  // namespace trireme::data
