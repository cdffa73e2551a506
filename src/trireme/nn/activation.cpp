#include "trireme/nn/activation.h"

#include <ATen/ops/empty_like.h>

namespace trireme::nn {

at::Tensor Activate::forward(at::Tensor x, Context&, Tape* tape) {
  const at::Tensor rows = as_rows(x);
  at::Tensor y = at::empty_like(rows);
  kernels::activation_forward(y, rows, at::Tensor(), kind_);
  at::Tensor out = y.view(x.sizes());
  if (tape) tape->push({std::move(x)});
  return out;
}

at::Tensor Activate::backward(at::Tensor dy, Context&, Tape& tape) {
  const auto [x] = tape.pop<1>();
  at::Tensor dx = at::empty_like(as_rows(x)), none;
  kernels::activation_backward(dx, none, as_rows(dy), as_rows(x), none, kind_);
  return dx.view(x.sizes());
}

}  // namespace trireme::nn
