// kernels/cpu/attention_pack.h -- elements as the GEMMs want them: widened or in pairs, padded, transposed.
//
// A unit is what one multiplication of a lane takes in: one float or double, or two bfloat16 in 32 bits. A matrix has
// two forms: `along` (units along the head: pairs are neighbours of a row) and `across` (pairs are neighbours of a
// column), each as it is or transposed. Depends on: attention_problem.h, attention_convert.h.
#pragma once

#include "trireme/kernels/cpu/attention_convert.h"
#include "trireme/kernels/cpu/attention_problem.h"

namespace trireme::kernels::cpu {
namespace {

/// How elements of type In are multiplied: as themselves, or widened to Real.
template <typename In, typename RealType>
struct Single {
  using Element = In;
  using Real = RealType;
  using TileUnit = Real;
  using Vector = typename Lanes<Real>::Vector;
  static constexpr int kPair = 1;  ///< elements in a unit

  TRIREME_INLINE static Vector dot(Vector sum, Vector a, Vector b) { return sum + a * b; }
  TRIREME_INLINE static Vector spread_unit(TileUnit unit) { return spread(unit); }

  TRIREME_INLINE static void pack_row(TileUnit* to, const In* from, std::int64_t size) {
    std::int64_t i = 0;
    for (; i + kLanes<Real> <= size; i += kLanes<Real>) store(to + i, widen_vector(from + i));
    for (; i < size; ++i) to[i] = widen(from[i]);
  }
  /// Element `column` and its lanes' worth of neighbours of a packed row.
  TRIREME_INLINE static Vector widened(const TileUnit* row, std::int64_t column) { return load(row + column); }
  /// Values of a row, at column `column` of `to`.
  TRIREME_INLINE static void store_along(TileUnit* to, std::int64_t column, Vector values) {
    store(to + column, values);
  }
  /// kPair rows of values, one above the other.
  TRIREME_INLINE static void store_across(TileUnit* to, const Vector (&values)[1]) { store(to, values[0]); }
  TRIREME_INLINE static void pair_rows(TileUnit*, const TileUnit*, std::int64_t, std::int64_t) {}
};

#if defined(__AVX512BF16__)
/// bfloat16 in pairs: GEMMs are exact, each pair is added to a float sum.
struct Bfloat16Pairs {
  using Element = Bfloat16;
  using Real = float;
  using TileUnit = std::uint32_t;
  using Vector = FloatVector;
  static constexpr int kPair = 2;

  TRIREME_INLINE static Vector dot(Vector sum, Uint32Vector a, Uint32Vector b) {
    return reinterpret_cast<Vector>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), (__m512bh)a, (__m512bh)b));
  }
  TRIREME_INLINE static Uint32Vector spread_unit(TileUnit unit) {
    return reinterpret_cast<Uint32Vector>(_mm512_set1_epi32(static_cast<int>(unit)));
  }
  TRIREME_INLINE static void pack_row(TileUnit* to, const Bfloat16* from, std::int64_t size) {
    std::int64_t i = 0;
    for (; i + 32 <= size; i += 32) _mm512_store_si512(to + i / 2, _mm512_loadu_si512(from + i));
    const __mmask32 rest = static_cast<__mmask32>((std::uint64_t{1} << (size - i)) - 1);
    if (i < size) _mm512_store_si512(to + i / 2, _mm512_maskz_loadu_epi16(rest, from + i));
  }
  TRIREME_INLINE static Vector widened(const TileUnit* row, std::int64_t column) {
    return widen_vector(reinterpret_cast<const Bfloat16*>(row + column / 2));
  }
  TRIREME_INLINE static void store_along(TileUnit* to, std::int64_t column, Vector values) {
    const __m256bh half = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(values));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + column / 2), (__m256i)half);
  }
  TRIREME_INLINE static void store_across(TileUnit* to, const Vector (&values)[2]) {
    const __m512bh both = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(values[1]), reinterpret_cast<__m512>(values[0]));
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(order, (__m512i)both));
  }
  /// `from`: two rows of elements, `stride` units apart; `to`: one row of units.
  TRIREME_INLINE static void pair_rows(TileUnit* to, const TileUnit* from, std::int64_t stride, std::int64_t size) {
    const auto* upper = reinterpret_cast<const std::uint16_t*>(from);
    const auto* lower = reinterpret_cast<const std::uint16_t*>(from + stride);
    for (std::int64_t i = 0; i < size; ++i) to[i] = upper[i] | std::uint32_t{lower[i]} << 16;
  }
};
#endif

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Heads are padded with zeros to whole vectors of every type.
constexpr std::int64_t padded_head(std::int64_t head_dim) { return round_up(head_dim, 16); }

