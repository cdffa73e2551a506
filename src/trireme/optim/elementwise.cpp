#include "trireme/optim/elementwise.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

namespace trireme::optim {

at::Tensor scaled_gradient(const at::Tensor& gradient, const at::Tensor& like, double scale) {
  if (gradient.scalar_type() == like.scalar_type()) return at::mul(gradient, scale).view(like.sizes());
  return gradient.to(like.scalar_type()).mul_(scale).view(like.sizes());
}

void apply_decoupled(nn::Param& param, const at::Tensor& direction, double rate, double decay) {
  if (decay != 0) param.master.mul_(1 - rate * decay);
  param.master.add_(direction.view(param.master.sizes()), -rate);
  write_copy(param);
}

void write_copy(nn::Param& param) {
  if (!param.value.is_same(param.master)) param.value.copy_(param.master);
}

}  // namespace trireme::optim
