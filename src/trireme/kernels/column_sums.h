// kernels/column_sums.h -- sums over rows whose bits do not depend on the number of threads.
//
// Rows are cut into blocks by their number alone. Each block's sums are made by one thread, row after row, and the
// blocks are joined in pairs, and pairs of pairs: a fixed tree.
// Depends on: base.
#pragma once

#include <cstdint>
#include <memory>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

/// Rows that one thread should take at least, so that waking another is worth it.
inline std::int64_t rows_worth_a_thread(std::int64_t width) { return 1 + (std::int64_t{1} << 14) / (width + 1); }

class ColumnSums {
 public:
  /// `sums` rows of `width` totals for every block, float (double for double).
  ColumnSums(Element element, std::int64_t rows, std::int64_t width, int sums);

  std::int64_t blocks() const { return blocks_; }
  std::int64_t begin_row(std::int64_t block) const { return block * block_rows_; }
  std::int64_t end_row(std::int64_t block) const { return block + 1 == blocks_ ? rows_ : (block + 1) * block_rows_; }
  /// A block's totals, set to zero: call it from the thread that fills them.
  void* start(std::int64_t block, int sum);
  /// target[c] += the total of column c; float or double as the sums are.
  void add_to(void* target, int sum);

 private:
  template <typename A>
  void add_columns(A* target, int sum, std::int64_t begin, std::int64_t end);

  Element element_;
  std::int64_t rows_, width_, blocks_, block_rows_;
  int sums_;
  std::unique_ptr<char[]> totals_;  // [sum][block][width]
};

}  // namespace trireme::kernels
