// kernels/cpu/attention_backward.h -- the backward pass: FlashAttention's, from the saved log-sum-exp.
//
//   P = 2^(scale log2(e) q k^T - lse log2(e))      D = rowsum(dout * out)        dP = dout v^T
//   dS = P * (dP - D)     dv += P^T dout     dk += dS^T q     dq += dS k         (dk and dq times scale at the end)
//
// With draws, P of fallen ones counts as 0 in dv, and dP as 0 in dS; both are divided by 1 - p where they stay.
// dk and dv are summed transposed, keys along the lanes, over all queries of a span: scores then need no turning, only
// their pairs (bfloat16) are stored both along the keys for dq and across the queries for dk and dv. In bfloat16 P and
// dS are rounded to bfloat16 for those GEMMs; sums are float.
// Scratch: keys and values of one head in three packed forms and a block's rows in five (block-sparse: keys and values
// once more, by tiles whose chunks lie apart); the sums of dk and dv are two float copies of a head of keys. Depends
// on: attention_tile.h.
#pragma once

#include "trireme/kernels/cpu/attention_tile.h"

namespace trireme::kernels::cpu {
namespace {

template <typename Math>
class Backward {
  using Real = typename Math::Real;
  using UnitType = typename Math::TileUnit;
  using Vector = typename Math::Vector;
  static constexpr int kWidth = kLanes<Real>;
  static constexpr int kPair = Math::kPair;
  static constexpr std::int64_t kBytes = sizeof(typename Math::Element);
  static constexpr Real kLog2E = static_cast<Real>(1.44269504088896340736);

 public:
  Backward(const AttentionProblem& problem, void* memory)
      : problem_(problem), scratch_(memory), prefetch_(problem.head_dim * kBytes) {
    padded_ = padded_head(problem.head_dim);
    units_ = padded_ / kPair;
    stride_ = along_stride<Math>(problem.head_dim);
    const std::int64_t keys = round_up(problem.keys, kTileKeys), block = kTileQueries * stride_;
    keys_transposed_ = scratch_.take<UnitType>(keys * stride_);
    keys_across_ = scratch_.take<UnitType>(keys * units_);
    values_transposed_ = scratch_.take<UnitType>(keys * stride_);
    if (problem.tile_begin != nullptr) {
      gathered_keys_transposed_ = scratch_.take<UnitType>(keys * stride_);
      gathered_keys_across_ = scratch_.take<UnitType>(keys * units_);
      gathered_values_transposed_ = scratch_.take<UnitType>(keys * stride_);
      tags_ = scratch_.take<AttentionTile>(keys / kTileKeys);
    }
    q_along_ = scratch_.take<UnitType>(block);
    q_transposed_ = scratch_.take<UnitType>(kTileQueries * units_);
    dout_along_ = scratch_.take<UnitType>(block);
    dout_transposed_ = scratch_.take<UnitType>(kTileQueries * units_);
    staging_ = scratch_.take<UnitType>(block);
    dq_ = scratch_.take<Real>(kTileQueries * padded_);
    scores_ = scratch_.take<Real>(kStrip * kTileKeys);
    slopes_ = scratch_.take<Real>(kStrip * kTileKeys);
    p_across_ = scratch_.take<UnitType>(kTileQueries * kTileKeys / kPair);
    ds_across_ = scratch_.take<UnitType>(kTileQueries * kTileKeys / kPair);
    ds_along_ = kPair == 1 ? nullptr : scratch_.take<UnitType>(kStrip * kTileKeys / kPair);
    lse_ = scratch_.take<Real>(kTileQueries);
    dot_ = scratch_.take<Real>(kTileQueries);
    dropout_rng_ = scratch_.take<StripDropout<Real>>(1);
  }
  std::size_t bytes() const { return scratch_.bytes(); }

  static std::int64_t sums(const AttentionProblem& problem) {
    return round_up(problem.keys, kTileKeys) * padded_head(problem.head_dim);
  }

