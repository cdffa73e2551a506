#include "trireme/kernels/fp8.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/fp8_cpu.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kFp8Block = 128;

std::int64_t blocks_of(std::int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }
std::int64_t padded_blocks(std::int64_t size) { return (blocks_of(size) + 3) / 4 * 4; }

/// Room for the scales of [n, k], laid out as cuBLASLt reads them.
at::Tensor scale_room(Fp8Scaling scaling, std::int64_t n, std::int64_t k, const at::TensorOptions& options) {
  switch (scaling) {
    case Fp8Scaling::kTensor:
      return at::empty({1}, options);
    case Fp8Scaling::kBlocks1x128:
      return at::empty({blocks_of(k), n}, options);
    case Fp8Scaling::kBlocks128x128:
      break;
  }
  return at::empty({blocks_of(n), padded_blocks(k)}, options);
}

CudaFp8::Scaling kind_of(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::kTensor:
      return CudaFp8::kWhole;
    case Fp8Scaling::kBlocks1x128:
      return CudaFp8::kLine;
    case Fp8Scaling::kBlocks128x128:
      break;
  }
  return CudaFp8::kTile;
}

}  // namespace

bool takes_fp8(Fp8Scaling scaling, std::int64_t n, std::int64_t m) {
  const std::int64_t grain = scaling == Fp8Scaling::kTensor ? 16 : kFp8Block;
  return n > 0 && m > 0 && n % grain == 0 && m % grain == 0;
}

namespace {

struct Gate {
  const at::Tensor& up;
  Activation kind;
};

Fp8Pair quantise(const char* name, const at::Tensor& x, const Gate* gate, Fp8Format format, Fp8Scaling scaling,
                 bool rows, bool columns, const Fp8DelayedScale* delayed, const Fp8Pair* into) {
  const Arguments arguments(name);
  const Rows in = arguments.rows(x, "x");
  if (in.element == Element::kDouble || !takes_fp8(scaling, in.rows, in.width)) {
    arguments.refuse(fmt::format("{} cannot be quantised to FP8", describe(x, "x")),
                     "sizes must be multiples of 16, with scales of blocks of 128");
  }
  const auto type = format == Fp8Format::kE4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  const auto floats = x.options().dtype(at::kFloat);
  const at::Tensor largest = at::empty({1}, floats);
  CudaFp8 call{.x = in.data, .largest = largest.mutable_data_ptr(), .element = in.element, .rows = in.rows};
  call.width = in.width;
  call.stride = in.stride;
  if (gate != nullptr) {
    const Rows up = arguments.rows_like(gate->up, "up", in, "gate");
    call.up = up.data, call.up_stride = up.stride, call.activation = static_cast<int>(gate->kind);
  }
  call.format = format == Fp8Format::kE4m3 ? CudaFp8::kE4m3 : CudaFp8::kE5m2;
  call.scaling = kind_of(scaling);
  if (delayed != nullptr) {
    TRIREME_CHECK(scaling == Fp8Scaling::kTensor, "delayed scales are of whole tensors");
    if (delayed->amax.defined()) call.amax = delayed->amax.mutable_data_ptr<float>();
    if (delayed->known) call.scale = delayed->scale.const_data_ptr<float>();
  }
  Fp8Pair pair;
  const auto prepare = [&](Fp8Matrix& matrix, const Fp8Matrix* earlier, std::int64_t n, std::int64_t k,
                           std::uint8_t*& out, float*& scales, std::int64_t& stride) {
    if (earlier != nullptr && earlier->values.defined()) {
      matrix = *earlier;
    } else {
      matrix.scaling = scaling;
      matrix.values = at::empty({n, k}, x.options().dtype(type));
      matrix.scales = scale_room(scaling, n, k, floats);
    }
    // Padding is read too, and must not be NaN.
    if (scaling == Fp8Scaling::kBlocks128x128) matrix.scales.zero_();
    out = static_cast<std::uint8_t*>(matrix.values.mutable_data_ptr());
    scales = matrix.scales.mutable_data_ptr<float>();
    stride = matrix.scales.size(-1);
  };
  if (rows) {
    prepare(pair.rows, into == nullptr ? nullptr : &into->rows, in.rows, in.width, call.out_rows, call.row_scales,
            call.row_scale_stride);
  }
  if (columns) {
    prepare(pair.columns, into == nullptr ? nullptr : &into->columns, in.width, in.rows, call.out_columns,
            call.column_scales, call.column_scale_stride);
  }
  if (arguments.on_gpu()) {
    check_cuda(cuda().fp8(call, cuda_stream()), name);
  } else {
    fp8_on_cpu(call);
  }
  return pair;
}

}  // namespace

Fp8Pair to_fp8(const at::Tensor& x, Fp8Format format, Fp8Scaling scaling, bool rows, bool columns,
               const Fp8DelayedScale* delayed, const Fp8Pair* into) {
  return quantise("to_fp8", x, nullptr, format, scaling, rows, columns, delayed, into);
}

