// kernels/cpu/attention_prefetch.h -- fetches the rows that are wanted next while the present tiles are multiplied.
//
// A head's rows lie apart, one short piece in each token, so that fetching them when they are packed waits for memory
// again and again: a quarter of the time of short sequences. Depends on: attention_problem.h.
#pragma once

#include "trireme/kernels/cpu/attention_problem.h"

namespace trireme::kernels::cpu {
namespace {

class Prefetch {
 public:
  explicit Prefetch(std::int64_t row_bytes) : row_bytes_(row_bytes) {}

  /// Forgets what is left; `calls` calls of step() shall fetch what is added from now on.
  void begin(std::int64_t calls) { calls_ = calls < 1 ? 1 : calls, count_ = current_ = 0, rows_ = 0; }

  template <bool kWrite, typename Pointer>
  void add(const AttentionRows<Pointer>& rows, std::int64_t element_bytes, std::int64_t batch, std::int64_t row,
           std::int64_t head, std::int64_t count) {
    if (count <= 0) return;
    const auto* const base = static_cast<const char*>(rows.data);
    pieces_[count_++] = {base + (batch * rows.batch + row * rows.row + head * rows.head) * element_bytes,
                         rows.row * element_bytes, count, kWrite};
    rows_ += count;
  }

  void step() {
    for (std::int64_t left = rows_ / calls_ + 1; left > 0 && current_ < count_; --left) {
      Piece& piece = pieces_[current_];
      // Into the second-level cache: the first is full of the tile at hand.
      for (std::int64_t i = 0; i < row_bytes_; i += 64) {
        if (piece.write) {
          __builtin_prefetch(piece.at + i, 1, 2);
        } else {
          __builtin_prefetch(piece.at + i, 0, 2);
        }
      }
      piece.at += piece.stride;
      if (--piece.rows == 0) ++current_;
    }
  }

 private:
  struct Piece {
    const char* at;
    std::int64_t stride, rows;
    bool write;
  };
  Piece pieces_[8];
  std::int64_t row_bytes_, calls_ = 1, count_ = 0, current_ = 0, rows_ = 0;
};

}  // namespace
}  // namespace trireme::kernels::cpu
