// spec/batch_split.h -- how the sequences of a step are shared among data-parallel ranks and cut into micro-batches.
//
// Checks, planner and trainer ask here, so that a check counts the micro-batches that a run will have.
// Depends on: hyperparameters.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/spec/hyperparameters.h"

namespace trireme::spec {

/// Neighbouring sequences, by their numbers in the data.
struct RowRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const RowRange&) const = default;
};
/// Range number `rank` of [first, first + count) cut into `ranks`, as equal as can be.
RowRange share_of_rows(std::int64_t first, std::int64_t count, int rank, int ranks);
/// Likewise in proportion to weights, one a rank; without any, equal.
RowRange share_of_rows(std::int64_t first, std::int64_t count, int rank, int ranks, const std::vector<double>& weights);

/// The most that any of `ranks` has of a step with `count` rows, and at least one.
std::int64_t most_rows(std::int64_t count, int ranks, const std::vector<double>& weights);

/// Micro-batches of a rank with so many rows; 0 rows a micro-batch: all in one.
std::int64_t count_micros(std::int64_t rows, std::int64_t micro_batch_size);
/// The most that any of `ranks` has of a step with `count` rows, and at least one: what ranks run that must take the
/// same number of them.
std::int64_t most_micros(std::int64_t count, int ranks, const std::vector<double>& weights,
                         std::int64_t micro_batch_size);
/// Rows of each micro-batch. `micros` 0, or as many as `micro_batch_size` makes: all of that size but the last one.
/// More: as equal as can be, and where there are too few rows the last ones have none.
std::vector<std::int64_t> micro_sizes(std::int64_t rows, std::int64_t micro_batch_size, std::int64_t micros = 0);

/// The batches that steps have until `steps` or `tokens` are reached, in tokens, each size once and in their order. A
/// batch that grows in very many steps is looked at in the first thousands.
std::vector<std::int64_t> batch_sizes(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t steps,
                                      std::int64_t tokens);

}  // namespace trireme::spec
