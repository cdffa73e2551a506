// kernels/cpu/attention_forward.h -- the forward pass: FlashAttention-2, one block of queries against all it sees.
//
// Keys (transposed) and values are packed once per span and serve every block of queries of every head that shares
// them. Each row keeps its largest score so far, m, the sum of 2^(score - m), and the output not yet divided by it;
// scores are in units of log2, so that the exponential is a power of two. In bfloat16 the probabilities are rounded to
// bfloat16 for the GEMM with the values; the sums, among them that of the probabilities, are float.
// Scratch: keys and values of one head as they are multiplied (double what they are where widened), and a block's rows.
// Depends on: attention_tile.h.
#pragma once

#include "trireme/kernels/cpu/attention_tile.h"

namespace trireme::kernels::cpu {
namespace {

template <typename Math>
class Forward {
  using Real = typename Math::Real;
  using UnitType = typename Math::TileUnit;
  using Vector = typename Math::Vector;
  static constexpr int kWidth = kLanes<Real>;
  static constexpr std::int64_t kBytes = sizeof(typename Math::Element);
  static constexpr Real kNothing = -static_cast<Real>(__builtin_inf());

 public:
  Forward(const AttentionProblem& problem, void* memory)
      : problem_(problem), scratch_(memory), prefetch_(problem.head_dim * kBytes) {
    padded_ = padded_head(problem.head_dim);
    stride_ = along_stride<Math>(problem.head_dim);
    const std::int64_t keys = round_up(problem.keys, kTileKeys);
    keys_ = scratch_.take<UnitType>(keys * stride_);
    values_ = scratch_.take<UnitType>(keys * padded_ / Math::kPair);
    if (problem.tile_begin != nullptr) {
      gathered_keys_ = scratch_.take<UnitType>(keys * stride_);
      gathered_values_ = scratch_.take<UnitType>(keys * padded_ / Math::kPair);
      tags_ = scratch_.take<AttentionTile>(keys / kTileKeys);
    }
    along_ = scratch_.take<UnitType>((kTileKeys > kTileQueries ? kTileKeys : kTileQueries) * stride_);
    out_ = scratch_.take<Real>(kTileQueries * padded_);
    scores_ = scratch_.take<Real>(kStrip * kTileKeys);
    probabilities_ = scratch_.take<UnitType>(kStrip * kTileKeys / Math::kPair);
    sums_ = scratch_.take<Real>(kTileQueries * kWidth);
    most_ = scratch_.take<Real>(kTileQueries);
    dropout_rng_ = scratch_.take<StripDropout<Real>>(1);
  }
  std::size_t bytes() const { return scratch_.bytes(); }

  void run(const AttentionSpan& span) {
    pack(span);
    if (tags_ != nullptr) gathered_tiles_.begin(tags_, round_up(problem_.keys, kTileKeys) / kTileKeys);
    for (std::int64_t number = span.begin; number < span.end; ++number) {
      TileUnit unit(problem_, span, number);
      unit.find_blocks();
      begin_unit(unit, span.batch);
      look_ahead(unit, span, number);
      for_tiles(unit, [&](const AttentionTile& tile) {
        const bool neighbours = in_place(tile);
        const Packed packed = neighbours ? packed_at(tile.chunks[0] * kMaskBlock) : gathered(tile);
        for (std::int64_t row = 0; row < unit.strips; row += kStrip) {
          prefetch_.step();
          for_runs<Real>(tile, neighbours, unit.visible, row, problem_.dropout_rng.streams != nullptr,
                         [&](const StripColumns& run) { take_strip(unit, span.batch, packed, row, run); });
        }
      });
      write(unit, span.batch);
    }
  }

 private:
  void pack(const AttentionSpan& span) {
    const Range blocks = seen_blocks(problem_, span);
    const std::int64_t units = padded_ / Math::kPair;
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      const std::int64_t key = block * kTileKeys;
      const std::int64_t rows = problem_.keys - key < kTileKeys ? problem_.keys - key : kTileKeys;
      pack_along<Math>(along_, row_of<Math>(problem_.k, span.batch, key, span.key_head), problem_.k.row, rows,
                       kTileKeys, problem_.head_dim);
      transpose(keys_ + key * stride_, kTileKeys, along_, stride_, kTileKeys, stride_);
      pack_along<Math>(along_, row_of<Math>(problem_.v, span.batch, key, span.key_head), problem_.v.row, rows,
                       kTileKeys, problem_.head_dim);
      pack_across<Math>(values_ + key * units, along_, kTileKeys, problem_.head_dim);
    }
  }

