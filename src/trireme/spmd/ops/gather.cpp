// Rows of a table. A rank that has some of the rows gives zeros for the others: a summand.
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

/// Rows added up by their index.
at::Tensor sum_of_rows(const at::Tensor& index, const at::Tensor& rows, Index table_rows) {
  return at::zeros({table_rows, rows.size(1)}, rows.options()).index_add_(0, index, rows);
}

}  // namespace

Outputs run_gather(OpCall& call) {
  const pg::Op& forward = call.forward();
  const Block* ids = call.operand(forward.inputs[1]);
  TRIREME_CHECK(ids, "operator {} lacks its indices", call.op.name);
  const bool is_forward = call.op.part == pg::Part::kForward;
  const Place table = is_forward ? Place{call.inputs[0].origin, call.inputs[0].data.sizes().vec()} : call.outputs[0];
  const bool has_all = table.sizes[0] == call.graph.size(call.dims(forward.inputs[0])[0]);
  at::Tensor at = ids->data.flatten(), has;  // has: undefined where every row is this rank's
  if (!has_all) {
    at = at - table.origin[0];
    has = at.ge(0).logical_and(at.lt(table.sizes[0])).unsqueeze(1);
    at = at.clamp(0, table.sizes[0] - 1);
  }
  const auto own = [&](const at::Tensor& rows) { return has_all ? rows : rows * has.to(rows.scalar_type()); };
  if (is_forward) return {own(call.inputs[0].data.index_select(0, at)).reshape(call.outputs[0].sizes)};
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  const at::Tensor rows = own(gradient->data.reshape({-1, table.sizes[1]}));
  if (DeferredParts* parts = call.deferred.empty() ? nullptr : call.deferred[0]) {
    parts->left.push_back(at);
    parts->right.push_back(rows);
    parts->sum_of = [count = table.sizes[0]](const at::Tensor& index, const at::Tensor& all) {
      return sum_of_rows(index, all, count);
    };
    return {at::Tensor()};
  }
  return {sum_of_rows(at, rows, table.sizes[0])};
}

}  // namespace trireme::spmd