Fp8Pair gated_to_fp8(const at::Tensor& gate, const at::Tensor& up, Activation kind, Fp8Format format, bool rows,
                     bool columns, const Fp8DelayedScale& delayed) {
  TRIREME_CHECK(delayed.known, "what is quantised as it is made needs a scale that is known");
  if (!gate.is_cuda()) {
    at::Tensor y = at::empty(gate.sizes(), gate.options());
    gated_forward(y, gate, up, kind);
    return to_fp8(y, format, Fp8Scaling::kTensor, rows, columns, &delayed);
  }
  const Gate with{up, kind};
  return quantise("gated_to_fp8", gate, &with, format, Fp8Scaling::kTensor, rows, columns, &delayed, nullptr);
}

static Fp8GatedBackward gated_backward_on_cpu(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                                              Activation kind, const Fp8DelayedScale& of_grad,
                                              const Fp8DelayedScale& of_recomputed) {
  const std::int64_t width = gate.size(1);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  const at::Tensor both = at::empty({gate.size(0), 2 * width}, gate.options());
  at::Tensor dgate = both.narrow(1, 0, width), dup = both.narrow(1, width, width);
  gated_backward(dgate, dup, y, dy, gate, up, kind);
  return {.grad = to_fp8(both, Fp8Format::kE5m2, Fp8Scaling::kTensor, true, true, &of_grad),
          .recomputed = to_fp8(y, Fp8Format::kE4m3, Fp8Scaling::kTensor, false, true, &of_recomputed).columns};
}

Fp8GatedBackward gated_backward_to_fp8(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                                       Activation kind, const Fp8DelayedScale& of_grad,
                                       const Fp8DelayedScale& of_recomputed) {
  TRIREME_CHECK(of_grad.known && of_recomputed.known, "what is quantised as it is made needs scales that are known");
  if (!gate.is_cuda()) return gated_backward_on_cpu(dy, gate, up, kind, of_grad, of_recomputed);
  const Arguments arguments("gated_backward_to_fp8");
  const Rows g = arguments.rows(gate, "gate"), u = arguments.rows_like(up, "up", g, "gate"),
             d = arguments.rows_like(dy, "dy", g, "gate");
  if (!takes_fp8(Fp8Scaling::kTensor, g.rows, g.width)) {
    arguments.refuse(fmt::format("{} cannot be quantised to FP8", describe(gate, "gate")),
                     "sizes must be multiples of 16");
  }
  CudaFp8Gated call{.gate = g.data, .up = u.data, .dy = d.data};
  call.gate_stride = g.stride, call.up_stride = u.stride, call.dy_stride = d.stride;
  call.element = g.element, call.activation = static_cast<int>(kind);
  call.rows = g.rows, call.width = g.width;
  const auto room = [&](std::int64_t n, std::int64_t k, at::ScalarType type) {
    return Fp8Matrix{.values = at::empty({n, k}, gate.options().dtype(type)),
                     .scales = at::empty({1}, gate.options().dtype(at::kFloat))};
  };
  Fp8GatedBackward made{.grad = {.rows = room(g.rows, 2 * g.width, at::kFloat8_e5m2),
                                 .columns = room(2 * g.width, g.rows, at::kFloat8_e5m2)},
                        .recomputed = room(g.width, g.rows, at::kFloat8_e4m3fn)};
  const auto out = [](const Fp8DelayedScale& delayed, CudaFp8::Format format, const Fp8Matrix* rows,
                      const Fp8Matrix& columns) {
    CudaFp8Gated::Out to{.format = format, .scale = delayed.scale.const_data_ptr<float>()};
    if (delayed.amax.defined()) to.amax = delayed.amax.mutable_data_ptr<float>();
    if (rows != nullptr) {
      to.rows = static_cast<std::uint8_t*>(rows->values.mutable_data_ptr());
      to.row_scale = rows->scales.mutable_data_ptr<float>();
    }
    to.columns = static_cast<std::uint8_t*>(columns.values.mutable_data_ptr());
    to.column_scale = columns.scales.mutable_data_ptr<float>();
    return to;
  };
  call.grad = out(of_grad, CudaFp8::kE5m2, &made.grad.rows, made.grad.columns);
  call.recomputed = out(of_recomputed, CudaFp8::kE4m3, nullptr, made.recomputed);
  check_cuda(cuda().fp8_gated_backward(call, cuda_stream()), "gated_backward_to_fp8");
  return made;
}

void fp8_advance(at::Tensor& table, std::int64_t slot, std::int64_t margin) {
  TRIREME_CHECK(table.dim() == 2 && table.size(1) > 3 && table.is_contiguous() && table.scalar_type() == at::kFloat &&
                    slot >= 0 && slot < table.size(1) - 3,
                "a table of scales with a history, and a place in it");
  const double factor = std::ldexp(1.0, static_cast<int>(margin));
  if (table.is_cuda()) {
    return check_cuda(
        cuda().fp8_advance(table.mutable_data_ptr<float>(), table.size(0), table.size(1), slot, factor, cuda_stream()),
        "fp8_advance");
  }
  for (std::int64_t tensor = 0; tensor < table.size(0); ++tensor) {
    float* row = table.mutable_data_ptr<float>() + tensor * table.size(1);
    if (row[0] > 0 && std::isfinite(row[0])) row[3 + slot] = row[0];
    row[0] = 0;
    float top = 0;
    for (std::int64_t i = 3; i < table.size(1); ++i) top = std::max(top, row[i]);
    if (top > 0) row[1] = top / row[2] * static_cast<float>(factor);
  }
}

}  // namespace trireme::kernels