  /// A tile's keys, transposed, and values.
  struct Packed {
    const UnitType *keys, *values;
  };
  Packed packed_at(std::int64_t key) const { return {keys_ + key * stride_, values_ + key * (padded_ / Math::kPair)}; }
  Packed gathered(const AttentionTile& tile) {
    const GatheredTiles::Place place = gathered_tiles_.find(tile);
    UnitType* const keys = gathered_keys_ + place.number * kTileKeys * stride_;
    UnitType* const values = gathered_values_ + place.number * kTileKeys * padded_ / Math::kPair;
    if (!place.filled) {
      gather_columns(keys, keys_, tile, stride_);
      gather_rows(values, values_, tile, kMaskBlock * padded_ / Math::kPair);
    }
    return {keys, values};
  }

  void look_ahead(const TileUnit& unit, const AttentionSpan& span, std::int64_t number) {
    prefetch_.begin(unit.calls());
    const TileUnit::Place after = TileUnit::after(problem_, span, number);
    if (after.exists && number + 1 == span.end) {
      prefetch_.add<false>(problem_.k, kBytes, after.batch, 0, span.next->key_head, problem_.keys);
      prefetch_.add<false>(problem_.v, kBytes, after.batch, 0, span.next->key_head, problem_.keys);
    }
    prefetch_.add<false>(problem_.q, kBytes, after.batch, after.query, after.head, after.queries);
    prefetch_.add<true>(problem_.out, kBytes, span.batch, unit.query, unit.head, unit.queries);
  }

  void begin_unit(const TileUnit& unit, std::int64_t batch) {
    pack_along<Math>(along_, row_of<Math>(problem_.q, batch, unit.query, unit.head), problem_.q.row, unit.queries,
                     unit.strips, problem_.head_dim);
    std::memset(out_, 0, static_cast<std::size_t>(unit.strips * padded_) * sizeof(Real));
    std::memset(sums_, 0, static_cast<std::size_t>(unit.strips * kWidth) * sizeof(Real));
    for (std::int64_t row = 0; row < unit.strips; ++row) most_[row] = kNothing;
  }

  void take_strip(const TileUnit& unit, std::int64_t batch, const Packed& packed, std::int64_t row,
                  const StripColumns& columns) {
    const std::int64_t units = padded_ / Math::kPair, key = columns.key;
    const Real factor = static_cast<Real>(problem_.scale * 1.44269504088896340736);  // log2(e)
    multiply<Math>(along_ + row * stride_, stride_, packed.keys, kTileKeys, units, columns.begin, columns.end,
                   [&](int r, std::int64_t c, Vector sums) { store(scores_ + r * kTileKeys + c, sums * factor); });
    alignas(64) Real rescale[kStrip];
    if (problem_.dropout_rng.streams != nullptr) {
      dropout_rng_->draw(problem_, batch * problem_.heads + unit.head, unit.query + row, key, columns);
      softmax_strip<true, true>(unit, row, key, columns, rescale);
    } else if (columns.masked) {
      softmax_strip<true, false>(unit, row, key, columns, rescale);
    } else {
      softmax_strip<false, false>(unit, row, key, columns, rescale);
    }
    const std::int64_t first = columns.begin / Math::kPair;
    multiply<Math>(probabilities_ + first, kTileKeys / Math::kPair, packed.values + first * padded_, padded_,
                   (columns.end - columns.begin) / Math::kPair, 0, padded_, [&](int r, std::int64_t c, Vector sums) {
                     Real* const at = out_ + (row + r) * padded_ + c;
                     store(at, load(at) * rescale[r] + sums);
                   });
  }

