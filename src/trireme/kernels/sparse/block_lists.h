// kernels/sparse/block_lists.h -- which blocks of keys each block of queries attends to, as plain lists.
// Depends on: std.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::kernels {

constexpr std::int64_t kSmallestBlock = 16;  ///< tokens: blocks are of multiples

/// Row r of head h has blocks of keys columns[begin[h * rows + r]] to columns[begin[h * rows + r + 1] - 1], increasing.
struct BlockLists {
  std::int64_t tokens = 0;  ///< of a row; the last block may be cut. Of a rectangle: of its longer side
  std::int64_t block = 0;   ///< tokens of a block: a multiple of kSmallestBlock
  std::int64_t heads = 0;
  std::vector<std::int64_t> begin;
  std::vector<std::int32_t> columns;
  /// A rectangle of a row's queries and keys, where ranks share it: lists beyond its queries are empty. 0: all tokens.
  std::int64_t queries = 0, keys = 0;
  std::int64_t rows() const { return (tokens + block - 1) / block; }
};

}  // namespace trireme::kernels
