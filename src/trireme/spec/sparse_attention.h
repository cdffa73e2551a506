// spec/sparse_attention.h -- block-sparse attention: which blocks of keys each block of queries attends to.
//
//   [model.sparse_attention]              const SparseLists lists = sparse_lists(sparse, heads, tokens, causal);
//   mode = "fixed"                        // lists.columns_of(head, row): increasing
//   block = 16
//
// Patterns, keys and defaults are those of DeepSpeed's sparse attention (2020), and so are the layouts, bit for bit;
// only random blocks are drawn by our own generator. A length that blocks do not divide has a last block that is cut.
// Depends on: base.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

enum class SparseMode : std::uint8_t {
  kNone,        ///< dense attention, without blocks
  kDense,       ///< all blocks
  kFixed,       ///< Child et al. 2019: local windows, whose last blocks everybody after them sees
  kVariable,    ///< windows of given sizes, given global blocks, random ones
  kBigBird,     ///< Zaheer et al. 2020: random, sliding window and global blocks
  kLongformer,  ///< Beltagy et al. 2020: sliding window and given global blocks
};
std::span<const Named<SparseMode>> enum_names(std::type_identity<SparseMode>);

struct SparseAttention {
  SparseMode mode = SparseMode::kNone;
  std::int64_t block = 16;  ///< tokens
  bool different_layout_per_head = false;
  std::int64_t num_local_blocks = 4;               ///< fixed: of a window
  std::int64_t num_global_blocks = 1;              ///< fixed: of a window; bigbird: the first ones
  bool horizontal_global_attention = false;        ///< fixed, variable: global blocks see all
  std::int64_t num_different_global_patterns = 1;  ///< fixed, with a layout per head
  std::int64_t num_random_blocks = 0;              ///< variable, bigbird: of a row of blocks
  std::int64_t num_sliding_window_blocks = 3;      ///< bigbird, longformer
  std::vector<std::int64_t> local_window_blocks = {4};
  std::vector<std::int64_t> global_block_indices = {0};
  std::vector<std::int64_t> global_block_end_indices = {};
  bool used() const { return mode != SparseMode::kNone; }
  bool operator==(const SparseAttention&) const = default;
};
/// With the defaults that DeepSpeed gives the pattern.
SparseAttention sparse_defaults(SparseMode mode);

/// What cannot be: `add(field, reason, hint)` for each. A pattern's keys that another has are not looked at.
struct SparseProblem {
  std::string field, reason, hint;
};
std::vector<SparseProblem> find_sparse_problems(const SparseAttention& sparse, bool causal);

/// Blocks of keys of each row of blocks, by head.
struct SparseLists {
  std::int64_t tokens = 0, block = 0, heads = 0;
  std::vector<std::int64_t> begin;    ///< [heads * rows + 1]
  std::vector<std::int32_t> columns;  ///< increasing in each row
  std::int64_t rows() const { return (tokens + block - 1) / block; }
  std::span<const std::int32_t> columns_of(std::int64_t head, std::int64_t row) const {
    const auto at = static_cast<std::size_t>(head * rows() + row);
    return std::span(columns).subspan(static_cast<std::size_t>(begin[at]),
                                      static_cast<std::size_t>(begin[at + 1] - begin[at]));
  }
};
SparseLists sparse_lists(const SparseAttention& sparse, std::int64_t heads, std::int64_t tokens, bool causal);

/// (query, key) pairs of one head, on average, that are computed: within blocks, and under the causal mask.
double sparse_pairs(const SparseLists& lists, bool causal);

}  // namespace trireme::spec
