// kernels/cpu/lstm_cell_body.h -- the loops behind lstm_cell.h, included once per instruction set.
#include "trireme/kernels/cpu/lstm_cell_table.h"
#include "trireme/kernels/cpu/vec_math.h"

namespace trireme::kernels {
namespace {

constexpr double kLog2e = 1.4426950408889634;

TRIREME_INLINE Floats sigmoid_of(Floats x) {
  return Floats::all(1) / (Floats::all(1) + two_to(x * Floats::all(static_cast<float>(-kLog2e))));
}
TRIREME_INLINE Doubles sigmoid_of(Doubles x) { return {1 / (1 + __builtin_exp(-x.v))}; }

/// Within 3 units in the last place.
TRIREME_INLINE Floats tanh_of(Floats x) {
  const Floats one = Floats::all(1), size = absolute(x);
  const Floats e = two_to(size * Floats::all(static_cast<float>(-2 * kLog2e)));
  const Floats far = (one - e) / (one + e);
  // Near 0, where 1 - e would cancel: the Taylor series, to 8e-9 of it for |x| <= 1/4.
  const Floats square = x * x;
  const Floats near = x * polynomial(square, 1.0f, -0.333333333f, 0.133333333f, -0.0539682540f, 0.0218694885f);
  const Floats with_sign = choose(above(Floats::all(0), x), Floats::all(0) - far, far);
  return choose(above(Floats::all(0.25f), size), near, with_sign);
}
TRIREME_INLINE Doubles tanh_of(Doubles x) { return {__builtin_tanh(x.v)}; }

template <typename T>
void lstm_forward_rows(const LstmCellLoop& call, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  for (std::int64_t row = begin; row < end; ++row) {
    T* const gates = static_cast<T*>(call.gates) + 4 * row * call.units;
    const T* const c_in = static_cast<const T*>(call.c_in) + row * call.units;
    T *const c = static_cast<T*>(call.c) + row * call.units, *const h = static_cast<T*>(call.h) + row * call.units;
    each<V>(call.units, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      const auto gate = [&](std::int64_t which)
                            TRIREME_LAMBDA { return V::load(gates + which * call.units + i, some); };
      const V input = sigmoid_of(gate(0)), forget = sigmoid_of(gate(1)), cell = tanh_of(gate(2)),
              output = sigmoid_of(gate(3));
      input.store(gates + i, some);
      forget.store(gates + call.units + i, some);
      cell.store(gates + 2 * call.units + i, some);
      output.store(gates + 3 * call.units + i, some);
      const V next = multiply_add(input, cell, forget * V::load(c_in + i, some));
      next.store(c + i, some);
      (output * tanh_of(next)).store(h + i, some);
    });
  }
}

template <typename T>
void lstm_backward_rows(const LstmCellLoop& call, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* const gates = static_cast<const T*>(call.gates) + 4 * row * call.units;
    T* const dsums = static_cast<T*>(call.dsums) + 4 * row * call.units;
    const auto at_row = [&](const void* data) TRIREME_LAMBDA { return static_cast<const T*>(data) + row * call.units; };
    const T *const c_in = at_row(call.c_in), *const c = at_row(call.c);
    T* const dc_in = static_cast<T*>(call.dc_in) + row * call.units;
    each<V>(call.units, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
      const auto gate = [&](std::int64_t which)
                            TRIREME_LAMBDA { return V::load(gates + which * call.units + i, some); };
      const V input = gate(0), forget = gate(1), cell = gate(2), output = gate(3), one = V::all(1);
      const V squashed = tanh_of(V::load(c + i, some));
      const V dh = call.dh != nullptr ? V::load(at_row(call.dh) + i, some) : V::all(0);
      V dc = dh * output * (one - squashed * squashed);
      if (call.dc != nullptr) dc = dc + V::load(at_row(call.dc) + i, some);
      (dc * cell * input * (one - input)).store(dsums + i, some);
      (dc * V::load(c_in + i, some) * forget * (one - forget)).store(dsums + call.units + i, some);
      (dc * input * (one - cell * cell)).store(dsums + 2 * call.units + i, some);
      (dh * squashed * output * (one - output)).store(dsums + 3 * call.units + i, some);
      (dc * forget).store(dc_in + i, some);
    });
  }
}

}  // namespace

extern const LstmCellTable TRIREME_LSTM_CELL_TABLE = {{lstm_forward_rows<float>, lstm_forward_rows<double>},
                                                      {lstm_backward_rows<float>, lstm_backward_rows<double>}};

}  // namespace trireme::kernels