  void run(const AttentionSpan& span, Real* dk, Real* dv) {
    std::memset(dk, 0, static_cast<std::size_t>(sums(problem_)) * sizeof(Real));
    std::memset(dv, 0, static_cast<std::size_t>(sums(problem_)) * sizeof(Real));
    pack_keys(span);
    if (tags_ != nullptr) gathered_tiles_.begin(tags_, round_up(problem_.keys, kTileKeys) / kTileKeys);
    for (std::int64_t number = span.begin; number < span.end; ++number) {
      TileUnit unit(problem_, span, number);
      begin_unit(unit, span.batch);
      look_ahead(unit, span, number);
      for_tiles(unit, [&](const AttentionTile& tile) { take_tile(unit, span.batch, tile, dk, dv); });
      const Real scale = static_cast<Real>(problem_.scale);
      for (std::int64_t row = 0; row < unit.queries; ++row) {
        auto* const to = row_of<Math>(problem_.dq, span.batch, unit.query + row, unit.head);
        write_row(to, dq_ + row * padded_, scale, problem_.head_dim);
      }
    }
  }

 private:
  void pack_keys(const AttentionSpan& span) {
    const Range blocks = seen_blocks(problem_, span);
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      const std::int64_t key = block * kTileKeys;
      const std::int64_t rows = problem_.keys - key < kTileKeys ? problem_.keys - key : kTileKeys;
      pack_along<Math>(staging_, row_of<Math>(problem_.k, span.batch, key, span.key_head), problem_.k.row, rows,
                       kTileKeys, problem_.head_dim);
      transpose(keys_transposed_ + key * stride_, kTileKeys, staging_, stride_, kTileKeys, stride_);
      pack_across<Math>(keys_across_ + key * units_, staging_, kTileKeys, problem_.head_dim);
      pack_along<Math>(staging_, row_of<Math>(problem_.v, span.batch, key, span.key_head), problem_.v.row, rows,
                       kTileKeys, problem_.head_dim);
      transpose(values_transposed_ + key * stride_, kTileKeys, staging_, stride_, kTileKeys, stride_);
    }
  }

  void look_ahead(const TileUnit& unit, const AttentionSpan& span, std::int64_t number) {
    prefetch_.begin(unit.calls());
    prefetch_.add<true>(problem_.dq, kBytes, span.batch, unit.query, unit.head, unit.queries);
    const TileUnit::Place after = TileUnit::after(problem_, span, number);
    prefetch_.add<false>(problem_.q, kBytes, after.batch, after.query, after.head, after.queries);
    prefetch_.add<false>(problem_.dout, kBytes, after.batch, after.query, after.head, after.queries);
    prefetch_.add<false>(problem_.out_read, kBytes, after.batch, after.query, after.head, after.queries);
    if (number + 1 < span.end) return;
    prefetch_.add<true>(problem_.dk, kBytes, span.batch, 0, span.key_head, problem_.keys);
    prefetch_.add<true>(problem_.dv, kBytes, span.batch, 0, span.key_head, problem_.keys);
    if (span.next == nullptr) return;
    prefetch_.add<false>(problem_.k, kBytes, after.batch, 0, span.next->key_head, problem_.keys);
    prefetch_.add<false>(problem_.v, kBytes, after.batch, 0, span.next->key_head, problem_.keys);
  }

  /// Packs the rows of a unit; rows that saw no key take part in nothing.
  void begin_unit(TileUnit& unit, std::int64_t batch) {
    rows_ = round_up(unit.queries, kWidth * kPair > kStrip ? kWidth * kPair : kStrip);
    pack_queries(problem_.q, unit, batch, q_along_, q_transposed_);
    pack_queries(problem_.dout, unit, batch, dout_along_, dout_transposed_);
    std::memset(dq_, 0, static_cast<std::size_t>(unit.strips * padded_) * sizeof(Real));
    const Real* const lse = static_cast<const Real*>(problem_.lse) + batch * problem_.lse_batch +
                            unit.head * problem_.lse_head + unit.query;
    for (std::int64_t row = 0; row < unit.strips; ++row) {
      const bool fully_masked = row >= unit.queries || lse[row] == -static_cast<Real>(__builtin_inf());
      lse_[row] = fully_masked ? Real{0} : lse[row] * kLog2E;
      dot_[row] = 0;
      if (fully_masked) unit.visible.end[row] = unit.visible.begin[row] = 0;
      if (fully_masked) continue;
      const auto* const out = row_of<Math>(problem_.out_read, batch, unit.query + row, unit.head);
      if (row + kRowsAhead < unit.queries) {
        prefetch_row<0>(out + kRowsAhead * problem_.out_read.row, problem_.head_dim);
      }
      dot_[row] = dot_of(dout_along_ + row * stride_, out);
    }
    unit.find_blocks();
  }

