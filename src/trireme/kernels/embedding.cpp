#include "trireme/kernels/embedding.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/sort.h>

#include <array>
#include <bit>
#include <vector>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/embedding_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<EmbeddingTable> kCompiledEmbedding{kEmbeddingPlain, kEmbeddingV3, kEmbeddingV4, kEmbeddingV4Bf16};

/// Tokens of this slice of the vocabulary, those of one row of the table together, in ascending order within.
struct Grouped {
  std::vector<std::int64_t> order, rows;
};

/// A radix sort, stable and linear in the tokens: eleven bits of the row's number at a time.
Grouped group_by_row(const std::int64_t* ids, std::int64_t count, std::int64_t first_row, std::int64_t table_rows) {
  Grouped now, next;
  now.order.reserve(static_cast<std::size_t>(count));
  now.rows.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = ids[i] - first_row;
    if (row < 0 || row >= table_rows) continue;
    now.order.push_back(i);
    now.rows.push_back(row);
  }
  next.order.resize(now.order.size());
  next.rows.resize(now.rows.size());
  constexpr int kBits = 11;
  const int bits = table_rows > 1 ? std::bit_width(static_cast<std::uint64_t>(table_rows - 1)) : 0;
  for (int shift = 0; shift < bits; shift += kBits) {
    const auto digit = [&](std::int64_t row) { return static_cast<std::size_t>(row >> shift) & ((1U << kBits) - 1); };
    std::array<std::size_t, (1U << kBits) + 1> start{};
    for (const std::int64_t row : now.rows) ++start[digit(row) + 1];
    for (std::size_t d = 1; d < start.size(); ++d) start[d] += start[d - 1];
    for (std::size_t i = 0; i < now.rows.size(); ++i) {
      const std::size_t to = start[digit(now.rows[i])]++;
      next.rows[to] = now.rows[i];
      next.order[to] = now.order[i];
    }
    std::swap(now, next);
  }
  return now;
}

}  // namespace

void embedding_forward(const EmbeddingForward& call) {
  const Arguments arguments("embedding_forward");
  const Rows table = arguments.rows(call.table, "table"), out = arguments.rows(call.out, "out");
  if (out.element != table.element || out.width != table.width || out.rows != call.ids.numel()) {
    arguments.refuse(fmt::format("{} must have a row for each of {}, as wide as {} and of its type",
                                 describe(call.out, "out"), describe(call.ids, "ids"), describe(call.table, "table")));
  }
  EmbeddingForwardLoop loop{.out = out.data,
                            .ids = arguments.numbers(call.ids, "ids", out.rows),
                            .ids2 = nullptr,
                            .table = table.data,
                            .table2 = nullptr,
                            .out_stride = out.stride,
                            .table_stride = table.stride,
                            .table2_stride = 0,
                            .width = out.width,
                            .first_row = call.first_row,
                            .table_rows = table.rows,
                            .table2_rows = 0};
  if (call.table2.defined()) {
    const Rows table2 = arguments.rows(call.table2, "table2");
    if (table2.element != table.element || table2.width != table.width) {
      arguments.refuse(fmt::format("{} must be as wide as {} and of its type", describe(call.table2, "table2"),
                                   describe(call.table, "table")));
    }
    loop.ids2 = arguments.numbers(call.ids2, "ids2", out.rows);
    loop.table2 = table2.data;
    loop.table2_stride = table2.stride;
    loop.table2_rows = table2.rows;
    for (std::int64_t row = 0; !arguments.on_gpu() && row < out.rows; ++row) {
      if (loop.ids2[row] < 0 || loop.ids2[row] >= table2.rows) {
        arguments.refuse(fmt::format("ids2[{}] is {}, but {} has rows 0 to {}", row, loop.ids2[row],
                                     describe(call.table2, "table2"), table2.rows - 1));
      }
    }
  }
  if (arguments.on_gpu()) {
    return check_cuda(cuda().embedding_forward(loop, out.element, out.rows, cuda_stream()), "embedding_forward");
  }
  const auto forward = kCompiledEmbedding.pick().forward[static_cast<int>(out.element)];
  at::parallel_for(0, out.rows, rows_worth_a_thread(out.width),
                   [&](std::int64_t begin, std::int64_t end) { forward(loop, begin, end); });
}

void embedding_backward(at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dout, std::int64_t first_row) {
  const Arguments arguments("embedding_backward");
  const Rows from = arguments.rows(dout, "dout"), to = arguments.rows(dtable, "dtable");
  const bool rounded = to.element == from.element && sums_of(from.element) != from.element;
  if ((to.element != sums_of(from.element) && !rounded) || to.width != from.width) {
    arguments.refuse(fmt::format("{} must be {} or of dout's type, and as wide as {}", describe(dtable, "dtable"),
                                 to_string(sums_of(from.element)), describe(dout, "dout")));
  }
  const std::int64_t* numbers = arguments.numbers(ids, "ids", from.rows);
  if (arguments.on_gpu()) {
    // Stable: rows of one id stay in ascending order.
    const auto [sorted, order] = at::sort(ids.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
    const EmbeddingBackwardLoop loop{.dtable = to.data,
                                     .dout = from.data,
                                     .order = order.const_data_ptr<std::int64_t>(),
                                     .rows = sorted.const_data_ptr<std::int64_t>(),
                                     .dtable_stride = to.stride,
                                     .dout_stride = from.stride,
                                     .count = from.rows,
                                     .rounded = rounded};
    return check_cuda(cuda().embedding_backward(loop, from.element, first_row, to.rows, from.width, cuda_stream()),
                      "embedding_backward");
  }
  const Grouped groups = group_by_row(numbers, from.rows, first_row, to.rows);
  const EmbeddingBackwardLoop loop{.dtable = to.data,
                                   .dout = from.data,
                                   .order = groups.order.data(),
                                   .rows = groups.rows.data(),
                                   .dtable_stride = to.stride,
                                   .dout_stride = from.stride,
                                   .count = static_cast<std::int64_t>(groups.order.size()),
                                   .rounded = rounded};
  const auto& table = kCompiledEmbedding.pick();
  const auto backward = (rounded ? table.backward_rounded : table.backward)[static_cast<int>(from.element)];
  // One thread sums a group's column from end to end, so any cut gives the same bits. Cutting columns as well as tokens
  // spreads a token that is most of the batch.
  constexpr std::int64_t kColumns = kEmbeddingColumns;
  const std::int64_t strips = (from.width + kColumns - 1) / kColumns;
  if (loop.count == 0) return;
  at::parallel_for(0, strips * loop.count, rows_worth_a_thread(kColumns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t strip = begin / loop.count; strip * loop.count < end; ++strip) {
      const std::int64_t base = strip * loop.count;
      backward(loop, std::max(begin - base, std::int64_t{0}), std::min(end - base, loop.count), strip * kColumns,
               std::min((strip + 1) * kColumns, from.width));
    }
  });
}

}  // namespace trireme::kernels
