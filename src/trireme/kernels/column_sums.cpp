#include "trireme/kernels/column_sums.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "trireme/kernels/arguments.h"

namespace trireme::kernels {

// Enough blocks for a large machine, few enough that adding them up is little beside making them.
constexpr std::int64_t kMostBlocks = 64, kFewestRows = 32;

ColumnSums::ColumnSums(Element element, std::int64_t rows, std::int64_t width, int sums)
    : element_(sums_of(element)), rows_(rows), width_(width), sums_(sums) {
  block_rows_ = std::max(kFewestRows, (rows + kMostBlocks - 1) / kMostBlocks);
  blocks_ = (rows + block_rows_ - 1) / block_rows_;
  totals_.reset(new char[static_cast<std::size_t>(sums_ * blocks_ * width_ * bytes_of(element_))]);
}

void* ColumnSums::start(std::int64_t block, int sum) {
  const std::int64_t bytes = width_ * bytes_of(element_);
  char* totals = totals_.get() + (sum * blocks_ + block) * bytes;
  std::memset(totals, 0, static_cast<std::size_t>(bytes));
  return totals;
}

template <typename A>
void ColumnSums::add_columns(A* target, int sum, std::int64_t begin, std::int64_t end) {
  A* totals = reinterpret_cast<A*>(totals_.get()) + sum * blocks_ * width_;
  for (std::int64_t step = 1; step < blocks_; step *= 2) {
    for (std::int64_t block = 0; block + step < blocks_; block += 2 * step) {
      A* to = totals + block * width_;
      const A* from = totals + (block + step) * width_;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  }
  for (std::int64_t c = begin; c < end; ++c) target[c] += totals[c];
}

void ColumnSums::add_to(void* target, int sum) {
  if (blocks_ == 0) return;
  at::parallel_for(0, width_, 1 + (std::int64_t{1} << 15) / blocks_, [&](std::int64_t begin, std::int64_t end) {
    if (element_ == Element::kDouble) {
      add_columns(static_cast<double*>(target), sum, begin, end);
    } else {
      add_columns(static_cast<float*>(target), sum, begin, end);
    }
  });
}

}  // namespace trireme::kernels
