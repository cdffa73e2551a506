#include "trireme/nn/param.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/kernels/gemm.h"
#include "trireme/kernels/sum_rows.h"

namespace trireme::nn {
namespace {

template <typename Number>
void draw_numbers(const Param& param, std::span<Number> numbers, std::uint64_t seed) {
  if (param.init.kind == Init::Kind::kZeros || param.init.kind == Init::Kind::kOnes) {
    std::fill(numbers.begin(), numbers.end(), param.init.kind == Init::Kind::kOnes ? Number(1) : Number(0));
    return;
  }
  const Random random(seed, "init/" + param.name);
  const auto scale = static_cast<Number>(param.init.scale);
  const auto draw_part = [&](std::uint64_t first, std::span<Number> part) {
    if (param.init.kind == Init::Kind::kNormal) {
      random.fill_normal(first, part);
      for (Number& number : part) number *= scale;
    } else {
      random.fill_uniform(first, part);
      for (Number& number : part) number = (2 * number - 1) * scale;
    }
  };
  constexpr std::int64_t kAtLeast = std::int64_t{1} << 16;  // of a thread
  for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
    at::parallel_for(0, run.count, kAtLeast, [&](std::int64_t begin, std::int64_t end) {
      draw_part(static_cast<std::uint64_t>(run.global + begin),
                numbers.subspan(static_cast<std::size_t>(run.local + begin), static_cast<std::size_t>(end - begin)));
    });
  }
}

template <typename Number>
void draw(Param& param, std::uint64_t seed) {
  // Drawn here wherever the parameter lies: the numbers must not depend on it.
  // The same tensor where it is here already, and as wide.
  const at::Tensor here = param.master.to(at::kCPU, c10::CppTypeToScalarType<Number>::value);
  const std::span<Number> numbers(here.data_ptr<Number>(), static_cast<std::size_t>(here.numel()));
  draw_numbers(param, numbers, seed);
  if (!here.is_same(param.master)) param.master.copy_(here);
}

template <typename Number>
void copy_runs(Param& param, const at::Tensor& whole) {
  const at::Tensor from = whole.to(at::kCPU, c10::CppTypeToScalarType<Number>::value).contiguous();
  const at::Tensor here = param.master.to(at::kCPU, from.scalar_type());
  const Number* source = from.const_data_ptr<Number>();
  Number* target = here.data_ptr<Number>();
  for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
    std::copy_n(source + run.global, run.count, target + run.local);
  }
  if (!here.is_same(param.master)) param.master.copy_(here);
}

/// Memory for the gradient, whatever it holds.
void ensure_gradient(Param& param) {
  if (param.gradient.defined()) return;
  const at::Tensor& like = param.narrow_gradient ? param.value : param.master;
  param.gradient = param.provide_gradient
                       ? param.provide_gradient()
                       : at::empty_like(param.master, param.master.options().dtype(like.scalar_type()));
}

}  // namespace

std::vector<std::int64_t> local_shape(const layout::Placement& placement) {
  if (placement.partition || placement.pieces.empty() || placement.shape.empty()) {
    return {layout::local_elements(placement)};
  }
  // Pieces that differ in dimension 0 only stand one below the other: fused projections.
  std::vector<std::int64_t> shape;
  std::int64_t rows = 0;
  for (const layout::Piece& piece : placement.pieces) {
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < piece.box.begin.size(); ++i) sizes.push_back(piece.box.end[i] - piece.box.begin[i]);
    std::int64_t row = 1;
    for (std::size_t i = 1; i < sizes.size(); ++i) row *= sizes[i];
    rows += sizes[0] + (row > 0 ? piece.padding / row : 0);
    shape = sizes;
  }
  shape[0] = rows;
  return shape;
}

Param& Params::add(std::string name, layout::Shape shape, Init init, bool decay) {
  layout::Box whole{std::vector<layout::Index>(shape.size(), 0), shape};
  return add(
      layout::Placement{.name = std::move(name), .shape = std::move(shape), .pieces = {{.box = std::move(whole)}}},
      init, decay);
}

Param& Params::add(layout::Placement placement, Init init, bool decay) {
  TRIREME_CHECK(find(placement.name) == nullptr, "two parameters are named {}", placement.name);
  Param param{.name = placement.name, .init = init, .decay = decay};
  param.placement = std::move(placement);
  return params_.emplace_back(std::move(param));
}

const Param* Params::find(std::string_view name) const {
  const auto found =
      std::find_if(params_.begin(), params_.end(), [&](const Param& param) { return param.name == name; });
  return found == params_.end() ? nullptr : &*found;
}

