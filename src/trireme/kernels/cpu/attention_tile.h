// kernels/cpu/attention_tile.h -- what both passes do with a tile of queries by keys: multiply, mask, draw draws.
//
// Scores lie with a query a row and keys along the lanes. Rows are taken four at a time, as a strip: four rows by
// kColumns vectors of sums fill the registers while each vector of the other matrix is loaded once for all four.
// Depends on: attention_pack.h, attention_dropout.h.
#pragma once

#include "trireme/kernels/cpu/attention_dropout.h"
#include "trireme/kernels/cpu/attention_pack.h"

namespace trireme::kernels::cpu {
namespace {

constexpr int kStrip = 4;
#if defined(__AVX512F__)
constexpr int kColumns = 4;  // 16 sums, 4 vectors and one spread of 32 registers
#else
constexpr int kColumns = 2;  // 8 sums, 2 vectors and one spread of 16
#endif

constexpr std::int64_t kTileKeys = kAttentionKeyBlock;
constexpr std::int64_t kTileQueries = kAttentionQueryBlock;

/// done(row, column, sums): kRows rows of a (`steps` units each) times kCount vectors of b's columns.
template <typename Math, int kRows, int kCount, typename Done>
[[gnu::noinline]] void multiply_block(const typename Math::TileUnit* a, std::int64_t a_stride,
                                      const typename Math::TileUnit* b, std::int64_t b_stride, std::int64_t steps,
                                      const Done& done) {
  constexpr int kWidth = kLanes<typename Math::TileUnit>;
  typename Math::Vector sums[kRows][kCount] = {};
  for (std::int64_t step = 0; step < steps; ++step) {
    decltype(load(b)) columns[kCount];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) columns[c] = load(b + step * b_stride + c * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto unit = Math::spread_unit(a[r * a_stride + step]);
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) sums[r][c] = Math::dot(sums[r][c], unit, columns[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) done(r, c * kWidth, sums[r][c]);
  }
}

/// As above for columns [begin, end) of b, whole vectors; done(row, column, sums) with the column within b.
template <typename Math, typename Done>
TRIREME_INLINE void multiply(const typename Math::TileUnit* a, std::int64_t a_stride, const typename Math::TileUnit* b,
                             std::int64_t b_stride, std::int64_t steps, std::int64_t begin, std::int64_t end,
                             const Done& done) {
  constexpr int kWidth = kLanes<typename Math::TileUnit>;
  for (; begin + kColumns * kWidth <= end; begin += kColumns * kWidth) {
    multiply_block<Math, kStrip, kColumns>(a, a_stride, b + begin, b_stride, steps,
                                           [&](int r, int c, auto sums) { done(r, begin + c, sums); });
  }
  const auto rest = [&](int r, int c, auto sums) { done(r, begin + c, sums); };
  switch ((end - begin) / kWidth) {
    case 3:
      if constexpr (kColumns > 3) multiply_block<Math, kStrip, 3>(a, a_stride, b + begin, b_stride, steps, rest);
      break;
    case 2:
      if constexpr (kColumns > 2) multiply_block<Math, kStrip, 2>(a, a_stride, b + begin, b_stride, steps, rest);
      break;
    case 1:
      multiply_block<Math, kStrip, 1>(a, a_stride, b + begin, b_stride, steps, rest);
      break;
    default:
      break;
  }
}

/// Which keys the queries of a unit see, padded with rows that see none up to whole strips.
struct Visible {
  std::int32_t begin[kTileQueries], end[kTileQueries];
};

struct Range {
  std::int64_t begin, end;
  bool empty() const { return begin >= end; }
};

/// The keys that any of `count` rows sees lie in this range.
TRIREME_INLINE Range visible_to_any(const std::int32_t* begin, const std::int32_t* end, std::int64_t count) {
  Range range{INT32_MAX, 0};
  for (std::int64_t i = 0; i < count; ++i) {
    if (begin[i] >= end[i]) continue;
    range.begin = begin[i] < range.begin ? begin[i] : range.begin;
    range.end = end[i] > range.end ? end[i] : range.end;
  }
  return range;
}

/// What of a tile one strip has to look at: columns [begin, end) of the tile, whole vectors.
struct StripColumns {
  std::int64_t begin, end;
  bool masked;       ///< some row does not see all of them
  std::int64_t key;  ///< column c is key + c
};

/// Of columns [low, high) of a tile whose column 0 is first_key.
template <typename Real>
TRIREME_INLINE StripColumns strip_columns(const Visible& visible, std::int64_t row, std::int64_t first_key,
                                          std::int64_t low, std::int64_t high) {
  constexpr int kWidth = kLanes<Real>;
  const Range any = visible_to_any(visible.begin + row, visible.end + row, kStrip);
  std::int64_t begin = any.begin - first_key, end = any.end - first_key;
  begin = begin < low ? low : begin / kWidth * kWidth;
  end = end > high ? high : round_up(end, kWidth);
  bool masked = false;
  for (int r = 0; r < kStrip; ++r) {
    masked |= visible.begin[row + r] > first_key + begin || visible.end[row + r] < first_key + end;
  }
  return {begin, end, masked, first_key};
}

template <typename Real>
TRIREME_INLINE typename Lanes<Real>::Integers lane_numbers() {
  typename Lanes<Real>::Integers numbers;
  for (int i = 0; i < kLanes<Real>; ++i) numbers[i] = i;
  return numbers;
}

/// All ones in the lanes whose key, `key` and up, is in [begin, end).
template <typename Real>
TRIREME_INLINE typename Lanes<Real>::Integers seen(std::int64_t key, std::int32_t begin, std::int32_t end) {
  using Integer = typename Lanes<Real>::Integer;
  const auto keys = lane_numbers<Real>() + static_cast<Integer>(key);
  return (keys >= static_cast<Integer>(begin)) & (keys < static_cast<Integer>(end));
}

/// The draws of a strip, drawn once for its columns.
template <typename Real>
struct StripDropout {
  alignas(64) std::uint32_t dropout_rng[kStrip][kTileKeys];

