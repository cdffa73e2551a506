#include "trireme/spec/batch_split.h"

#include <algorithm>
#include <cmath>

namespace trireme::spec {

RowRange share_of_rows(std::int64_t first, std::int64_t count, int rank, int ranks) {
  const std::int64_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
  return {first + begin, end - begin};
}

RowRange share_of_rows(std::int64_t first, std::int64_t count, int rank, int ranks,
                       const std::vector<double>& weights) {
  if (weights.empty()) return share_of_rows(first, count, rank, ranks);
  double total = 0, before = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    total += weights[i];
    if (i < static_cast<std::size_t>(rank)) before += weights[i];
  }
  const auto cut = [&](double weight) {
    return static_cast<std::int64_t>(std::llround(static_cast<double>(count) * weight / total));
  };
  const std::int64_t begin = cut(before), end = cut(before + weights[static_cast<std::size_t>(rank)]);
  return {first + begin, end - begin};
}

std::int64_t count_micros(std::int64_t rows, std::int64_t micro_batch_size) {
  if (rows == 0) return 0;
  return micro_batch_size > 0 ? (rows + micro_batch_size - 1) / micro_batch_size : 1;
}

std::int64_t most_rows(std::int64_t count, int ranks, const std::vector<double>& weights) {
  return most_micros(count, ranks, weights, /*micro_batch_size=*/1);
}

std::int64_t most_micros(std::int64_t count, int ranks, const std::vector<double>& weights,
                         std::int64_t micro_batch_size) {
  std::int64_t most = 1;
  // Of equal shares the last is a largest one.
  for (int rank = weights.empty() ? ranks - 1 : 0; rank < ranks; ++rank) {
    most = std::max(most, count_micros(share_of_rows(0, count, rank, ranks, weights).count, micro_batch_size));
  }
  return most;
}

std::vector<std::int64_t> micro_sizes(std::int64_t rows, std::int64_t micro_batch_size, std::int64_t micros) {
  const std::int64_t own = count_micros(rows, micro_batch_size);
  std::vector<std::int64_t> sizes;
  if (micros <= own) {
    const std::int64_t size = micro_batch_size > 0 ? micro_batch_size : rows;
    for (std::int64_t done = 0; done < rows; done += size) sizes.push_back(std::min(size, rows - done));
    return sizes;
  }
  for (std::int64_t micro = 0; micro < micros; ++micro) {
    const std::int64_t filled = std::min(micros, rows);  // as many as can have a row
    sizes.push_back(micro < filled ? rows * (micro + 1) / filled - rows * micro / filled : 0);
  }
  return sizes;
}

std::vector<std::int64_t> batch_sizes(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t steps,
                                      std::int64_t tokens) {
  constexpr int kMostChanges = 4096;
  std::vector<std::int64_t> sizes;
  Position position;
  for (int i = 0; i < kMostChanges && position.step < steps && position.tokens < tokens; ++i) {
    const std::int64_t size = batch_at(schedule, batch, position.tokens);
    if (size < 1) break;
    if (sizes.empty() || sizes.back() != size) sizes.push_back(size);
    const auto next = next_change(schedule, batch, position.tokens);
    if (!next) break;
    const std::int64_t count = std::max<std::int64_t>(1, (*next - position.tokens + size - 1) / size);
    position.step += count;
    position.tokens += count * size;
  }
  return sizes;
}

}  // namespace trireme::spec
