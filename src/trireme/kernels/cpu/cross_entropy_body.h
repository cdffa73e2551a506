// kernels/cpu/cross_entropy_body.h -- the loop behind cross_entropy.h, included once per instruction set.
#include "trireme/kernels/cpu/cross_entropy_table.h"
#include "trireme/kernels/cpu/vec_math.h"

namespace trireme::kernels {
namespace {

/// A row in short: the largest logit, the sum of e^(logit - largest), and the plain sum where smoothing needs it.
template <typename A>
struct RowSums {
  A largest, exponentials, logits;
};

/// One pass over memory: a piece of the row is read for its maximum and, then from the first-level cache, for its sum.
/// What was summed so far is scaled down when a piece has a larger maximum.
template <typename T>
TRIREME_INLINE auto row_sums(const T* x, std::int64_t count, bool with_logits) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  constexpr std::int64_t kPiece = 1024;
  constexpr A kLowest = -__builtin_inf();
  A largest = kLowest;
  V total = V::all(0), logits = V::all(0);
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const T* piece = x + begin;
    const std::int64_t length = count - begin < kPiece ? count - begin : kPiece;
    V highest[1];
    fold(
        highest, length, V::all(kLowest),
        [&](V(&h)[1], std::int64_t i, auto some)
            TRIREME_LAMBDA { h[0] = at_least(fill_rest(V::load(piece + i, some), some, kLowest), h[0]); },
        [](V a, V b) TRIREME_LAMBDA { return at_least(a, b); });
    const A top = largest_of(highest[0]);
    if (top > largest) {
      // While all logits were -inf the sum is 0, and scaling it by e^-inf = 0 keeps it so.
      total = total * exponential(V::all(largest - top));
      largest = top;
    }
    // With nothing but -inf so far, -inf - -inf would be NaN: take 0 as the largest, so that each adds e^-inf = 0.
    const V shift = V::all(largest == kLowest ? A(0) : largest);
    V sums[1];
    fold_sums(sums, length, [&](V(&t)[1], std::int64_t i, auto some) TRIREME_LAMBDA {
      t[0] = t[0] + only(exponential(V::load(piece + i, some) - shift), some);
    });
    total = total + sums[0];
    if (with_logits) {
      fold_sums(sums, length,
                [&](V(&t)[1], std::int64_t i, auto some) TRIREME_LAMBDA { t[0] = t[0] + V::load(piece + i, some); });
      logits = logits + sums[0];
    }
  }
  return RowSums<A>{largest == kLowest ? A(0) : largest, sum_of(total), sum_of(logits)};
}

template <typename T>
TRIREME_INLINE auto number_at(const T* x) {
  if constexpr (sizeof(T) == 8) {
    return *x;
  } else {
    return widen(*x);
  }
}

template <typename T>
void cross_entropy_rows(const CrossEntropyLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const A smoothing = static_cast<A>(c.label_smoothing), per_class = smoothing / static_cast<A>(c.vocabulary);
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = row_of(static_cast<T*>(c.logits), row, c.stride);
    const std::int64_t target = c.targets[row];
    A loss = 0, z_loss = 0, lse = 0;
    if (target != c.ignore) {
      const RowSums<A> sums = row_sums(x, c.vocabulary, smoothing != 0);
      lse = static_cast<A>(sums.largest + __builtin_log(static_cast<double>(sums.exponentials)));
      const A hit = number_at(x + target);
      loss = smoothing == 0 ? lse - hit : lse - (A(1) - smoothing) * hit - per_class * sums.logits;
      z_loss = static_cast<A>(c.z_loss) * lse * lse;
      if (c.scale != nullptr) {
        // d/dx_j (loss + z lse^2) = p_j (1 + 2 z lse) - smoothing / classes - (1 - smoothing) [j is the target]
        const A scale = static_cast<const A*>(c.scale)[row];
        const A share = scale * (A(1) + A(2) * static_cast<A>(c.z_loss) * lse) / sums.exponentials;
        const V shift = V::all(sums.largest), factor = V::all(share), flat = V::all(-scale * per_class);
        each<V>(c.vocabulary, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
          multiply_add(exponential(V::load(x + i, some) - shift), factor, flat).store(x + i, some);
        });
        // The target's element again, from the unrounded value: p - 1 cancels where the model is sure.
        const A p = exponential(V::all(hit - sums.largest)).first();
        const V at_target = V::all(p * share - scale * per_class - scale * (A(1) - smoothing));
        if constexpr (V::kLanes == 1) {
          at_target.store(x + target, All{});
        } else {
          at_target.store(x + target, First{1});
        }
      }
    } else if (c.scale != nullptr) {
      __builtin_memset(x, 0, static_cast<std::size_t>(c.vocabulary) * sizeof(T));
    }
    static_cast<A*>(c.losses)[row] = loss;
    if (c.z_losses != nullptr) static_cast<A*>(c.z_losses)[row] = z_loss;
    if (c.lse != nullptr) static_cast<A*>(c.lse)[row] = lse;
  }
}

template <typename T>
void slice_value_rows(const CrossEntropySlice& c, std::int64_t begin, std::int64_t end) {
  using A = typename LanesOf<T>::Type::Scalar;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = row_of(static_cast<T*>(c.logits), row, c.stride);
    const std::int64_t target = c.targets[row];
    const RowSums<A> sums = row_sums(x, c.classes, c.sums != nullptr);
    static_cast<A*>(c.lse)[row] = static_cast<A>(sums.largest + __builtin_log(static_cast<double>(sums.exponentials)));
    static_cast<A*>(c.hits)[row] = target >= 0 && target < c.classes ? number_at(x + target) : A(0);
    if (c.sums != nullptr) static_cast<A*>(c.sums)[row] = sums.logits;
  }
}

template <typename T>
void slice_gradient_rows(const CrossEntropySlice& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const A smoothing = static_cast<A>(c.label_smoothing), per_class = smoothing / static_cast<A>(c.vocabulary);
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = row_of(static_cast<T*>(c.logits), row, c.stride);
    const A scale = static_cast<const A*>(c.scale)[row], lse = static_cast<const A*>(c.lse)[row];
    if (scale == 0) {
      __builtin_memset(x, 0, static_cast<std::size_t>(c.classes) * sizeof(T));
      continue;
    }
    const std::int64_t target = c.targets[row];
    const bool here = target >= 0 && target < c.classes;
    const A hit = here ? number_at(x + target) : A(0);
    const A share = scale * (A(1) + A(2) * static_cast<A>(c.z_loss) * lse);
    const V shift = V::all(lse), factor = V::all(share), flat = V::all(-scale * per_class);
    each<V>(c.classes, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      multiply_add(exponential(V::load(x + i, some) - shift), factor, flat).store(x + i, some);
    });
    if (!here) continue;
    const A p = exponential(V::all(hit - lse)).first();
    const V at_target = V::all(p * share - scale * per_class - scale * (A(1) - smoothing));
    if constexpr (V::kLanes == 1) {
      at_target.store(x + target, All{});
    } else {
      at_target.store(x + target, First{1});
    }
  }
}

}  // namespace

extern const CrossEntropyTable TRIREME_CROSS_ENTROPY_TABLE = {
    {cross_entropy_rows<float>, cross_entropy_rows<double>, cross_entropy_rows<Bf16>, cross_entropy_rows<F16>},
    {slice_value_rows<float>, slice_value_rows<double>, slice_value_rows<Bf16>, slice_value_rows<F16>},
    {slice_gradient_rows<float>, slice_gradient_rows<double>, slice_gradient_rows<Bf16>, slice_gradient_rows<F16>}};

}  // namespace trireme::kernels