  void draw(const AttentionProblem& problem, std::int64_t stream, std::int64_t query, std::int64_t first_key,
            const StripColumns& columns) {
    for (int r = 0; r < kStrip; ++r) {
      draw_dropout_words(problem.dropout_rng.streams[stream],
                         static_cast<std::uint32_t>(problem.query_position + query + r),
                         static_cast<std::uint32_t>(problem.key_position + first_key + columns.begin),
                         columns.end - columns.begin, dropout_rng[r] + columns.begin);
    }
  }
  /// All ones in the lanes that stay.
  TRIREME_INLINE typename Lanes<Real>::Integers kept(int r, std::int64_t column, std::uint32_t threshold) const {
    if constexpr (sizeof(Real) == sizeof(std::uint32_t)) {
      return load(&dropout_rng[r][column]) >= threshold;
    } else {
      typename Lanes<Real>::Integers wide;
      for (int i = 0; i < kLanes<Real>; ++i) wide[i] = dropout_rng[r][column + i];
      return wide >= static_cast<std::int64_t>(threshold);
    }
  }
};

/// Blocks of keys that the span's queries see: [begin, end).
inline Range seen_blocks(const AttentionProblem& problem, const AttentionSpan& span) {
  const std::int64_t blocks = (problem.queries + kTileQueries - 1) / kTileQueries;
  const std::int64_t offset = span.batch * problem.visible_batch;
  Range all{INT32_MAX, 0};
  // Heads see alike, so the span's blocks of queries are a range, or all of them.
  const bool every = span.end - span.begin >= blocks || span.begin / blocks != (span.end - 1) / blocks;
  const std::int64_t first = every ? 0 : span.begin % blocks * kTileQueries;
  std::int64_t last = every ? problem.queries : ((span.end - 1) % blocks + 1) * kTileQueries;
  if (last > problem.queries) last = problem.queries;
  all = visible_to_any(problem.visible_begin + offset + first, problem.visible_end + offset + first, last - first);
  if (all.empty()) return {0, 0};
  return {all.begin / kTileKeys, (all.end + kTileKeys - 1) / kTileKeys};
}

/// A unit of a span: which head and which queries, and what they see.
struct TileUnit {
  std::int64_t head, query, queries, strips;  ///< strips: rows in whole strips
  Range blocks;                               ///< of keys
  bool sparse = false;                        ///< block-sparse: `tiles` are computed, else all of `blocks`
  const AttentionTile* tiles = nullptr;
  std::int64_t tile_count = 0;
  Visible visible;

