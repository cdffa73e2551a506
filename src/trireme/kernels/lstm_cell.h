// kernels/lstm_cell.h -- what an LSTM's cell does element by element, in one pass forward and one backward.
//
// Gates are input, forget, cell and output, as PyTorch orders them. On the CPU, float and double.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// Whether the two functions below take tensors of this kind.
bool fits_lstm_cell(const at::Tensor& gates);

struct LstmState {
  at::Tensor h, c;
};
/// `gates` [n, 4, units], contiguous: sums of inputs and states, which become the gates, in place. `c` [n, units].
LstmState lstm_cell(at::Tensor& gates, const at::Tensor& c);

struct LstmCellGrad {
  at::Tensor gates;  ///< [n, 4, units], of the sums
  at::Tensor c;      ///< of the cell that came in
};
/// `gates` as lstm_cell() left them, `c_in` and `c` the cell before and after; `dh` and `dc` may be undefined: 0.
LstmCellGrad lstm_cell_backward(const at::Tensor& gates, const at::Tensor& c_in, const at::Tensor& c,
                                const at::Tensor& dh, const at::Tensor& dc);

}  // namespace trireme::kernels
