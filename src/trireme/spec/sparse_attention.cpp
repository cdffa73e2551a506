#include "trireme/spec/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/random.h"

namespace trireme::spec {
namespace {

/// One row of blocks while it is made.
class SparseRow {
 public:
  SparseRow(std::int64_t row, std::int64_t blocks) : row_(row), has_(static_cast<std::size_t>(blocks), 0) {}
  std::int64_t row() const { return row_; }
  std::int64_t blocks() const { return static_cast<std::int64_t>(has_.size()); }
  void add(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = std::max<std::int64_t>(begin, 0); i < std::min(end, blocks()); ++i)
      has_[static_cast<std::size_t>(i)] = 1;
  }
  void lower_triangle() { std::fill(has_.begin() + row_ + 1, has_.end(), 0); }
  void append_to(std::vector<std::int32_t>& columns) const {
    for (std::size_t i = 0; i < has_.size(); ++i) {
      if (has_[i] != 0) columns.push_back(static_cast<std::int32_t>(i));
    }
  }

 private:
  std::int64_t row_;
  std::vector<std::uint8_t> has_;
};

void add_window(SparseRow& row, std::int64_t first, std::int64_t size, bool causal) {
  row.add(first, causal ? row.row() + 1 : first + size);
}

void add_fixed(SparseRow& row, const SparseAttention& s, std::int64_t head, bool causal) {
  const std::int64_t local = s.num_local_blocks, global = s.num_global_blocks, blocks = row.blocks();
  add_window(row, row.row() / local * local, local, causal);
  const std::int64_t first = local - (1 + head % s.num_different_global_patterns) * global;
  const auto add_global = [&](std::int64_t at) {
    if (!causal || row.row() >= at) row.add(at, at + global);
    if (s.horizontal_global_attention && row.row() >= at && row.row() < at + global) row.add(0, blocks);
  };
  const std::int64_t whole = blocks - blocks % local;  // of whole windows
  for (std::int64_t at = first; at < whole; at += local) add_global(at);
  if (whole < blocks) add_global(std::max<std::int64_t>(0, std::min(whole + first, blocks - global)));
}

void add_random(SparseRow& row, std::int64_t count, std::int64_t among, std::int64_t head) {
  // The first `count` of a partial shuffle: without repetition, a function of head and row.
  const Random random(0, fmt::format("sparse attention/head {}/row {}", head, row.row()));
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(among));
  for (std::int64_t i = 0; i < among; ++i) blocks[static_cast<std::size_t>(i)] = i;
  for (std::int64_t i = 0; i < std::min(count, among); ++i) {
    const auto other = i + static_cast<std::int64_t>(
                               random.below(static_cast<std::uint64_t>(among - i), static_cast<std::uint64_t>(i)));
    std::swap(blocks[static_cast<std::size_t>(i)], blocks[static_cast<std::size_t>(other)]);
    row.add(blocks[static_cast<std::size_t>(i)], blocks[static_cast<std::size_t>(i)] + 1);
  }
}

/// begin(i), end(i) of the given global blocks.
template <typename Visit>
void for_globals(const SparseAttention& s, std::int64_t blocks, const Visit& visit) {
  for (std::size_t i = 0; i < s.global_block_indices.size(); ++i) {
    const std::int64_t first = s.global_block_indices[i];
    const std::int64_t end = s.global_block_end_indices.empty() ? first + 1 : s.global_block_end_indices[i];
    if (first < blocks) visit(first, std::min(end, blocks));
  }
}

void add_variable(SparseRow& row, const SparseAttention& s, std::int64_t head, bool causal) {
  add_random(row, s.num_random_blocks, row.blocks(), head);
  std::int64_t first = 0, size = 0;
  for (const std::int64_t window : s.local_window_blocks) {
    size = window;
    if (row.row() < first + size) break;
    first += size;
  }
  // Behind the windows that are given the last size goes on.
  if (row.row() >= first + size) first += (row.row() - first) / size * size;
  add_window(row, first, size, causal);
  for_globals(s, row.blocks(), [&](std::int64_t begin, std::int64_t end) {
    if (s.horizontal_global_attention && row.row() >= begin && row.row() < end) row.add(0, row.blocks());
    if (!causal || row.row() >= begin) row.add(begin, end);
  });
}

void add_sliding(SparseRow& row, const SparseAttention& s) {
  const std::int64_t side = s.num_sliding_window_blocks / 2;
  row.add(row.row() - side, row.row() + side + 1);
}

void add_big_bird(SparseRow& row, const SparseAttention& s, std::int64_t head, bool causal) {
  add_random(row, s.num_random_blocks, causal ? row.row() + 1 : row.blocks(), head);
  add_sliding(row, s);
  if (row.row() < s.num_global_blocks) row.add(0, row.blocks());
  row.add(0, s.num_global_blocks);
  if (causal) row.lower_triangle();
}

void add_longformer(SparseRow& row, const SparseAttention& s, bool causal) {
  add_sliding(row, s);
  for_globals(s, row.blocks(), [&](std::int64_t begin, std::int64_t end) {
    if (row.row() >= begin && row.row() < end) row.add(0, row.blocks());
    row.add(begin, end);
  });
  if (causal) row.lower_triangle();
}

}  // namespace

std::span<const Named<SparseMode>> enum_names(std::type_identity<SparseMode>) {
  static constexpr Named<SparseMode> kNames[] = {
      {"none", SparseMode::kNone},         {"dense", SparseMode::kDense},     {"fixed", SparseMode::kFixed},
      {"variable", SparseMode::kVariable}, {"bigbird", SparseMode::kBigBird}, {"longformer", SparseMode::kLongformer}};
  return kNames;
}