  /// Of a packed row with one of the tensor.
  Real dot_of(const UnitType* along, const typename Math::Element* row) {
    Vector sum{};
    std::int64_t i = 0;
    for (; i + kWidth <= problem_.head_dim; i += kWidth) sum += Math::widened(along, i) * widen_vector(row + i);
    Real rest = 0;
    for (; i < problem_.head_dim; ++i) rest += Math::widened(along, i / kWidth * kWidth)[i % kWidth] * widen(row[i]);
    return horizontal_sum(sum) + rest;
  }

  void pack_queries(const AttentionRows<const void*>& rows, const TileUnit& unit, std::int64_t batch, UnitType* along,
                    UnitType* transposed) {
    pack_along<Math>(along, row_of<Math>(rows, batch, unit.query, unit.head), rows.row, unit.queries, rows_,
                     problem_.head_dim);
    const UnitType* across = along;
    if constexpr (kPair > 1) {
      pack_across<Math>(staging_, along, rows_, problem_.head_dim);
      across = staging_;
    }
    transpose(transposed, kTileQueries / kPair, across, padded_, rows_ / kPair, padded_);
  }

  /// A tile's keys and values as the GEMMs take them.
  struct Packed {
    const UnitType *keys_transposed, *keys_across, *values_transposed;
  };
  Packed packed_at(std::int64_t key) const {
    return {keys_transposed_ + key * stride_, keys_across_ + key * units_, values_transposed_ + key * stride_};
  }
  Packed gathered(const AttentionTile& tile) {
    const GatheredTiles::Place place = gathered_tiles_.find(tile);
    const std::int64_t key = place.number * kTileKeys;
    UnitType *const keys_transposed = gathered_keys_transposed_ + key * stride_,
                    *const keys_across = gathered_keys_across_ + key * units_,
                    *const values_transposed = gathered_values_transposed_ + key * stride_;
    if (!place.filled) {
      gather_columns(keys_transposed, keys_transposed_, tile, stride_);
      gather_rows(keys_across, keys_across_, tile, kMaskBlock * units_);
      gather_columns(values_transposed, values_transposed_, tile, stride_);
    }
    return {keys_transposed, keys_across, values_transposed};
  }

  void take_tile(const TileUnit& unit, std::int64_t batch, const AttentionTile& tile, Real* dk, Real* dv) {
    const bool neighbours = in_place(tile);
    const Packed packed = neighbours ? packed_at(tile.chunks[0] * kMaskBlock) : gathered(tile);
    // Strips from the first to the last that sees a column, for each vector of columns.
    std::int64_t first[kTileKeys / kWidth], last[kTileKeys / kWidth];
    for (std::int64_t i = 0; i < kTileKeys / kWidth; ++i) first[i] = unit.strips, last[i] = 0;
    std::int64_t top = unit.strips, bottom = 0;
    std::int64_t seen_columns[kTileQueries / kStrip];  // of each strip
    for (std::int64_t row = 0; row < unit.strips; row += kStrip) {
      std::int64_t& count = seen_columns[row / kStrip];
      count = 0;
      prefetch_.step();
      for_runs<Real>(tile, neighbours, unit.visible, row, problem_.dropout_rng.streams != nullptr,
                     [&](const StripColumns& run) {
                       if (count == 0 && run.end - run.begin < kTileKeys) clear(row);
                       count += run.end - run.begin;
                       for (std::int64_t c = run.begin / kWidth; c < run.end / kWidth; ++c) {
                         if (row < first[c]) first[c] = row;
                         last[c] = row + kStrip;
                       }
                       take_strip(unit, batch, packed, row, run);
                     });
      if (count == 0) continue;
      top = row < top ? row : top;
      bottom = row + kStrip;
    }
    bool ragged = top > 0 || bottom < unit.strips;
    for (std::int64_t row = top; row < bottom; row += kStrip) {
      if (seen_columns[row / kStrip] == 0) clear(row);
      ragged |= seen_columns[row / kStrip] < kTileKeys;
    }
    const SumsOf to(tile, padded_);
    // Tiles on an edge of the mask in narrower pieces: fewer rows are multiplied that see nothing.
    const std::int64_t piece = ragged ? (kColumns / 2) * kWidth : kTileKeys;
    for (std::int64_t begin = 0; begin < kTileKeys; begin += piece) {
      std::int64_t from = unit.strips, end = 0;
      for (std::int64_t c = begin / kWidth; c < (begin + piece) / kWidth; ++c) {
        from = first[c] < from ? first[c] : from;
        end = last[c] > end ? last[c] : end;
      }
      if (from >= end) continue;
      add(dv, to, dout_transposed_, p_across_, from, end, begin, ragged);
      add(dk, to, q_transposed_, ds_across_, from, end, begin, ragged);
    }
  }

