// kernels/cpu/activation_body.h -- the loops behind activation.h, included once per instruction set.
#include "trireme/kernels/cpu/activation_math.h"
#include "trireme/kernels/cpu/activation_table.h"

namespace trireme::kernels {
namespace {

template <typename T, typename F>
void activation_forward_rows(const ActivationLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  const auto* bias = static_cast<const T*>(c.bias);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = row_of(static_cast<const T*>(c.x), row, c.x_stride);
    T* y = row_of(static_cast<T*>(c.out), row, c.out_stride);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      V v = V::load(x + i, some);
      if (bias != nullptr) v = v + V::load(bias + i, some);
      F::value(v).store(y + i, some);
    });
  }
}

template <typename T, typename F>
void activation_backward_rows(const ActivationLoop& c, std::int64_t begin, std::int64_t end, void* dbias_sums) {
  using V = typename LanesOf<T>::Type;
  const auto* bias = static_cast<const T*>(c.bias);
  auto* dbias = static_cast<typename V::Scalar*>(dbias_sums);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = row_of(static_cast<const T*>(c.x), row, c.x_stride);
    const T* dy = row_of(static_cast<const T*>(c.dy), row, c.dy_stride);
    T* dx = row_of(static_cast<T*>(c.out), row, c.out_stride);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      V v = V::load(x + i, some);
      if (bias != nullptr) v = v + V::load(bias + i, some);
      const V d = V::load(dy + i, some) * F::both(v).slope;
      d.store(dx + i, some);
      if (dbias != nullptr) (V::load(dbias + i, some) + d).store(dbias + i, some);
    });
  }
}

template <typename T, typename F>
void gated_forward_rows(const GatedLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* gate = row_of(static_cast<const T*>(c.gate), row, c.gate_stride);
    const T* up = row_of(static_cast<const T*>(c.up), row, c.up_stride);
    T* y = row_of(static_cast<T*>(c.y), row, c.y_stride);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      (F::value(V::load(gate + i, some)) * V::load(up + i, some)).store(y + i, some);
    });
  }
}

template <typename T, typename F>
void gated_backward_rows(const GatedLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* gate = row_of(static_cast<const T*>(c.gate), row, c.gate_stride);
    const T* up = row_of(static_cast<const T*>(c.up), row, c.up_stride);
    const T* dy = row_of(static_cast<const T*>(c.dy), row, c.dy_stride);
    T* dgate = row_of(static_cast<T*>(c.dgate), row, c.dgate_stride);
    T* dup = row_of(static_cast<T*>(c.dup), row, c.dup_stride);
    T* y = c.y == nullptr ? nullptr : row_of(static_cast<T*>(c.y), row, c.y_stride);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      const V u = V::load(up + i, some), d = V::load(dy + i, some);
      const Both<V> f = F::both(V::load(gate + i, some));
      (d * u * f.slope).store(dgate + i, some);
      (d * f.value).store(dup + i, some);
      if (y != nullptr) (f.value * u).store(y + i, some);
    });
  }
}

template <typename F, typename T>
constexpr ActivationLoops activation_loops() {
  return {activation_forward_rows<T, F>, activation_backward_rows<T, F>, gated_forward_rows<T, F>,
          gated_backward_rows<T, F>};
}

}  // namespace

#define TRIREME_ACTIVATION(F)                                                                 \
  {                                                                                           \
    activation_loops<F, float>(), activation_loops<F, double>(), activation_loops<F, Bf16>(), \
        activation_loops<F, F16>()                                                            \
  }
extern const ActivationTable TRIREME_ACTIVATION_TABLE = {
    {TRIREME_ACTIVATION(Relu), TRIREME_ACTIVATION(Gelu), TRIREME_ACTIVATION(GeluTanh), TRIREME_ACTIVATION(Silu)}};
#undef TRIREME_ACTIVATION

}  // namespace trireme::kernels
