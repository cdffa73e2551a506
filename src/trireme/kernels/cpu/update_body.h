// kernels/cpu/update_body.h -- the loops behind update.h, included once per instruction set.
#include "trireme/kernels/cpu/rounding.h"
#include "trireme/kernels/cpu/update_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

template <typename V, typename Lanes>
TRIREME_INLINE V read(const Stream& s, std::int64_t i, Lanes some) {
  if constexpr (sizeof(typename V::Scalar) == 8) {
    return V::load(static_cast<const double*>(s.data) + i, some);
  } else {
    switch (s.element) {
      case Element::kBfloat16:
        return V::load(static_cast<const Bf16*>(s.data) + i, some);
      case Element::kHalf:
        return V::load(static_cast<const F16*>(s.data) + i, some);
      default:
        return V::load(static_cast<const float*>(s.data) + i, some);
    }
  }
}

template <typename V, typename Lanes>
TRIREME_INLINE void write(const Stream& s, std::int64_t i, V x, Lanes some) {
  if constexpr (sizeof(typename V::Scalar) == 8) {
    x.store(static_cast<double*>(s.data) + i, some);
  } else {
    switch (s.element) {
      case Element::kBfloat16:
        return x.store(static_cast<Bf16*>(s.data) + i, some);
      case Element::kHalf:
        return x.store(static_cast<F16*>(s.data) + i, some);
      default:
        return x.store(static_cast<float*>(s.data) + i, some);
    }
  }
}

template <typename V, typename Lanes>
TRIREME_INLINE V read_gradient(const UpdateLoop& c, std::int64_t i, V scale, Lanes some) {
  const V g = read<V>(c.gradient, i, some) * scale;
  if (c.zero_gradient) write(c.gradient, i, V::all(0), some);
  return g;
}

/// `rounding`: not 0 where a bfloat16 weight is stochastically rounded, element i by its own chance.
template <typename V, typename Lanes>
TRIREME_INLINE void write_weight(const UpdateLoop& c, std::int64_t i, V weight, Lanes some, std::uint64_t rounding) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    if (c.low.data != nullptr) write(c.low, i, weight, some);
    if (rounding != 0) {
      float numbers[V::kLanes];
      weight.store(numbers, All{});
      for (std::int64_t k = 0; k < V::kLanes; ++k) {
        const std::uint64_t bits = rounding_bits(rounding, static_cast<std::uint64_t>(i + k)) >> kWeightChance;
        numbers[k] = bits_as<float>(rounded_bits(bits_as<std::uint32_t>(numbers[k]), static_cast<std::uint32_t>(bits)));
      }
      weight = V::load(numbers, All{});
    }
  }
  write(c.weight, i, weight, some);
}

/// f(i, gradient, weight, lanes) for every vector of [begin, end).
template <typename V, typename F>
TRIREME_INLINE void each_weight(const UpdateLoop& c, std::int64_t begin, std::int64_t end, F&& f) {
  const V scale = V::all(static_cast<typename V::Scalar>(c.gradient_scale));
  each<V>(end - begin, [&](std::int64_t k, auto some) TRIREME_LAMBDA {
    const std::int64_t i = begin + k;
    f(i, read_gradient<V>(c, i, scale, some), read<V>(c.weight, i, some), some);
  });
}

template <typename V>
TRIREME_INLINE V number(double x) {
  return V::all(static_cast<typename V::Scalar>(x));
}

template <typename V>
void sgd_loop(const UpdateLoop& c, const SgdNumbers& n, std::uint64_t rounding, std::int64_t begin, std::int64_t end) {
  const V decay = number<V>(n.decay), momentum = number<V>(n.momentum), undamped = number<V>(n.undamped);
  const V rate = number<V>(-n.rate);
  each_weight<V>(c, begin, end, [&](std::int64_t i, V g, V w, auto some) TRIREME_LAMBDA {
    g = multiply_add(decay, w, g);
    if (c.first.data != nullptr) {
      const V velocity = n.start ? g : multiply_add(momentum, read<V>(c.first, i, some), undamped * g);
      write(c.first, i, velocity, some);
      g = n.nesterov ? multiply_add(momentum, velocity, g) : velocity;
    }
    write_weight(c, i, multiply_add(rate, g, w), some, rounding);
  });
}

