// kernels/cpu/expert_rows_body.h -- the loops behind expert_rows.h and, on the CPU, the activations of expert_ops.h,
// included once per instruction set.
#include "trireme/kernels/cpu/activation_math.h"
#include "trireme/kernels/cpu/expert_rows_table.h"

namespace trireme::kernels {
namespace {

template <typename T>
void sum_of_tokens(const TokenSumsLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  const T* from = static_cast<const T*>(c.from);
  for (std::int64_t token = begin; token < end; ++token) {
    T* to = row_of(static_cast<T*>(c.to), token, c.width);
    const std::int64_t first = c.first[token], last = c.first[token + 1];
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      V sum = V::all(0);
      for (std::int64_t r = first; r < last; ++r) sum = sum + V::load(from + c.rows[r] * c.width + i, some);
      sum.store(to + i, some);
    });
  }
}

template <typename T>
void scale_by_gates(const GateRowsLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  const auto* gates = static_cast<const typename V::Scalar*>(c.gates);
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = row_of(static_cast<T*>(c.rows), row, c.width);
    const V gate = V::all(gates[row]);
    each<V>(c.width,
            [&](std::int64_t i, auto some) TRIREME_LAMBDA { (V::load(x + i, some) * gate).store(x + i, some); });
  }
}

template <typename T>
void scale_by_gates_backward(const GateRowsLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  const auto* gates = static_cast<const typename V::Scalar*>(c.gates);
  auto* grad_gates = static_cast<typename V::Scalar*>(c.grad_gates);
  for (std::int64_t row = begin; row < end; ++row) {
    T* dy = row_of(static_cast<T*>(c.rows), row, c.width);
    const T* before = row_of(static_cast<const T*>(c.before), row, c.width);
    const V gate = V::all(gates[row]);
    V dot[1];
    fold_sums(dot, c.width, [&](V(&sums)[1], std::int64_t i, auto some) TRIREME_LAMBDA {
      const V d = V::load(dy + i, some);
      sums[0] = sums[0] + only(d * V::load(before + i, some), some);
      (d * gate).store(dy + i, some);
    });
    grad_gates[row] = sum_of(dot[0]);
  }
}

template <typename T, typename F, bool kGated>
void activate_experts(const ExpertActivationLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  const auto* gates = static_cast<const typename V::Scalar*>(c.gates);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* pre = row_of(static_cast<const T*>(c.pre), row, kGated ? 2 * c.width : c.width);
    T* y = row_of(static_cast<T*>(c.y), row, c.width);
    const V gate = V::all(gates[row]);
    each<V>(c.width, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      V value = F::value(V::load(pre + i, some));
      if constexpr (kGated) value = value * V::load(pre + c.width + i, some);
      (value * gate).store(y + i, some);
    });
  }
}

template <typename T, typename F, bool kGated>
void activate_experts_backward(const ExpertActivationLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  const auto* gates = static_cast<const typename V::Scalar*>(c.gates);
  auto* grad_gates = static_cast<typename V::Scalar*>(c.dgates);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t wide = kGated ? 2 * c.width : c.width;
    const T* pre = row_of(static_cast<const T*>(c.pre), row, wide);
    const T* dy = row_of(static_cast<const T*>(c.dy), row, c.width);
    T* y = row_of(static_cast<T*>(c.y), row, c.width);
    T* dpre = row_of(static_cast<T*>(c.dpre), row, wide);
    const V gate = V::all(gates[row]);
    V dot[1];
    fold_sums(dot, c.width, [&](V(&sums)[1], std::int64_t i, auto some) TRIREME_LAMBDA {
      const V d = V::load(dy + i, some);
      const Both<V> f = F::both(V::load(pre + i, some));
      V value = f.value, slope = f.slope;
      if constexpr (kGated) {
        const V up = V::load(pre + c.width + i, some);
        value = value * up;
        slope = slope * up;
        (d * gate * f.value).store(dpre + c.width + i, some);
      }
      sums[0] = sums[0] + only(d * value, some);
      (d * gate * slope).store(dpre + i, some);
      (value * gate).store(y + i, some);
    });
    grad_gates[row] = sum_of(dot[0]);
  }
}

template <typename F, bool kGated, typename T>
constexpr ExpertActivationLoops expert_loops() {
  return {activate_experts<T, F, kGated>, activate_experts_backward<T, F, kGated>};
}

}  // namespace

#define TRIREME_EXPERTS(F, kGated)                                                                        \
  {                                                                                                       \
    expert_loops<F, kGated, float>(), expert_loops<F, kGated, double>(), expert_loops<F, kGated, Bf16>(), \
        expert_loops<F, kGated, F16>()                                                                    \
  }
extern const ExpertRowsTable TRIREME_EXPERT_ROWS_TABLE = {
    {sum_of_tokens<float>, sum_of_tokens<double>, sum_of_tokens<Bf16>, sum_of_tokens<F16>},
    {scale_by_gates<float>, scale_by_gates<double>, scale_by_gates<Bf16>, scale_by_gates<F16>},
    {scale_by_gates_backward<float>, scale_by_gates_backward<double>, scale_by_gates_backward<Bf16>,
     scale_by_gates_backward<F16>},
    {TRIREME_EXPERTS(Relu, false), TRIREME_EXPERTS(Gelu, false), TRIREME_EXPERTS(GeluTanh, false),
     TRIREME_EXPERTS(Silu, false)},
    {TRIREME_EXPERTS(Relu, true), TRIREME_EXPERTS(Gelu, true), TRIREME_EXPERTS(GeluTanh, true),
     TRIREME_EXPERTS(Silu, true)}};
#undef TRIREME_EXPERTS

}  // namespace trireme::kernels
