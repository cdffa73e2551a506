// kernels/cpu/rotary_body.h -- the loop behind rotary.h, included once per instruction set.
#include "trireme/kernels/cpu/rotary_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

template <typename T, typename A>
TRIREME_INLINE void rotate_halves(T* x, const A* cosine, const A* sine, bool inverse, std::int64_t half) {
  using V = typename LanesOf<T>::Type;
  const V sign = V::all(inverse ? A(-1) : A(1));
  each<V>(half, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    const V a = V::load(x + i, some), b = V::load(x + half + i, some);
    const V c = V::load(cosine + i, some), s = V::load(sine + i, some) * sign;
    (a * c - b * s).store(x + i, some);
    multiply_add(a, s, b * c).store(x + half + i, some);
  });
}

/// With every cosine twice and the sines as -s, s: x turns by x * cosines + (x with neighbours swapped) * sines.
template <typename T, typename A>
TRIREME_INLINE void rotate_neighbours(T* x, const A* cosine_twice, const A* sine_signed, std::int64_t rotated) {
  using V = typename LanesOf<T>::Type;
  if constexpr (V::kLanes == 1) {
    for (std::int64_t i = 0; i < rotated; i += 2) {
      const A a = x[i], b = x[i + 1];
      x[i] = a * cosine_twice[i] + b * sine_signed[i];
      x[i + 1] = b * cosine_twice[i + 1] + a * sine_signed[i + 1];
    }
  } else {
    each<V>(rotated, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      const V v = V::load(x + i, some);
      multiply_add(v, V::load(cosine_twice + i, some), swap_neighbours(v) * V::load(sine_signed + i, some))
          .store(x + i, some);
    });
  }
}

template <typename T>
void rotate_tokens(const RotaryLoop& c, std::int64_t begin, std::int64_t end) {
  using A = typename LanesOf<T>::Type::Scalar;
  const std::int64_t half = c.rotated / 2;
  A *twice = nullptr, *signed_sines = nullptr;
  if (c.neighbours) {
    twice = static_cast<A*>(c.scratch(2 * c.rotated * static_cast<std::int64_t>(sizeof(A))));
    signed_sines = twice + c.rotated;
  }
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t position = c.positions[token];
    const A* cosine = static_cast<const A*>(c.cosines) + position * half;
    const A* sine = static_cast<const A*>(c.sines) + position * half;
    T* x = static_cast<T*>(c.x) + token / c.sequence * c.batch_stride + token % c.sequence * c.sequence_stride;
    if (!c.neighbours) {
      for (std::int64_t head = 0; head < c.heads; ++head) {
        rotate_halves(x + head * c.head_stride, cosine, sine, c.inverse, half);
      }
      continue;
    }
    for (std::int64_t i = 0; i < half; ++i) {
      const A s = c.inverse ? -sine[i] : sine[i];
      twice[2 * i] = twice[2 * i + 1] = cosine[i];
      signed_sines[2 * i] = -s;
      signed_sines[2 * i + 1] = s;
    }
    for (std::int64_t head = 0; head < c.heads; ++head) {
      rotate_neighbours(x + head * c.head_stride, twice, signed_sines, c.rotated);
    }
  }
}

}  // namespace

extern const RotaryTable TRIREME_ROTARY_TABLE = {
    {rotate_tokens<float>, rotate_tokens<double>, rotate_tokens<Bf16>, rotate_tokens<F16>}};

}  // namespace trireme::kernels