template <typename V>
void adagrad_loop(const UpdateLoop& c, const AdagradNumbers& n, std::uint64_t rounding, std::int64_t begin,
                  std::int64_t end) {
  const V decay = number<V>(n.decay), epsilon = number<V>(n.epsilon), rate = number<V>(-n.rate);
  each_weight<V>(c, begin, end, [&](std::int64_t i, V g, V w, auto some) TRIREME_LAMBDA {
    g = multiply_add(decay, w, g);
    const V sum = multiply_add(g, g, read<V>(c.second, i, some));
    write(c.second, i, sum, some);
    write_weight(c, i, multiply_add(rate, g / (square_root(sum) + epsilon), w), some, rounding);
  });
}

/// Moves both moments on and gives m / (sqrt(v^) + epsilon). Written as m + (1 - beta) (g - m): beta and 1 - beta, each
/// rounded, would not add up to one.
template <typename V, typename Lanes>
TRIREME_INLINE V adam_direction(const UpdateLoop& c, std::int64_t i, V g, V take1, V take2, V root, V epsilon,
                                Lanes some) {
  V m = read<V>(c.first, i, some), v = read<V>(c.second, i, some);
  m = multiply_add(take1, g - m, m);
  v = multiply_add(take2, g * g - v, v);
  write(c.first, i, m, some);
  write(c.second, i, v, some);
  return m / multiply_add(square_root(v), root, epsilon);
}

constexpr std::int64_t kRoundedAtOnce = 64;

TRIREME_INLINE void read_some(const Stream& s, std::int64_t i, std::int64_t count, float* to) {
  each<Floats>(count,
               [&](std::int64_t k, auto some) TRIREME_LAMBDA { read<Floats>(s, i + k, some).store(to + k, some); });
}
/// A bfloat16 is stochastically rounded, from 16 of its element's `bits`.
TRIREME_INLINE void write_some(const Stream& s, std::int64_t i, std::int64_t count, float* from,
                               const std::uint64_t* bits, int chance) {
  if (s.element == Element::kBfloat16) {
    for (std::int64_t k = 0; k < count; ++k) {
      from[k] =
          bits_as<float>(rounded_bits(bits_as<std::uint32_t>(from[k]), static_cast<std::uint32_t>(bits[k] >> chance)));
    }
  }
  each<Floats>(count,
               [&](std::int64_t k, auto some) TRIREME_LAMBDA { write(s, i + k, Floats::load(from + k, some), some); });
}

/// AdamW where numbers that are kept are bfloat16s: a few at a time in float, then each rounded by its own chance.
void rounded_adam_loop(const UpdateLoop& c, const AdamNumbers& n, std::int64_t begin, std::int64_t end) {
  const Floats take1 = number<Floats>(n.take1), take2 = number<Floats>(n.take2), root = number<Floats>(n.root);
  const Floats epsilon = number<Floats>(n.epsilon), rate = number<Floats>(n.rate), decay = number<Floats>(n.decay);
  const Floats weight_decay = number<Floats>(n.weight_decay), scale = number<Floats>(c.gradient_scale);
  float w[kRoundedAtOnce] = {}, m[kRoundedAtOnce] = {}, v[kRoundedAtOnce] = {};
  std::uint64_t bits[kRoundedAtOnce] = {};
  for (std::int64_t i = begin; i < end; i += kRoundedAtOnce) {
    const std::int64_t count = end - i < kRoundedAtOnce ? end - i : kRoundedAtOnce;
    for (std::int64_t k = 0; k < count; ++k) bits[k] = rounding_bits(n.rounding, static_cast<std::uint64_t>(i + k));
    read_some(c.weight, i, count, w);
    read_some(c.first, i, count, m);
    read_some(c.second, i, count, v);
    each<Floats>(count, [&](std::int64_t k, auto some) TRIREME_LAMBDA {
      const Floats weight = Floats::load(w + k, some);
      const Floats gradient = multiply_add(decay, weight, read_gradient<Floats>(c, i + k, scale, some));
      Floats first = Floats::load(m + k, some), second = Floats::load(v + k, some);
      first = multiply_add(take1, gradient - first, first);
      second = multiply_add(take2, gradient * gradient - second, second);
      const Floats direction = first / multiply_add(square_root(second), root, epsilon);
      const Floats next = weight - multiply_add(direction, rate, weight_decay * weight);
      first.store(m + k, some);
      second.store(v + k, some);
      next.store(w + k, some);
      if (c.low.data != nullptr) write(c.low, i + k, next, some);
    });
    write_some(c.first, i, count, m, bits, kFirstChance);
    write_some(c.second, i, count, v, bits, kSecondChance);
    write_some(c.weight, i, count, w, bits, kWeightChance);
  }
}