  TileUnit(const AttentionProblem& problem, const AttentionSpan& span, std::int64_t number) {
    const std::int64_t count = (problem.queries + kTileQueries - 1) / kTileQueries;
    head = span.key_head * problem.group() + number / count;
    query = number % count * kTileQueries;
    queries = problem.queries - query < kTileQueries ? problem.queries - query : kTileQueries;
    strips = round_up(queries, kStrip);
    sparse = problem.tile_begin != nullptr;
    if (sparse) {
      const std::int64_t* const begin = problem.tile_begin + head * count + number % count;
      tiles = problem.tiles + begin[0];
      tile_count = begin[1] - begin[0];
    }
    const std::int64_t offset = span.batch * problem.visible_batch + query;
    for (std::int64_t i = 0; i < kTileQueries; ++i) {
      visible.begin[i] = i < queries ? problem.visible_begin[offset + i] : 0;
      visible.end[i] = i < queries ? problem.visible_end[offset + i] : 0;
    }
  }
  /// Where the next unit's rows are: the same span's, or the first of the next.
  struct Place {
    bool exists;
    std::int64_t batch, head, query, queries;
  };
  static Place after(const AttentionProblem& problem, const AttentionSpan& span, std::int64_t number) {
    const bool same = number + 1 < span.end;
    if (!same && span.next == nullptr) return {};
    const AttentionSpan& of = same ? span : *span.next;
    const std::int64_t count = (problem.queries + kTileQueries - 1) / kTileQueries;
    const std::int64_t place = same ? number + 1 : of.begin, from = place % count * kTileQueries;
    return {true, of.batch, of.key_head * problem.group() + place / count, from,
            problem.queries - from < kTileQueries ? problem.queries - from : kTileQueries};
  }
  /// How often the tiles of this unit call for a strip, at most.
  std::int64_t calls() const { return (sparse ? tile_count : blocks.end - blocks.begin) * strips / kStrip; }