  /// Where the sums of a tile's chunks of keys are.
  struct SumsOf {
    std::int64_t of_chunk[kTileChunks];
    SumsOf(const AttentionTile& tile, std::int64_t padded) {
      for (int j = 0; j < kTileChunks; ++j) {
        const std::int64_t chunk = tile.chunks[j] < 0 ? tile.chunks[0] : tile.chunks[j];  // zeros are added for none
        of_chunk[j] = chunk / kTileChunks * kTileKeys * padded + chunk % kTileChunks * kMaskBlock;
      }
    }
    TRIREME_INLINE std::int64_t at(std::int64_t row, std::int64_t column) const {
      return of_chunk[column / kMaskBlock] + row * kTileKeys + column % kMaskBlock;
    }
  };

  /// What a strip does not see counts as zero for the rows of other strips' ranges.
  void clear(std::int64_t row) {
    using Units = typename Lanes<UnitType>::Vector;
    for (std::int64_t r = row / kPair; r < (row + kStrip) / kPair; ++r) {
      for (std::int64_t c = 0; c < kTileKeys; c += kWidth) {
        store(p_across_ + r * kTileKeys + c, Units{});
        store(ds_across_ + r * kTileKeys + c, Units{});
      }
    }
  }

  /// sums[head][key] += transposed[head][query] across[query][key] over queries [first, last) and all keys or,
  /// `narrow`, half the usual columns from `begin` on, for twice the usual rows.
  void add(Real* sums, const SumsOf& to, const UnitType* transposed, const UnitType* across, std::int64_t first,
           std::int64_t last, std::int64_t begin, bool narrow) {
    constexpr std::int64_t kStride = kTileQueries / kPair;
    const UnitType* const b = across + first / kPair * kTileKeys;
    const std::int64_t steps = (last - first) / kPair;
    for (std::int64_t row = 0; row < padded_; row += narrow ? 2 * kStrip : kStrip) {
      const UnitType* const a = transposed + row * kStride + first / kPair;
      const auto done = [&](int r, std::int64_t c, Vector products) {
        Real* const at = sums + to.at(row + r, begin + c);
        store(at, load(at) + products);
      };
      if (narrow) {
        multiply_block<Math, 2 * kStrip, kColumns / 2>(a, kStride, b + begin, kTileKeys, steps, done);
      } else {
        multiply<Math>(a, kStride, b, kTileKeys, steps, 0, kTileKeys, done);
      }
    }
  }

  void take_strip(const TileUnit& unit, std::int64_t batch, const Packed& packed, std::int64_t row,
                  const StripColumns& columns) {
    const std::int64_t key = columns.key;
    const Real factor = static_cast<Real>(problem_.scale) * kLog2E;
    multiply<Math>(q_along_ + row * stride_, stride_, packed.keys_transposed, kTileKeys, units_, columns.begin,
                   columns.end, [&](int r, std::int64_t c, Vector sums) {
                     store(scores_ + r * kTileKeys + c, exp2(sums * factor - lse_[row + r]));
                   });
    multiply<Math>(dout_along_ + row * stride_, stride_, packed.values_transposed, kTileKeys, units_, columns.begin,
                   columns.end, [&](int r, std::int64_t c, Vector sums) { store(slopes_ + r * kTileKeys + c, sums); });
    if (problem_.dropout_rng.streams != nullptr) {
      dropout_rng_->draw(problem_, batch * problem_.heads + unit.head, unit.query + row, key, columns);
      differentiate<true, true>(unit, row, key, columns);
    } else if (columns.masked) {
      differentiate<true, false>(unit, row, key, columns);
    } else {
      differentiate<false, false>(unit, row, key, columns);
    }
    const UnitType* const ds = kPair == 1 ? ds_across_ + row * kTileKeys : ds_along_;
    const std::int64_t first = columns.begin / kPair;
    multiply<Math>(ds + first, kTileKeys / kPair, packed.keys_across + first * padded_, padded_,
                   (columns.end - columns.begin) / kPair, 0, padded_, [&](int r, std::int64_t c, Vector sums) {
                     Real* const at = dq_ + (row + r) * padded_ + c;
                     store(at, load(at) + sums);
                   });
  }