template <typename V>
void adam_loop(const UpdateLoop& c, const AdamNumbers& n, std::int64_t begin, std::int64_t end) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    if (n.rounding != 0) return rounded_adam_loop(c, n, begin, end);
  }
  const V take1 = number<V>(n.take1), take2 = number<V>(n.take2), root = number<V>(n.root);
  const V epsilon = number<V>(n.epsilon), rate = number<V>(n.rate), decay = number<V>(n.decay);
  const V weight_decay = number<V>(n.weight_decay);
  each_weight<V>(c, begin, end, [&](std::int64_t i, V g, V w, auto some) TRIREME_LAMBDA {
    g = multiply_add(decay, w, g);
    const V direction = adam_direction(c, i, g, take1, take2, root, epsilon, some);
    // Both parts are added up before they meet the weight, beside which each alone may round to nothing.
    write_weight(c, i, w - multiply_add(direction, rate, weight_decay * w), some, 0);
  });
}

/// Squares are of vectors; a double's of itself.
template <typename V>
struct SquaresOf {
  using Type = Squares;
};
template <>
struct SquaresOf<Doubles> {
  struct Type {
    double v = 0;
    TRIREME_INLINE void add(Doubles x) { v += x.v * x.v; }
    TRIREME_INLINE double total() const { return v; }
  };
};

template <typename V>
void lamb_loop(const UpdateLoop& c, const AdamNumbers& n, std::int64_t begin, std::int64_t end, double* squares) {
  const V take1 = number<V>(n.take1), take2 = number<V>(n.take2), root = number<V>(n.root);
  const V epsilon = number<V>(n.epsilon), unbias = number<V>(n.rate), decay = number<V>(n.decay);
  typename SquaresOf<V>::Type weights, updates;
  each_weight<V>(c, begin, end, [&](std::int64_t i, V g, V w, auto some) TRIREME_LAMBDA {
    const V direction = adam_direction(c, i, g, take1, take2, root, epsilon, some);
    const V update = only(multiply_add(decay, w, direction * unbias), some);
    write(c.update, i, update, some);
    weights.add(w);
    updates.add(update);
  });
  squares[0] = weights.total();
  squares[1] = updates.total();
}

template <typename V>
void apply_loop(const UpdateLoop& c, double rate, std::uint64_t rounding, std::int64_t begin, std::int64_t end) {
  const V minus = number<V>(-rate);
  each<V>(end - begin, [&](std::int64_t k, auto some) TRIREME_LAMBDA {
    const std::int64_t i = begin + k;
    write_weight(c, i, multiply_add(minus, read<V>(c.update, i, some), read<V>(c.weight, i, some)), some, rounding);
  });
}

template <typename V>
void lars_loop(const UpdateLoop& c, const LarsNumbers& n, std::uint64_t rounding, std::int64_t begin,
               std::int64_t end) {
  const V decay = number<V>(n.decay), momentum = number<V>(n.momentum), rate = number<V>(n.rate);
  each_weight<V>(c, begin, end, [&](std::int64_t i, V g, V w, auto some) TRIREME_LAMBDA {
    const V velocity = multiply_add(momentum, read<V>(c.first, i, some), rate * multiply_add(decay, w, g));
    write(c.first, i, velocity, some);
    write_weight(c, i, w - velocity, some, rounding);
  });
}

template <typename V>
double squares_loop(const Stream& s, std::int64_t begin, std::int64_t end) {
  typename SquaresOf<V>::Type a, b, c, d;  // they take turns, since one alone would wait for its own last addition
  constexpr std::int64_t kStep = V::kLanes;
  std::int64_t i = begin;
  for (; i + 4 * kStep <= end; i += 4 * kStep) {
    a.add(read<V>(s, i, All{}));
    b.add(read<V>(s, i + kStep, All{}));
    c.add(read<V>(s, i + 2 * kStep, All{}));
    d.add(read<V>(s, i + 3 * kStep, All{}));
  }
  each<V>(end - i, [&](std::int64_t k, auto some) TRIREME_LAMBDA { a.add(read<V>(s, i + k, some)); });
  return (a.total() + b.total()) + (c.total() + d.total());
}

template <typename V>
constexpr UpdateLoops update_loops() {
  return {sgd_loop<V>, adagrad_loop<V>, adam_loop<V>, lamb_loop<V>, apply_loop<V>, lars_loop<V>, squares_loop<V>};
}

}  // namespace

extern const UpdateTable TRIREME_UPDATE_TABLE = {update_loops<Floats>(), update_loops<Doubles>()};

}  // namespace trireme::kernels
