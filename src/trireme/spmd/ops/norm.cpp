// Batch, layer and RMS norm. Sums and sums of squares are of fp64, over all ranks that have a part of what is averaged:
// the statistics of the whole, whatever the split.
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

struct Averaged {
  std::vector<std::int64_t> axes;  ///< of the tensor
  double elements = 1;             ///< of the whole, or of this rank's samples
};

Averaged averaged_by(const OpCall& call) {
  const pg::Op& forward = call.forward();
  Averaged averaged;
  for (const int dim : forward.dims) {
    averaged.axes.push_back(position(call.dims(forward.inputs[0]), dim));
    const bool is_local = forward.function == "local-batch";
    const Index own = call.operand(forward.inputs[0])->size(static_cast<std::size_t>(averaged.axes.back()));
    averaged.elements *= static_cast<double>(is_local ? own : call.graph.size(dim));
  }
  return averaged;
}

at::Tensor sums_of(OpCall& call, const at::Tensor& a, const at::Tensor& b, const Averaged& averaged) {
  at::Tensor sums =
      at::stack({at::sum(a, averaged.axes, true, at::kDouble), at::sum(b, averaged.axes, true, at::kDouble)})
          .contiguous();
  call.all_reduce(sums, comm::Reduce::kSum);
  return sums / averaged.elements;
}

/// Batch norm of [n, c, ...] whose statistics no other rank shares: the library's own operator, with its statistics
/// kept.
bool is_own_batch_norm(const OpCall& call) {
  const pg::Op& forward = call.forward();
  const auto& dims = call.dims(forward.inputs[0]);
  return is_batch_norm(forward) && !call.shares_statistics && dims.size() == 4 && forward.dims.size() == 3 &&
         position(forward.dims, dims[1]) < 0;
}

/// The norm of a tail: statistics forward, its gradient from sums that may be there already.
Outputs norm_of_tail(OpCall& call) {
  NormTail& tail = *call.tail;
  const bool is_other = call.member.part == TailPart::kOther || call.member.part == TailPart::kOtherGradient;
  kernels::BatchNorm& norm = is_other ? tail.other : tail.norm;
  if (call.op.part == pg::Part::kForward) {
    norm =
        kernels::batch_norm_of(channels_last(call.inputs[0].data), call.inputs[1].data, call.inputs[2].data, kNormEps);
    call.kept["mean"] = norm.mean;
    call.kept["rstd"] = norm.rstd;
    return {at::Tensor()};
  }
  const Block* gradient = call.gradient(call.forward().outputs[0]);
  TRIREME_CHECK(gradient && norm.x.defined(), "operator {} lacks an operand", call.op.name);
  const bool relu_of_norm = !call.member.adds;
  const at::Tensor dy = relu_of_norm ? tail.dy : channels_last(gradient->data);
  const kernels::BatchNormSums sums =
      call.member.adds && !is_other ? tail.sums : batch_norm_sums(norm, {.dy = dy, .relu_of_norm = relu_of_norm});
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  if (places[0] >= 0) outputs[static_cast<std::size_t>(places[0])] = batch_norm_gradient(norm, dy, sums, relu_of_norm);
  if (places[1] >= 0) outputs[static_cast<std::size_t>(places[1])] = sums.dscale;
  if (places[2] >= 0) outputs[static_cast<std::size_t>(places[2])] = sums.dshift;
  norm = {};
  if (!is_other) tail.dy = at::Tensor(), tail.sums = {};
  return outputs;
}

Outputs own_batch_norm(OpCall& call) {
  const pg::Op& forward = call.forward();
  if (call.op.part == pg::Part::kForward) {
    auto [y, mean, rstd] = at::native_batch_norm(call.inputs[0].data, call.inputs[1].data, call.inputs[2].data,
                                                 at::Tensor(), at::Tensor(), true, 0.0, kNormEps);
    call.kept["mean"] = mean;
    call.kept["rstd"] = rstd;
    return {packed(y)};
  }
  const Block *x = call.operand(forward.inputs[0]), *scale = call.operand(forward.inputs[1]),
              *gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(x && scale && gradient, "operator {} lacks an operand", call.op.name);
  const std::vector<int> places = call.gradient_outputs();
  auto [dx, dscale, dshift] = at::native_batch_norm_backward(
      gradient->data, x->data, scale->data, at::Tensor(), at::Tensor(), call.kept.at("mean"), call.kept.at("rstd"),
      true, kNormEps, {places[0] >= 0, places[1] >= 0, places[2] >= 0});
  Outputs outputs(call.op.outputs.size());
  const at::Tensor made[] = {dx, dscale, dshift};
  for (std::size_t i = 0; i < 3; ++i) {
    if (places[i] >= 0) outputs[static_cast<std::size_t>(places[i])] = packed(made[i]);
  }
  return outputs;
}

