// kernels/cpu/norm_body.h -- the loops behind norm.h, included once per instruction set.
#include "trireme/kernels/cpu/norm_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

template <typename T, bool kLayer>
void norm_forward_rows(const NormForwardLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const auto* weight = static_cast<const A*>(c.weight);
  const auto* bias = static_cast<const A*>(c.bias);
  const A share = A(1) / static_cast<A>(c.width);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = row_of(static_cast<const T*>(c.x), row, c.x_stride);
    if (c.residual != nullptr) {
      const T* residual = row_of(static_cast<const T*>(c.residual), row, c.residual_stride);
      T* sum = row_of(static_cast<T*>(c.sum), row, c.sum_stride);
      each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        (V::load(x + i, some) + V::load(residual + i, some)).store(sum + i, some);
      });
      x = sum;  // rounded as the backward pass will see it
    }
    A mean = 0;
    V total[1];
    if constexpr (kLayer) {
      fold_sums(total, c.width,
                [&](V(&t)[1], std::int64_t i, auto some) TRIREME_LAMBDA { t[0] = t[0] + V::load(x + i, some); });
      mean = sum_of(total[0]) * share;
    }
    const V center = V::all(mean);
    fold_sums(total, c.width, [&](V(&t)[1], std::int64_t i, auto some) TRIREME_LAMBDA {
      const V from_mean = only(V::load(x + i, some) - center, some);
      t[0] = multiply_add(from_mean, from_mean, t[0]);
    });
    const A rstd = A(1) / square_root(V::all(sum_of(total[0]) * share + static_cast<A>(c.epsilon))).first();
    if (c.mean != nullptr) static_cast<A*>(c.mean)[row] = mean;
    if (c.rstd != nullptr) static_cast<A*>(c.rstd)[row] = rstd;
    T* y = row_of(static_cast<T*>(c.y), row, c.y_stride);
    const V scale = V::all(rstd);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      const V normal = (V::load(x + i, some) - center) * scale;
      multiply_add(normal, V::load(weight + i, some), V::load(bias + i, some)).store(y + i, some);
    });
  }
}

template <typename T, bool kLayer>
void norm_backward_rows(const NormBackwardLoop& c, std::int64_t begin, std::int64_t end, void* dweight_sums,
                        void* dbias_sums) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const auto* weight = static_cast<const A*>(c.weight);
  auto* dweight = static_cast<A*>(dweight_sums);
  auto* dbias = static_cast<A*>(dbias_sums);
  const A share = A(1) / static_cast<A>(c.width);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = row_of(static_cast<const T*>(c.x), row, c.x_stride);
    const T* dy = row_of(static_cast<const T*>(c.dy), row, c.dy_stride);
    const V center = V::all(kLayer ? static_cast<const A*>(c.mean)[row] : A(0));
    const V scale = V::all(static_cast<const A*>(c.rstd)[row]);
    // The gradient of the normalised row is g = dy * weight; its part along the row itself does not reach x, nor, where
    // the mean was taken out, its mean. Lanes behind the end have dy = 0 and so add nothing.
    V total[2];
    const auto totals = [&](auto with_sums) TRIREME_LAMBDA {
      fold_sums(total, c.width, [&](V(&t)[2], std::int64_t i, auto some) TRIREME_LAMBDA {
        const V d = V::load(dy + i, some), normal = (V::load(x + i, some) - center) * scale;
        const V g = d * V::load(weight + i, some);
        if constexpr (kLayer) t[0] = t[0] + g;
        t[1] = multiply_add(g, normal, t[1]);
        if constexpr (with_sums.value) {
          multiply_add(d, normal, V::load(dweight + i, some)).store(dweight + i, some);
          if (dbias != nullptr) (V::load(dbias + i, some) + d).store(dbias + i, some);
        }
      });
    };
    if (dweight != nullptr) {
      totals(Constant<true>{});
    } else {
      totals(Constant<false>{});
    }
    const V mean_g = V::all(kLayer ? sum_of(total[0]) * share : A(0));
    const V along = V::all(sum_of(total[1]) * share);
    T* dx = row_of(static_cast<T*>(c.dx), row, c.dx_stride);
    const T* dsum = c.dsum == nullptr ? nullptr : row_of(static_cast<const T*>(c.dsum), row, c.dsum_stride);
    const auto write = [&](auto with_dsum) TRIREME_LAMBDA {
      each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        const V g = V::load(dy + i, some) * V::load(weight + i, some);
        const V normal = (V::load(x + i, some) - center) * scale;
        const V inner = (g - mean_g) - normal * along;
        if constexpr (with_dsum.value) {
          multiply_add(inner, scale, V::load(dsum + i, some)).store(dx + i, some);
        } else {
          (inner * scale).store(dx + i, some);
        }
      });
    };
    if (dsum != nullptr) {
      write(Constant<true>{});
    } else {
      write(Constant<false>{});
    }
  }
}

template <typename T, bool kLayer>
constexpr NormLoops norm_loops() {
  return {norm_forward_rows<T, kLayer>, norm_backward_rows<T, kLayer>};
}

}  // namespace

extern const NormTable TRIREME_NORM_TABLE = {
    {norm_loops<float, true>(), norm_loops<double, true>(), norm_loops<Bf16, true>(), norm_loops<F16, true>()},
    {norm_loops<float, false>(), norm_loops<double, false>(), norm_loops<Bf16, false>(), norm_loops<F16, false>()},
    static_cast<int>(Floats::kLanes),
};

}  // namespace trireme::kernels
