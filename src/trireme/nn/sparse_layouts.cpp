#include "trireme/nn/sparse_layouts.h"

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::nn {
namespace {

/// Blocks that keys or queries of a rectangle lie in, in blocks of `to` tokens instead of `from`, which `to` divides.
kernels::BlockLists cut_lists(const kernels::BlockLists& whole, const TokenRange& queries, const TokenRange& keys,
                              std::int64_t to) {
  kernels::BlockLists lists{.tokens = std::max(queries.count, keys.count),
                            .block = to,
                            .heads = whole.heads,
                            .begin = {0},
                            .columns = {},
                            .queries = queries.count,
                            .keys = keys.count};
  const std::int64_t parts = whole.block / to, first_key = keys.first / to;
  const std::int64_t key_blocks = (keys.count + to - 1) / to;
  for (std::int64_t head = 0; head < whole.heads; ++head) {
    for (std::int64_t row = 0; row < lists.rows(); ++row) {
      if (row * to < queries.count) {
        const auto list = static_cast<std::size_t>(head * whole.rows() + (queries.first / to + row) / parts);
        for (std::int64_t j = whole.begin[list]; j < whole.begin[list + 1]; ++j) {
          const std::int64_t column = whole.columns[static_cast<std::size_t>(j)] * parts - first_key;
          for (std::int64_t c = std::max<std::int64_t>(column, 0); c < std::min(column + parts, key_blocks); ++c)
            lists.columns.push_back(static_cast<std::int32_t>(c));
        }
      }
      lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
    }
  }
  return lists;
}

}  // namespace

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

const kernels::BlockLayout& SparseLayouts::rectangle(std::int64_t tokens, const TokenRange& queries,
                                                     const TokenRange& keys) {
  const kernels::BlockLayout& whole = layout(tokens);
  if (queries == keys && queries == TokenRange{0, tokens}) return whole;
  const std::scoped_lock lock(mutex_);
  auto& made = rectangles_[{tokens, queries.first, queries.count, keys.first, keys.count}];
  if (!made) {
    // Blocks of the layout that the ranges cut become smaller ones.
    std::int64_t block = whole.lists().block;
    for (const TokenRange& range : {queries, keys}) {
      block = std::gcd(block, range.first);
      if (range.first + range.count < tokens) block = std::gcd(block, range.count);
    }
    TRIREME_CHECK(block % kernels::kSmallestBlock == 0,
                  "{} queries from {} and {} keys from {} cut blocks of {} tokens", queries.count, queries.first,
                  keys.count, keys.first, kernels::kSmallestBlock);
    made = std::make_unique<kernels::BlockLayout>(cut_lists(whole.lists(), queries, keys, block));
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

double SparseLayouts::pairs(const TokenSpan& rows, const TokenRange& queries, std::int64_t batch,
                            std::int64_t first_head, std::int64_t heads) {
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
      for (std::int64_t token = queries.first; token < queries.first + queries.count; ++token) {
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
