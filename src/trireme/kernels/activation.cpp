#include "trireme/kernels/activation.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/activation_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<ActivationTable> kCompiledActivation{kActivationPlain, kActivationV3, kActivationV4,
                                                        kActivationV4Bf16};

const ActivationLoops& loops(Activation kind, Element element) {
  return kCompiledActivation.pick().loops[static_cast<int>(kind)][static_cast<int>(element)];
}

/// A narrow row has little work; an exponential makes an element worth about four plain ones.
std::int64_t grain(const Rows& rows) { return rows_worth_a_thread(rows.width * 4); }

const void* bias_of(const Arguments& arguments, const at::Tensor& bias, const Rows& x) {
  if (!bias.defined()) return nullptr;
  const Rows row = arguments.rows(bias, "bias");
  if (bias.numel() != x.width || row.rows != 1 || row.element != x.element) {
    arguments.refuse(fmt::format("{} must be {} contiguous elements of x's type, {}", describe(bias, "bias"), x.width,
                                 to_string(x.element)));
  }
  return row.data;
}

}  // namespace

void activation_forward(at::Tensor& y, const at::Tensor& x, const at::Tensor& bias, Activation kind) {
  const Arguments arguments("activation_forward");
  const Rows in = arguments.rows(x, "x"), out = arguments.rows_like(y, "y", in, "x");
  const ActivationLoop loop{.x = in.data,
                            .bias = bias_of(arguments, bias, in),
                            .dy = nullptr,
                            .out = out.data,
                            .x_stride = in.stride,
                            .dy_stride = 0,
                            .out_stride = out.stride,
                            .width = in.width};
  if (arguments.on_gpu()) {
    return check_cuda(cuda().activation_forward(loop, static_cast<int>(kind), in.element, in.rows, cuda_stream()),
                      "activation_forward");
  }
  const auto forward = loops(kind, in.element).forward;
  at::parallel_for(0, in.rows, grain(in), [&](std::int64_t begin, std::int64_t end) { forward(loop, begin, end); });
}

void activation_backward(at::Tensor& dx, at::Tensor& dbias, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& bias, Activation kind, at::Tensor* y, bool overwrite) {
  const Arguments arguments("activation_backward");
  const Rows in = arguments.rows(x, "x"), gradient = arguments.rows_like(dy, "dy", in, "x");
  const Rows out = arguments.rows_like(dx, "dx", in, "x");
  Rows again;
  if (y != nullptr) again = arguments.rows_like(*y, "y", in, "x");
  const ActivationLoop loop{.x = in.data,
                            .bias = bias_of(arguments, bias, in),
                            .dy = gradient.data,
                            .out = out.data,
                            .x_stride = in.stride,
                            .dy_stride = gradient.stride,
                            .out_stride = out.stride,
                            .width = in.width,
                            .y = again.data,
                            .y_stride = again.stride};
  void* const bias_gradient = arguments.sums(dbias, "dbias", in.width, in.element);
  if (overwrite && bias_gradient != nullptr && (!arguments.on_gpu() || in.rows == 0)) dbias.zero_();
  if (arguments.on_gpu()) {
    at::Tensor workspace;
    CudaColumnSums column_sums{.first = bias_gradient, .begin_first = overwrite};
    if (bias_gradient != nullptr) {
      workspace = cuda_sum_workspace(x, in.element, in.width, 1);
      column_sums.partial = workspace.mutable_data_ptr();
    }
    return check_cuda(
        cuda().activation_backward(loop, column_sums, static_cast<int>(kind), in.element, in.rows, cuda_stream()),
        "activation_backward");
  }
  if (y != nullptr)
    activation_forward(*y, x, bias, kind);  // x is in no cache between the two: one pass would save little
  const auto backward = loops(kind, in.element).backward;
  if (bias_gradient == nullptr) {
    at::parallel_for(0, in.rows, grain(in),
                     [&](std::int64_t begin, std::int64_t end) { backward(loop, begin, end, nullptr); });
    return;
  }
  ColumnSums sums(in.element, in.rows, in.width, 1);
  at::parallel_for(0, sums.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      backward(loop, sums.begin_row(block), sums.end_row(block), sums.start(block, 0));
    }
  });
  sums.add_to(bias_gradient, 0);
}

void gated_forward(at::Tensor& y, const at::Tensor& gate, const at::Tensor& up, Activation kind) {
  const Arguments arguments("gated_forward");
  const Rows g = arguments.rows(gate, "gate"), u = arguments.rows_like(up, "up", g, "gate");
  const Rows out = arguments.rows_like(y, "y", g, "gate");
  GatedLoop loop{};
  loop.gate = g.data, loop.gate_stride = g.stride;
  loop.up = u.data, loop.up_stride = u.stride;
  loop.y = out.data, loop.y_stride = out.stride;
  loop.width = g.width;
  if (arguments.on_gpu()) {
    return check_cuda(cuda().gated_forward(loop, static_cast<int>(kind), g.element, g.rows, cuda_stream()),
                      "gated_forward");
  }
  const auto forward = loops(kind, g.element).gated_forward;
  at::parallel_for(0, g.rows, grain(g), [&](std::int64_t begin, std::int64_t end) { forward(loop, begin, end); });
}

void gated_backward(at::Tensor& dgate, at::Tensor& dup, at::Tensor& y, const at::Tensor& dy, const at::Tensor& gate,
                    const at::Tensor& up, Activation kind) {
  const Arguments arguments("gated_backward");
  const Rows g = arguments.rows(gate, "gate"), u = arguments.rows_like(up, "up", g, "gate");
  const Rows d = arguments.rows_like(dy, "dy", g, "gate");
  const Rows dg = arguments.rows_like(dgate, "dgate", g, "gate"), du = arguments.rows_like(dup, "dup", g, "gate");
  Rows again;
  if (y.defined()) again = arguments.rows_like(y, "y", g, "gate");
  const GatedLoop loop{.gate = g.data,
                       .up = u.data,
                       .dy = d.data,
                       .dgate = dg.data,
                       .dup = du.data,
                       .y = again.data,
                       .gate_stride = g.stride,
                       .up_stride = u.stride,
                       .dy_stride = d.stride,
                       .dgate_stride = dg.stride,
                       .dup_stride = du.stride,
                       .y_stride = again.stride,
                       .width = g.width};
  if (arguments.on_gpu()) {
    return check_cuda(cuda().gated_backward(loop, static_cast<int>(kind), g.element, g.rows, cuda_stream()),
                      "gated_backward");
  }
  const auto backward = loops(kind, g.element).gated_backward;
  at::parallel_for(0, g.rows, grain(g), [&](std::int64_t begin, std::int64_t end) { backward(loop, begin, end); });
}

}  // namespace trireme::kernels
