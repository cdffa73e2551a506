#include "trireme/nn/sparse_layouts.h"

#include <algorithm>

namespace trireme::nn {

const kernels::BlockLayout& SparseLayouts::layout(std::int64_t tokens) {
  const std::scoped_lock lock(mutex_);
  auto& made = layouts_[tokens];
  if (!made) {
    spec::SparseLists lists = spec::sparse_lists(sparse_, heads_, tokens, causal_);
    made = std::make_unique<kernels::BlockLayout>(kernels::BlockLists{.tokens = lists.tokens,
                                                                      .block = lists.block,
                                                                      .heads = lists.heads,
                                                                      .begin = std::move(lists.begin),
                                                                      .columns = std::move(lists.columns)});
  }
  return *made;
}

const kernels::BlockLists& SparseLayouts::growing(std::int64_t tokens) {
  // Beyond what the model was made for lengths double, so that few layouts are made.
  std::int64_t length = std::max<std::int64_t>(longest_, 1);
  while (length < tokens) length *= 2;
  return layout(length).lists();
}

double SparseLayouts::growing_pairs(std::int64_t first, std::int64_t count, std::int64_t first_head,
                                    std::int64_t heads) {
  const kernels::BlockLists& lists = growing(first + count);
  double pairs = 0;
  for (std::int64_t head = first_head; head < first_head + heads; ++head) {
    for (std::int64_t token = first; token < first + count; ++token) {
      const auto list = static_cast<std::size_t>(head * lists.rows() + token / lists.block);
      for (std::int64_t j = lists.begin[list]; j < lists.begin[list + 1]; ++j) {
        const std::int64_t column = lists.columns[static_cast<std::size_t>(j)] * lists.block;
        pairs += static_cast<double>(std::clamp<std::int64_t>(token + 1 - column, 0, lists.block));
      }
    }
  }
  return pairs / static_cast<double>(heads);
}

double SparseLayouts::pairs(const TokenSpan& rows, std::int64_t batch, std::int64_t first_head, std::int64_t heads) {
  const kernels::BlockLists& lists = layout(rows.count).lists();
  const std::int64_t block = lists.block, tokens = rows.count, block_rows = lists.rows();
  const bool documents = rows.documents.defined();
  double pairs = 0;
  for (std::int64_t b = 0; b < (documents ? batch : 1); ++b) {
    const std::int32_t* const document =
        documents ? rows.documents.const_data_ptr<std::int32_t>() + b * rows.documents.stride(0) : nullptr;
    // A document's tokens are neighbours: what a query sees is a range.
    std::vector<std::int64_t> begin(static_cast<std::size_t>(tokens), 0), end(static_cast<std::size_t>(tokens), tokens);
    for (std::int64_t first = 0; documents && first < tokens;) {
      std::int64_t last = first + 1;
      while (last < tokens && document[last] == document[first]) ++last;
      std::fill(begin.begin() + first, begin.begin() + last, first);
      std::fill(end.begin() + first, end.begin() + last, last);
      first = last;
    }
    for (std::int64_t head = first_head; head < first_head + heads; ++head) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        const auto list = static_cast<std::size_t>(head * block_rows + token / block);
        const std::int64_t from = begin[static_cast<std::size_t>(token)];
        const std::int64_t to = causal_ ? token + 1 : end[static_cast<std::size_t>(token)];
        for (std::int64_t j = lists.begin[list]; j < lists.begin[list + 1]; ++j) {
          const std::int64_t column = lists.columns[static_cast<std::size_t>(j)] * block;
          if (column >= to) break;
          pairs +=
              static_cast<double>(std::max<std::int64_t>(0, std::min(to, column + block) - std::max(from, column)));
        }
      }
    }
  }
  return pairs / static_cast<double>(heads) * (documents ? 1.0 : static_cast<double>(batch));
}

}  // namespace trireme::nn