/// Sums over the averaged dimensions of one tensor, as sums_of() has them of two.
at::Tensor mean_of(OpCall& call, const at::Tensor& a, const Averaged& averaged) {
  at::Tensor sum = at::sum(a, averaged.axes, true, at::kDouble).contiguous();
  call.all_reduce(sum, comm::Reduce::kSum);
  return sum / averaged.elements;
}

/// Zhang and Sennrich 2019 (1910.07467): by the root of the mean square, without a mean or a shift.
Outputs rms_norm(OpCall& call) {
  const pg::Op& forward = call.forward();
  const auto& dims = call.dims(forward.inputs[0]);
  const Averaged averaged = averaged_by(call);
  const auto scaled_by = [&](const at::Tensor& scale) { return aligned(scale, call.dims(forward.inputs[1]), dims); };
  if (call.op.part == pg::Part::kForward) {
    const at::Tensor x = call.inputs[0].data, wide = x.to(at::kDouble);
    const at::Tensor rstd = mean_of(call, wide * wide, averaged).add(kNormEps).rsqrt();
    call.kept["rstd"] = rstd;
    return {((wide * rstd).to(x.scalar_type()) * scaled_by(call.inputs[1].data)).contiguous()};
  }
  const Block *x = call.operand(forward.inputs[0]), *scale = call.operand(forward.inputs[1]),
              *gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(x && scale && gradient, "operator {} lacks an operand", call.op.name);
  const at::Tensor rstd = call.kept.at("rstd"), &g = gradient->data;
  const at::Tensor normal = (x->data.to(at::kDouble) * rstd).to(x->data.scalar_type());
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  if (places[0] >= 0) {
    const at::Tensor scaled = g * scaled_by(scale->data);
    const at::Tensor along = normal.to(at::kDouble) * mean_of(call, scaled * normal, averaged);
    outputs[static_cast<std::size_t>(places[0])] =
        ((scaled.to(at::kDouble) - along) * rstd).to(g.scalar_type()).contiguous();
  }
  if (places[1] >= 0)
    outputs[static_cast<std::size_t>(places[1])] =
        summed_to(g * normal, call.dims(forward.outputs[0]), call.dims(forward.inputs[1]));
  return outputs;
}

}  // namespace

Outputs run_norm(OpCall& call) {
  if (call.tail) return norm_of_tail(call);
  if (call.forward().function == "rms") return rms_norm(call);
  if (is_own_batch_norm(call)) return own_batch_norm(call);
  const pg::Op& forward = call.forward();
  const auto& dims = call.dims(forward.inputs[0]);
  const Averaged averaged = averaged_by(call);
  if (call.op.part == pg::Part::kForward) {
    const at::Tensor x = call.inputs[0].data;
    const at::Tensor wide = x.to(at::kDouble), means = sums_of(call, wide, wide * wide, averaged);
    const at::Tensor mean = means[0], rstd = (means[1] - mean * mean).clamp_min(0).add(kNormEps).rsqrt();
    call.kept["mean"] = mean;
    call.kept["rstd"] = rstd;
    const at::Tensor scale = aligned(call.inputs[1].data, call.dims(forward.inputs[1]), dims),
                     shift = aligned(call.inputs[2].data, call.dims(forward.inputs[2]), dims);
    return {(((wide - mean) * rstd).to(x.scalar_type()) * scale + shift).contiguous()};
  }
  const Block *x = call.operand(forward.inputs[0]), *scale = call.operand(forward.inputs[1]),
              *gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(x && scale && gradient, "operator {} lacks an operand", call.op.name);
  const at::Tensor rstd = call.kept.at("rstd");
  const at::Tensor normal = ((x->data.to(at::kDouble) - call.kept.at("mean")) * rstd).to(x->data.scalar_type());
  const at::Tensor& g = gradient->data;
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  if (places[0] >= 0) {
    const at::Tensor scaled = g * aligned(scale->data, call.dims(forward.inputs[1]), dims);
    const at::Tensor means = sums_of(call, scaled, scaled * normal, averaged);
    const at::Tensor centred = scaled.to(at::kDouble) - means[0] - normal.to(at::kDouble) * means[1];
    outputs[static_cast<std::size_t>(places[0])] = (centred * rstd).to(g.scalar_type()).contiguous();
  }
  const auto& out = call.dims(forward.outputs[0]);
  if (places[1] >= 0)
    outputs[static_cast<std::size_t>(places[1])] = summed_to(g * normal, out, call.dims(forward.inputs[1]));
  if (places[2] >= 0) outputs[static_cast<std::size_t>(places[2])] = summed_to(g, out, call.dims(forward.inputs[2]));
  return outputs;
}

}  // namespace trireme::spmd