  void find_blocks() {
    const Range any = visible_to_any(visible.begin, visible.end, strips);
    blocks = any.empty() ? Range{0, 0} : Range{any.begin / kTileKeys, (any.end + kTileKeys - 1) / kTileKeys};
  }
};

constexpr std::int64_t kMaskBlock = 16;  // queries and keys that a bit of AttentionTile::blocks stands for
constexpr std::uint32_t kWholeTile = ~std::uint32_t{0}, kWholeStrip = 15;
constexpr std::int64_t kTileChunks = kTileKeys / kMaskBlock;

/// The bits of the blocks that a strip's rows are in.
TRIREME_INLINE std::uint32_t strip_blocks(std::uint32_t blocks, std::int64_t row) {
  return blocks >> (row / kMaskBlock * 4) & kWholeStrip;
}

/// Whether a tile's keys lie side by side where all keys are packed, from a multiple of kTileKeys on.
TRIREME_INLINE bool in_place(const AttentionTile& tile) {
  bool neighbours = tile.chunks[0] % kTileChunks == 0;
  for (int j = 1; j < kTileChunks; ++j)
    neighbours = neighbours && (tile.chunks[j] < 0 || tile.chunks[j] == tile.chunks[0] + j);
  return neighbours;
}

/// visit(tile) for every tile of a unit that is computed.
template <typename Visit>
TRIREME_INLINE void for_tiles(const TileUnit& unit, const Visit& visit) {
  if (!unit.sparse) {
    for (std::int64_t block = unit.blocks.begin; block < unit.blocks.end; ++block) {
      const auto first = static_cast<std::int32_t>(block * kTileChunks);
      visit(AttentionTile{{first, first + 1, first + 2, first + 3}, kWholeTile});
    }
    return;
  }
  for (std::int64_t i = 0; i < unit.tile_count; ++i) {
    const AttentionTile& tile = unit.tiles[i];
    bool seen = false;
    for (const std::int32_t chunk : tile.chunks)
      seen |= chunk / kTileChunks >= unit.blocks.begin && chunk / kTileChunks < unit.blocks.end && chunk >= 0;
    if (seen) visit(tile);
  }
}

/// visit(columns) for each run of a strip's columns whose blocks are computed. Chunks that are no neighbours make one
/// run where all of their keys are seen, unless `positions` count (dropout draws by them).
template <typename Real, typename Visit>
TRIREME_INLINE void for_runs(const AttentionTile& tile, bool neighbours, const Visible& visible, std::int64_t row,
                             bool positions, const Visit& visit) {
  const std::uint32_t bits = strip_blocks(tile.blocks, row);
  if (bits == 0) return;
  if (neighbours && bits == kWholeStrip) {
    const StripColumns columns = strip_columns<Real>(visible, row, tile.chunks[0] * kMaskBlock, 0, kTileKeys);
    if (columns.begin < columns.end) visit(columns);
    return;
  }
  StripColumns run{0, 0, false, 0};
  for (std::int64_t j = 0; j < kTileChunks; ++j) {
    if ((bits >> j & 1) == 0) continue;
    const StripColumns columns =
        strip_columns<Real>(visible, row, (tile.chunks[j] - j) * kMaskBlock, j * kMaskBlock, (j + 1) * kMaskBlock);
    if (columns.begin >= columns.end) continue;
    const bool free = !positions && !run.masked && !columns.masked;
    if (run.begin < run.end && run.end == columns.begin && (free || run.key == columns.key)) {
      run.end = columns.end;
      run.masked |= columns.masked;
      continue;
    }
    if (run.begin < run.end) visit(run);
    run = columns;
  }
  if (run.begin < run.end) visit(run);
}

/// A tile's chunks side by side, from where all keys are packed: columns of matrices [rows, kTileKeys], a matrix for
/// each kTileKeys keys, or rows of which a chunk fills `chunk_units`.
template <typename UnitType>
void gather_columns(UnitType* to, const UnitType* all, const AttentionTile& tile, std::int64_t rows) {
  for (int j = 0; j < kTileChunks; ++j) {
    if (tile.chunks[j] < 0) continue;
    const UnitType* from =
        all + tile.chunks[j] / kTileChunks * kTileKeys * rows + tile.chunks[j] % kTileChunks * kMaskBlock;
    for (std::int64_t row = 0; row < rows; ++row)
      std::memcpy(to + row * kTileKeys + j * kMaskBlock, from + row * kTileKeys, kMaskBlock * sizeof(UnitType));
  }
}
template <typename UnitType>
void gather_rows(UnitType* to, const UnitType* all, const AttentionTile& tile, std::int64_t chunk_units) {
  for (int j = 0; j < kTileChunks; ++j) {
    if (tile.chunks[j] < 0) continue;
    std::memcpy(to + j * chunk_units, all + tile.chunks[j] * chunk_units,
                static_cast<std::size_t>(chunk_units) * sizeof(UnitType));
  }
}

/// Which of some places holds what was gathered of a tile's chunks: units of a head see many of the same ones.
class GatheredTiles {
 public:
  /// `tags`: memory of `places` tiles.
  void begin(AttentionTile* tags, std::int64_t places) {
    tags_ = tags;
    places_ = places;
    forget();
  }
  /// Other keys are packed now.
  void forget() {
    for (std::int64_t i = 0; i < places_; ++i) tags_[i].chunks[0] = -1;
  }
  struct Place {
    std::int64_t number;
    bool filled;  ///< with these chunks
  };
  Place find(const AttentionTile& tile) {
    std::uint32_t hash = 0;
    for (const std::int32_t chunk : tile.chunks) hash = hash * 31 + static_cast<std::uint32_t>(chunk + 1);
    const auto number = static_cast<std::int64_t>(hash % static_cast<std::uint32_t>(places_));
    AttentionTile& tag = tags_[number];
    bool same = true;
    for (int j = 0; j < kTileChunks; ++j) same = same && tag.chunks[j] == tile.chunks[j];
    if (!same) tag = tile;
    return {number, same};
  }

 private:
  AttentionTile* tags_ = nullptr;
  std::int64_t places_ = 0;
};

}  // namespace
}  // namespace trireme::kernels::cpu