  /// A strip's scores to probabilities, and the factors by which what its rows have so far must shrink.
  template <bool kMasked, bool kCoins>
  TRIREME_INLINE void softmax_strip(const TileUnit& unit, std::int64_t row, std::int64_t key,
                                    const StripColumns& columns, Real (&rescale)[kStrip]) {
    const std::int32_t *begin = unit.visible.begin + row, *end = unit.visible.end + row;
    Real base[kStrip];
#pragma GCC unroll 4
    for (int r = 0; r < kStrip; ++r) {
      Vector largest = spread(kNothing);
      for (std::int64_t c = columns.begin; c < columns.end; c += kWidth) {
        Vector score = load(scores_ + r * kTileKeys + c);
        if constexpr (kMasked) score = seen<Real>(key + c, begin[r], end[r]) ? score : spread(kNothing);
        largest = larger(score, largest);
      }
      const Real before = most_[row + r], here = horizontal_max(largest), most = here > before ? here : before;
      most_[row + r] = most;
      base[r] = most == kNothing ? Real{0} : most;  // a row that has seen nothing yet: avoid inf - inf
      rescale[r] = before - base[r];
    }
    raise(rescale);
#pragma GCC unroll 4
    for (int r = 0; r < kStrip; ++r) {
      Vector sum = load(sums_ + (row + r) * kWidth) * rescale[r];
      for (std::int64_t c = columns.begin; c < columns.end; c += kWidth) {
        Vector p = exp2(load(scores_ + r * kTileKeys + c) - base[r]);
        if constexpr (kMasked) p = seen<Real>(key + c, begin[r], end[r]) ? p : Vector{};
        sum += p;
        if constexpr (kCoins) p = dropout_rng_->kept(r, c, problem_.dropout_rng.threshold) ? p : Vector{};
        Math::store_along(probabilities_ + r * (kTileKeys / Math::kPair), c, p);
      }
      store(sums_ + (row + r) * kWidth, sum);
    }
  }

  /// Two to the power of each: one vector for the whole strip where it fits.
  TRIREME_INLINE static void raise(Real (&powers)[kStrip]) {
    constexpr int kStep = kWidth < kStrip ? kWidth : kStrip;
    for (int first = 0; first < kStrip; first += kStep) {
      Vector v{};
      for (int i = 0; i < kStep; ++i) v[i] = powers[first + i];
      v = exp2(v);
      for (int i = 0; i < kStep; ++i) powers[first + i] = v[i];
    }
  }

  void write(const TileUnit& unit, std::int64_t batch) {
    Real* const lse =
        static_cast<Real*>(problem_.lse) + batch * problem_.lse_batch + unit.head * problem_.lse_head + unit.query;
    for (std::int64_t row = 0; row < unit.queries; ++row) {
      const Real sum = horizontal_sum(load(sums_ + row * kWidth));
      const bool fully_masked = most_[row] == kNothing;
      lse[row] = fully_masked ? kNothing
                              : (most_[row] + logarithm(sum)) * static_cast<Real>(0.693147180559945309417);  // ln(2)
      const Real factor =
          fully_masked ? Real{0} : static_cast<Real>(problem_.dropout_rng.dropout_scale / static_cast<double>(sum));
      auto* const to = row_of<Math>(problem_.out, batch, unit.query + row, unit.head);
      write_row(to, out_ + row * padded_, factor, problem_.head_dim);
    }
  }

  static float logarithm(float x) { return __builtin_log2f(x); }
  static double logarithm(double x) { return __builtin_log2(x); }

  const AttentionProblem& problem_;
  Scratch scratch_;
  std::int64_t padded_, stride_;
  UnitType *keys_, *values_;                                        // by blocks of keys: transposed along, and across
  UnitType *gathered_keys_ = nullptr, *gathered_values_ = nullptr;  // of block-sparse tiles
  AttentionTile* tags_ = nullptr;
  GatheredTiles gathered_tiles_;  // whose chunks are there
  UnitType* along_;               // rows of queries; while packing, of keys and of values
  Real *out_, *scores_;
  UnitType* probabilities_;
  Real *sums_, *most_;  // sums_ lane by lane: added up once, at the end
  StripDropout<Real>* dropout_rng_;
  Prefetch prefetch_;
};

}  // namespace
}  // namespace trireme::kernels::cpu