SparseAttention sparse_defaults(SparseMode mode) {
  SparseAttention sparse;
  sparse.mode = mode;
  if (mode == SparseMode::kBigBird) sparse.num_random_blocks = 1;
  return sparse;
}

std::vector<SparseProblem> find_sparse_problems(const SparseAttention& s, bool causal) {
  std::vector<SparseProblem> problems;
  if (!s.used()) {
    SparseAttention plain;
    if (s != plain) problems.push_back({"mode", "is \"none\", so nothing uses the other keys", "set mode = \"fixed\""});
    return problems;
  }
  const auto add = [&](const char* field, std::string reason, std::string hint) {
    problems.push_back({field, std::move(reason), std::move(hint)});
  };
  if (s.block < 16 || s.block % 16 != 0 || s.block > 1024)
    add("block", fmt::format("{} is not a multiple of 16 up to 1024", s.block), "set block = 64");
  const auto least = [&](const char* field, std::int64_t value, std::int64_t at_least) {
    if (value < at_least || value > (1 << 20))
      add(field, fmt::format("{} is not from {} to {}", value, at_least, 1 << 20), {});
  };
  least("num_random_blocks", s.num_random_blocks, 0);
  least("num_sliding_window_blocks", s.num_sliding_window_blocks, 1);
  least("num_global_blocks", s.num_global_blocks, 1);
  least("num_local_blocks", s.num_local_blocks, 1);
  least("num_different_global_patterns", s.num_different_global_patterns, 1);
  if (!problems.empty()) return problems;
  if (s.horizontal_global_attention && causal && (s.mode == SparseMode::kFixed || s.mode == SparseMode::kVariable))
    add("horizontal_global_attention", "global blocks cannot see what comes after them in a causal model",
        "set it to false");
  if (s.mode == SparseMode::kFixed) {
    if (s.num_local_blocks % s.num_global_blocks != 0)
      add("num_global_blocks",
          fmt::format("{} does not divide num_local_blocks = {}", s.num_global_blocks, s.num_local_blocks),
          "set num_global_blocks = 1");
    else if (s.num_different_global_patterns > s.num_local_blocks / s.num_global_blocks)
      add("num_different_global_patterns",
          fmt::format("{} exceeds num_local_blocks / num_global_blocks = {}", s.num_different_global_patterns,
                      s.num_local_blocks / s.num_global_blocks),
          fmt::format("set num_different_global_patterns = {}", s.num_local_blocks / s.num_global_blocks));
    if (s.num_different_global_patterns > 1 && !s.different_layout_per_head)
      add("num_different_global_patterns", "patterns differ by head, but all heads have one layout",
          "set different_layout_per_head = true");
  }
  if (s.mode == SparseMode::kVariable || s.mode == SparseMode::kLongformer) {
    for (const std::int64_t index : s.global_block_indices) {
      if (index < 0) add("global_block_indices", fmt::format("{} is negative", index), {});
    }
    if (!s.global_block_end_indices.empty() && s.global_block_end_indices.size() != s.global_block_indices.size())
      add("global_block_end_indices",
          fmt::format("has {} numbers, global_block_indices {}", s.global_block_end_indices.size(),
                      s.global_block_indices.size()),
          "give one end for each");
    for (std::size_t i = 0; i < std::min(s.global_block_end_indices.size(), s.global_block_indices.size()); ++i) {
      if (s.global_block_end_indices[i] <= s.global_block_indices[i])
        add("global_block_end_indices",
            fmt::format("{} is not behind {}", s.global_block_end_indices[i], s.global_block_indices[i]), {});
    }
  }
  if (s.mode == SparseMode::kVariable) {
    if (s.local_window_blocks.empty()) add("local_window_blocks", "is empty", "set local_window_blocks = [4]");
    for (const std::int64_t size : s.local_window_blocks) {
      if (size < 1) add("local_window_blocks", fmt::format("a window of {} blocks", size), {});
    }
  }
  return problems;
}

SparseLists sparse_lists(const SparseAttention& s, std::int64_t heads, std::int64_t tokens, bool causal) {
  SparseLists lists{.tokens = tokens, .block = s.block, .heads = heads, .begin = {0}, .columns = {}};
  const std::int64_t blocks = lists.rows();
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t like = s.different_layout_per_head ? head : 0;
    for (std::int64_t number = 0; number < blocks; ++number) {
      SparseRow row(number, blocks);
      switch (s.mode) {
        case SparseMode::kNone:
        case SparseMode::kDense:
          row.add(0, blocks);
          break;
        case SparseMode::kFixed:
          add_fixed(row, s, like, causal);
          break;
        case SparseMode::kVariable:
          add_variable(row, s, like, causal);
          break;
        case SparseMode::kBigBird:
          add_big_bird(row, s, like, causal);
          break;
        case SparseMode::kLongformer:
          add_longformer(row, s, causal);
          break;
      }
      row.append_to(lists.columns);
      lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
    }
  }
  return lists;
}

double sparse_pairs(const SparseLists& lists, bool causal) {
  double pairs = 0;
  for (std::int64_t head = 0; head < lists.heads; ++head) {
    for (std::int64_t row = 0; row < lists.rows(); ++row) {
      const auto queries = static_cast<double>(std::min(lists.block, lists.tokens - row * lists.block));
      for (const std::int64_t column : lists.columns_of(head, row)) {
        const auto keys = static_cast<double>(std::min(lists.block, lists.tokens - column * lists.block));
        if (causal && column > row) continue;
        pairs += causal && column == row ? queries * (queries + 1) / 2 : queries * keys;
      }
    }
  }
  return pairs / static_cast<double>(lists.heads);
}

}  // namespace trireme::spec
