#include "trireme/optim/elementwise.h"

#include <ATen/ops/mul.h>

#include "trireme/kernels/update.h"

namespace trireme::optim {

at::ScalarType update_type(const at::Tensor& master) {
  return master.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor scaled_gradient(const at::Tensor& gradient, const at::Tensor& like, double scale) {
  const at::ScalarType type = update_type(like);
  if (gradient.scalar_type() == type) return at::mul(gradient, scale).view(like.sizes());
  return gradient.to(type).mul_(scale).view(like.sizes());
}

void apply_decoupled(nn::Param& param, const at::Tensor& direction, double rate, double decay, std::uint64_t rounding) {
  at::Tensor weight = rounding != 0 ? param.master.to(at::kFloat) : param.master;
  if (decay != 0) weight.mul_(1 - rate * decay);
  weight.add_(direction.view(weight.sizes()), -rate);
  if (rounding != 0) return kernels::store_rounded(param.master, weight, rounding);
  write_copy(param);
}

void write_copy(nn::Param& param) {
  if (!param.value.is_same(param.master)) param.value.copy_(param.master);
}

}  // namespace trireme::optim
