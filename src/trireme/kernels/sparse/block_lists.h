// kernels/sparse/block_lists.h -- which blocks of keys each block of queries attends to, as plain lists.
// Depends on: std.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::kernels {

/// Row r of head h has blocks of keys columns[begin[h * rows + r]] to columns[begin[h * rows + r + 1] - 1], increasing.
struct BlockLists {
  std::int64_t tokens = 0;  ///< of a row; the last block may be cut
  std::int64_t block = 0;   ///< tokens of a block: a multiple of 16
  std::int64_t heads = 0;
  std::vector<std::int64_t> begin;
  std::vector<std::int32_t> columns;
  std::int64_t rows() const { return (tokens + block - 1) / block; }
};

}  // namespace trireme::kernels