Param& Params::at(std::string_view name) {
  if (const Param* found = find(name)) return const_cast<Param&>(*found);
  std::vector<std::string> names;
  for (const Param& param : params_) names.push_back(param.name);
  throw ConfigError(fmt::format("the model has no parameter {}", name), did_you_mean(name, names));
}

std::int64_t Params::elements() const {
  std::int64_t total = 0;
  for (const Param& param : params_) total += param.elements();
  return total;
}

at::ScalarType compute_type(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return at::kFloat;
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
    case Precision::kFp64:
      return at::kDouble;
  }
  return at::kFloat;
}

at::ScalarType master_type(Precision precision) { return precision == Precision::kFp64 ? at::kDouble : at::kFloat; }
at::ScalarType master_type(Precision precision, const Param& param) {
  return param.has_master ? master_type(precision) : compute_type(precision);
}

at::ScalarType gradient_type(Precision precision, const Param& param) {
  return param.narrow_gradient ? compute_type(precision) : master_type(precision, param);
}

void allocate(Params& params, Precision precision, at::Device device) {
  for (Param& param : params) {
    const at::ScalarType master = master_type(precision, param);
    const bool fits = param.master.defined() && param.master.scalar_type() == master &&
                      param.value.scalar_type() == compute_type(precision);
    if (!fits) {
      const auto shape = local_shape(param.placement);
      param.master = at::empty(shape, at::TensorOptions(master).device(device));
      const bool same = compute_type(precision) == master;
      param.value = same ? param.master : at::empty(shape, param.master.options().dtype(compute_type(precision)));
    }
    // Of 16 bits where somebody else's memory has it so; a master's is never narrower than what was there.
    const bool doubles = master == at::kDouble;
    if (param.gradient.defined() && (param.gradient.scalar_type() == at::kDouble) != doubles) {
      param.gradient = at::Tensor();
    }
    // GEMMs run over padding too, and must find no NaN there.
    if (layout::held_elements(param.placement) != layout::local_elements(param.placement)) param.master.zero_();
    param.gradient_empty = true;
  }
}

void fill_from(Param& param, const at::Tensor& whole) {
  TRIREME_CHECK(whole.numel() == param.elements(), "{} elements for {}, which has {}", whole.numel(), param.name,
                param.elements());
  if (param.master.scalar_type() == at::kDouble) {
    copy_runs<double>(param, whole);
  } else {
    copy_runs<float>(param, whole);
  }
  publish(param);
}

void initialise(Params& params, Precision precision, std::uint64_t seed, at::Device device) {
  allocate(params, precision, device);
  for (Param& param : params) {
    if (precision == Precision::kFp64) {
      draw<double>(param, seed);
    } else {
      draw<float>(param, seed);
    }
    publish(param);
  }
}

void publish(Param& param) {
  if (!param.value.is_same(param.master)) param.value.copy_(param.master);
  ++param.version;
}

at::Tensor& gradient_to_add_to(Param& param) {
  ensure_gradient(param);
  if (param.gradient_empty) param.gradient.zero_();
  param.gradient_empty = false;
  return param.gradient;
}

at::Tensor& gradient_to_write(Param& param) {
  ensure_gradient(param);
  param.gradient_empty = false;
  return param.gradient;
}

void add_gradient(Param& param, const at::Tensor& delta) {
  if (!param.trainable) return;
  ensure_gradient(param);
  if (param.gradient_empty) {
    param.gradient.copy_(delta.reshape(param.gradient.sizes()));
  } else {
    param.gradient.add_(delta.reshape(param.gradient.sizes()));
  }
  param.gradient_empty = false;
}

void add_weight_grad(Param& weight, const at::Tensor& dy, const at::Tensor& x, Param* bias) {
  if (bias && !bias->trainable) bias = nullptr;
  if (!weight.trainable) {
    if (bias) add_row_sum_gradient(*bias, dy);
    return;
  }
  kernels::Gemm call{.a = dy, .b = x, .transpose_a = true, .accumulate = !weight.gradient_empty};
  call.out = gradient_to_write(weight);
  if (bias) {
    call.epilogue.accumulate_bias_grad = !bias->gradient_empty;
    call.epilogue.bias_grad_a = gradient_to_write(*bias);
  }
  kernels::gemm(call);
}

void add_row_sum_gradient(Param& param, const at::Tensor& dy) {
  if (!param.trainable) return;
  const bool begin = param.gradient_empty;
  kernels::add_row_sum(gradient_to_write(param), dy, begin);
}

void zero_grad(Params& params) {
  for (Param& param : params) param.gradient_empty = true;
}

}  // namespace trireme::nn
