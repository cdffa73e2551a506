// Rotary positions (Su et al. 2021, 2104.09864), in pairs of x and what lies half a size later, as Llama has them. A
// rank's block knows where it begins, so a split of the sequence changes no angle.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {

Outputs run_rotary(OpCall& call) {
  const pg::Op& forward = call.forward();
  const bool is_forward = call.op.part == pg::Part::kForward;
  const Block* block = is_forward ? &call.inputs[0] : call.gradient(forward.outputs[0]);
  TRIREME_CHECK(block, "operator {} has no gradient to pass on", call.op.name);
  const at::Tensor& x = block->data;
  const int axis = position(call.dims(forward.inputs[0]), forward.dims[0]);
  const std::int64_t half = x.size(-1) / 2, first = block->origin[static_cast<std::size_t>(axis)];
  const auto options = x.options().dtype(at::kDouble);
  const at::Tensor rates = at::pow(forward.base, at::arange(0, half, options) * (-2.0 / static_cast<double>(2 * half)));
  const at::Tensor angles = at::arange(first, first + x.size(axis), options).unsqueeze(1) * rates;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[static_cast<std::size_t>(axis)] = x.size(axis);
  shape.back() = half;
  const at::Tensor cosines = at::cos(angles).to(x.scalar_type()).view(shape),
                   sines = (is_forward ? at::sin(angles) : -at::sin(angles)).to(x.scalar_type()).view(shape);
  const at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  return {at::cat({low * cosines - high * sines, high * cosines + low * sines}, -1)};
}

}  // namespace trireme::spmd