  /// From P and dP of a strip to P and dS as the GEMMs take them.
  template <bool kMasked, bool kDropout>
  TRIREME_INLINE void differentiate(const TileUnit& unit, std::int64_t row, std::int64_t key,
                                    const StripColumns& columns) {
    const Real dropout_scale = static_cast<Real>(problem_.dropout_rng.dropout_scale);
    for (int r = 0; r < kStrip; r += kPair) {
      for (std::int64_t c = columns.begin; c < columns.end; c += kWidth) {
        Vector p[kPair], ds[kPair];
#pragma GCC unroll 2
        for (int i = 0; i < kPair; ++i) {
          p[i] = load(scores_ + (r + i) * kTileKeys + c);
          Vector slope = load(slopes_ + (r + i) * kTileKeys + c);
          if constexpr (kMasked) {
            const std::int64_t at = row + r + i;
            p[i] = seen<Real>(key + c, unit.visible.begin[at], unit.visible.end[at]) ? p[i] : Vector{};
          }
          if constexpr (kDropout) {
            const auto kept = dropout_rng_->kept(r + i, c, problem_.dropout_rng.threshold);
            slope = kept ? slope * dropout_scale : Vector{};
            ds[i] = p[i] * (slope - dot_[row + r + i]);
            p[i] = kept ? p[i] : Vector{};
          } else {
            ds[i] = p[i] * (slope - dot_[row + r + i]);
          }
          if constexpr (kPair > 1) Math::store_along(ds_along_ + (r + i) * (kTileKeys / kPair), c, ds[i]);
        }
        Math::store_across(p_across_ + (row + r) / kPair * kTileKeys + c, p);
        Math::store_across(ds_across_ + (row + r) / kPair * kTileKeys + c, ds);
      }
    }
  }

  const AttentionProblem& problem_;
  Scratch scratch_;
  std::int64_t padded_, units_, stride_, rows_ = 0;
  UnitType *keys_transposed_, *keys_across_, *values_transposed_;                   // by blocks of keys
  UnitType *gathered_keys_transposed_ = nullptr, *gathered_keys_across_ = nullptr;  // of a block-sparse tile
  UnitType* gathered_values_transposed_ = nullptr;
  AttentionTile* tags_ = nullptr;
  GatheredTiles gathered_tiles_;  // whose chunks are there
  UnitType *q_along_, *q_transposed_, *dout_along_, *dout_transposed_, *staging_;
  Real *dq_, *scores_, *slopes_;
  UnitType *p_across_, *ds_across_, *ds_along_;  // ds_along_: of a strip; the same as ds_across_ where units are single
  Real *lse_, *dot_;
  StripDropout<Real>* dropout_rng_;
  Prefetch prefetch_;
};

/// Adds up the spans' dk and dv of one head of keys, in their order, and writes them: transposed back, scaled, rounded.
template <typename Math>
void write_sums(const AttentionProblem& problem, std::int64_t batch, std::int64_t key_head, void* memory,
                std::int64_t spans) {
  using Real = typename Math::Real;
  const std::int64_t size = Backward<Math>::sums(problem), padded = padded_head(problem.head_dim);
  Real* const sums = static_cast<Real*>(memory);
  for (std::int64_t span = 1; span < spans; ++span) {
    const Real* const other = sums + span * 2 * size;
    for (std::int64_t i = 0; i < 2 * size; i += kLanes<Real>) store(sums + i, load(sums + i) + load(other + i));
  }
  alignas(64) Real transposed[kTileKeys * 16];
  for (int which = 0; which < 2; ++which) {
    const auto& rows = which == 0 ? problem.dk : problem.dv;
    const Real factor = static_cast<Real>(which == 0 ? problem.scale : problem.dropout_rng.dropout_scale);
    for (std::int64_t key = 0; key < problem.keys; key += kTileKeys) {
      const std::int64_t count = problem.keys - key < kTileKeys ? problem.keys - key : kTileKeys;
      for (std::int64_t head = 0; head < padded; head += 16) {
        transpose(transposed, 16, sums + which * size + key * padded + head * kTileKeys, kTileKeys, 16, kTileKeys);
        const std::int64_t width = problem.head_dim - head < 16 ? problem.head_dim - head : 16;
        for (std::int64_t i = 0; i < count; ++i) {
          auto* const to = row_of<Math>(rows, batch, key + i, key_head) + head;
          write_row(to, transposed + i * 16, factor, width);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::kernels::cpu