/// Units from one row to the next in the along form: whole vectors, so that it can be transposed.
template <typename Math>
constexpr std::int64_t along_stride(std::int64_t head_dim) {
  return round_up(padded_head(head_dim) / Math::kPair, kLanes<typename Math::TileUnit>);
}

/// `rows` rows from `from`, along, then rows of zeros up to `padded_rows`.
template <typename Math>
void pack_along(typename Math::TileUnit* to, const typename Math::Element* from, std::int64_t stride, std::int64_t rows,
                std::int64_t padded_rows, std::int64_t head_dim) {
  const std::int64_t units = along_stride<Math>(head_dim);
  const std::int64_t filled = (head_dim + Math::kPair - 1) / Math::kPair;
  for (std::int64_t row = 0; row < padded_rows; ++row) {
    typename Math::TileUnit* const at = to + row * units;
    if (row < rows) {
      if (row + kRowsAhead < rows) prefetch_row<0>(from + (row + kRowsAhead) * stride, head_dim);
      Math::pack_row(at, from + row * stride, head_dim);
      for (std::int64_t i = filled; i < units; ++i) at[i] = 0;
    } else {
      for (std::int64_t i = 0; i < units; ++i) at[i] = 0;
    }
  }
}

/// From along to across, to[row / kPair][padded]. Where units are single elements the two are the same.
template <typename Math>
void pack_across(typename Math::TileUnit* to, const typename Math::TileUnit* along, std::int64_t rows,
                 std::int64_t head_dim) {
  const std::int64_t padded = padded_head(head_dim), stride = along_stride<Math>(head_dim);
  if constexpr (Math::kPair == 1) {
    std::memcpy(to, along, static_cast<std::size_t>(rows * padded) * sizeof(*to));
  } else {
    for (std::int64_t row = 0; row < rows; row += 2) {
      Math::pair_rows(to + row / 2 * padded, along + row * stride, stride, padded);
    }
  }
}

template <typename Math>
TRIREME_INLINE const typename Math::Element* row_of(const AttentionRows<const void*>& rows, std::int64_t batch,
                                                    std::int64_t row, std::int64_t head) {
  return static_cast<const typename Math::Element*>(rows.data) + batch * rows.batch + row * rows.row + head * rows.head;
}
template <typename Math>
TRIREME_INLINE typename Math::Element* row_of(const AttentionRows<void*>& rows, std::int64_t batch, std::int64_t row,
                                              std::int64_t head) {
  return static_cast<typename Math::Element*>(rows.data) + batch * rows.batch + row * rows.row + head * rows.head;
}

/// Fetches the rows that are wanted next while the present tiles are multiplied. A head's rows lie apart, one short
/// piece in each token, so that fetching them when they are packed waits for memory again and again: a quarter of the
/// time of short sequences.
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

/// Hands out pieces of a buffer; over no buffer it counts what is needed.
class Scratch {
 public:
  explicit Scratch(void* base) : base_(static_cast<char*>(base)) {}

  template <typename Type>
  Type* take(std::int64_t count) {
    Type* const piece = base_ == nullptr ? nullptr : reinterpret_cast<Type*>(base_ + used_);
    used_ += static_cast<std::size_t>(round_up(count * static_cast<std::int64_t>(sizeof(Type)), 64));
    return piece;
  }
  std::size_t bytes() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace
}  // namespace trireme::kernels::cpu
