// Rows of a table. A rank that has some of the rows gives zeros for the others: a summand.
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {

Outputs run_gather(OpCall& call) {
  const pg::Op& forward = call.forward();
  const Block* ids = call.operand(forward.inputs[1]);
  TRIREME_CHECK(ids, "operator {} lacks its indices", call.op.name);
  const bool is_forward = call.op.part == pg::Part::kForward;
  const Place table = is_forward ? Place{call.inputs[0].origin, call.inputs[0].data.sizes().vec()} : call.outputs[0];
  const at::Tensor own = (ids->data - table.origin[0]).flatten();
  const at::Tensor has = own.ge(0).logical_and(own.lt(table.sizes[0])).unsqueeze(1);
  const at::Tensor at = own.clamp(0, table.sizes[0] - 1);
  if (is_forward) {
    const at::Tensor& rows = call.inputs[0].data;
    return {(rows.index_select(0, at) * has.to(rows.scalar_type())).reshape(call.outputs[0].sizes)};
  }
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  at::Tensor sum = at::zeros(table.sizes, gradient->data.options());
  sum.index_add_(0, at, gradient->data.reshape({-1, table.sizes[1]}) * has.to(sum.scalar_type()));
  return {sum};
}

}  // namespace trireme::spmd
