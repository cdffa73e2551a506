#include "trireme/kernels/update.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cpu/rounding.h"
#include "trireme/kernels/cpu/update_table.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<UpdateTable> kCompiledUpdate{kUpdatePlain, kUpdateV3, kUpdateV4, kUpdateV4Bf16};
constexpr std::int64_t kUpdateBlock = std::int64_t{1}
                                      << 14;  // what one thread takes at least, and what a partial sum covers

const UpdateLoops& loops(Element weight) {
  const UpdateTable& table = kCompiledUpdate.pick();
  return weight == Element::kDouble ? table.doubles : table.floats;
}

enum class Takes { kWide, kWideOrBfloat16, kAny, kNarrow };

Stream stream(const Arguments& arguments, const at::Tensor& tensor, const char* name, std::int64_t count, Takes takes,
              Element wide) {
  const Element element = arguments.element(tensor, name);
  const bool narrow = element == Element::kBfloat16 || element == Element::kHalf;
  const bool right = wide == Element::kDouble          ? element == wide && takes != Takes::kNarrow
                     : element == Element::kFloat      ? takes != Takes::kNarrow
                     : takes == Takes::kWideOrBfloat16 ? element == Element::kBfloat16
                                                       : takes != Takes::kWide && narrow;
  if (!right || tensor.numel() != count || !tensor.is_contiguous()) {
    const char* types = takes == Takes::kNarrow           ? "bfloat16 or half, beside float weights"
                        : wide == Element::kDouble        ? "double, as the weight is"
                        : takes == Takes::kWide           ? "float"
                        : takes == Takes::kWideOrBfloat16 ? "float or bfloat16"
                                                          : "float, bfloat16 or half";
    arguments.refuse(fmt::format("{} must be {} contiguous elements, {}", describe(tensor, name), count, types));
  }
  return {const_cast<void*>(tensor.const_data_ptr()), element};
}

/// The tensors that all updates have.
struct Common {
  UpdateLoop loop;
  std::int64_t count;
  Element wide;
};
Common common(const Arguments& arguments, const UpdateTensors& tensors, bool needs_gradient = true,
              bool rounds = false) {
  Element wide = arguments.element(tensors.weight, "weight");
  if (rounds && wide == Element::kBfloat16) wide = Element::kFloat;
  if (wide != Element::kFloat && wide != Element::kDouble) {
    arguments.refuse(fmt::format("{} must be float: an update is smaller than the last bit of a narrower weight",
                                 describe(tensors.weight, "weight")),
                     "keep float weights and give the narrow copy as low");
  }
  Common c{.loop = {}, .count = tensors.weight.numel(), .wide = wide};
  const Takes weights = rounds ? Takes::kWideOrBfloat16 : Takes::kWide;
  c.loop.weight = stream(arguments, tensors.weight, "weight", c.count, weights, wide);
  if (needs_gradient) {
    c.loop.gradient = stream(arguments, tensors.gradient, "gradient", c.count, Takes::kAny, wide);
  }
  if (tensors.low.defined()) c.loop.low = stream(arguments, tensors.low, "low", c.count, Takes::kNarrow, wide);
  c.loop.gradient_scale = tensors.gradient_scale;
  c.loop.zero_gradient = tensors.zero_gradient;
  c.loop.device_scalars = tensors.device_scalars;
  return c;
}

/// Of updates other than AdamW's, whose weights may be bfloat16 where they are rounded stochastically.
Common rounding_common(const Arguments& arguments, const UpdateTensors& tensors, bool needs_gradient = true) {
  Common c = common(arguments, tensors, needs_gradient, tensors.rounding != 0);
  if (tensors.rounding != 0 && arguments.on_gpu())
    arguments.refuse("on a GPU bfloat16 weights are stochastically rounded by AdamW alone", "use float weights");
  return c;
}

template <typename Body>
void each_block(std::int64_t count, Body&& body) {
  const std::int64_t blocks = (count + kUpdateBlock - 1) / kUpdateBlock;
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      body(block, block * kUpdateBlock, std::min(count, (block + 1) * kUpdateBlock));
    }
  });
}

/// In pairs, and pairs of pairs: the order depends on the number of blocks alone.
double tree_sum(std::vector<double> parts) {
  for (std::size_t step = 1; step < parts.size(); step *= 2) {
    for (std::size_t i = 0; i + step < parts.size(); i += 2 * step) parts[i] += parts[i + step];
  }
  return parts.empty() ? 0 : parts[0];
}

double squares_of(const Stream& stream, Element wide, std::int64_t count) {
  std::vector<double> parts(static_cast<std::size_t>((count + kUpdateBlock - 1) / kUpdateBlock));
  const auto squares = loops(wide).squares;
  each_block(count, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(block)] = squares(stream, begin, end);
  });
  return tree_sum(std::move(parts));
}

/// One launch or two for all of them.
at::Tensor start_squares(std::span<const CudaSquares> tensors, const at::Tensor& like) {
  std::int64_t pieces = 1;
  for (const CudaSquares& tensor : tensors) pieces += (tensor.count + kCudaSquaresPiece - 1) / kCudaSquaresPiece;
  const auto count = static_cast<std::int64_t>(tensors.size());
  const at::Tensor partial = at::empty({pieces}, like.options().dtype(at::kDouble));
  const at::Tensor sums = at::empty({count}, partial.options());
  check_cuda(cuda().squares(tensors.data(), count, partial.mutable_data_ptr<double>(), sums.mutable_data_ptr<double>(),
                            cuda_stream()),
             "sums_of_squares");
  return sums;
}

/// And one wait for the sums.
std::vector<double> gpu_squares(std::span<const CudaSquares> tensors, const at::Tensor& like) {
  const at::Tensor here = start_squares(tensors, like).cpu();
  const double* numbers = here.const_data_ptr<double>();
  return {numbers, numbers + here.numel()};
}

CudaSquares squares_call(const at::Tensor& tensor, bool& on_gpu) {
  const Arguments arguments("sum_of_squares");
  const Element element = arguments.element(tensor, "tensor");
  const Stream numbers = stream(arguments, tensor, "tensor", tensor.numel(), Takes::kAny, sums_of(element));
  on_gpu = arguments.on_gpu();
  return {numbers, tensor.numel()};
}

void check_step(const Arguments& arguments, const AdamW& options) {
  if (options.step < 1) arguments.refuse(fmt::format("step is {}, but steps count from 1", options.step));
}

AdamNumbers adam_numbers(const AdamW& o) {
  const auto step = static_cast<double>(o.step);
  return {
      .decay = o.decoupled ? 0 : o.weight_decay,
      .take1 = o.gradient_is_momentum ? 1 : 1 - o.beta1,
      .take2 = o.freeze_variance ? 0 : 1 - o.beta2,
      .epsilon = o.epsilon,
      .rate = o.learning_rate / (1 - std::pow(o.beta1, step)),
      .root = 1 / std::sqrt(1 - std::pow(o.beta2, o.variance_step > 0 ? static_cast<double>(o.variance_step) : step)),
      .weight_decay = o.decoupled ? o.learning_rate * o.weight_decay : 0,
      .rounding = o.rounding};
}

}  // namespace

std::uint64_t rounding_from(std::uint64_t key, std::int64_t first) {
  const std::uint64_t moved = key + static_cast<std::uint64_t>(first) * kRoundingStep;
  return moved == 0 ? 1 : moved;
}

void sgd_update(const UpdateTensors& tensors, at::Tensor& velocity, const Sgd& options) {
  const Arguments arguments("sgd_update");
  Common c = rounding_common(arguments, tensors);
  if (options.momentum != 0) {
    c.loop.first = stream(arguments, velocity, "velocity", c.count, Takes::kWideOrBfloat16, c.wide);
  } else if (options.nesterov) {
    arguments.refuse("nesterov without momentum has nothing to look ahead with", "set momentum above 0");
  }
  const SgdNumbers numbers{.rate = options.learning_rate,
                           .decay = options.weight_decay,
                           .momentum = options.momentum,
                           .undamped = 1 - options.dampening,
                           .nesterov = options.nesterov,
                           .start = options.first};
  if (arguments.on_gpu()) return check_cuda(cuda().sgd(c.loop, numbers, c.count, cuda_stream()), "sgd_update");
  const auto loop = loops(c.wide).sgd;
  each_block(c.count, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    loop(c.loop, numbers, tensors.rounding, begin, end);
  });
}

void adagrad_update(const UpdateTensors& tensors, at::Tensor& sum, const Adagrad& options) {
  const Arguments arguments("adagrad_update");
  Common c = rounding_common(arguments, tensors);
  c.loop.second = stream(arguments, sum, "sum", c.count, Takes::kWide, c.wide);
  const AdagradNumbers numbers{options.learning_rate, options.weight_decay, options.epsilon};
  if (arguments.on_gpu()) return check_cuda(cuda().adagrad(c.loop, numbers, c.count, cuda_stream()), "adagrad_update");
  const auto loop = loops(c.wide).adagrad;
  each_block(c.count, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    loop(c.loop, numbers, tensors.rounding, begin, end);
  });
}

void adamw_update(const UpdateTensors& tensors, at::Tensor& m, at::Tensor& v, const AdamW& options) {
  const AdamWUpdate one{.tensors = tensors, .m = m, .v = v, .options = options};
  adamw_updates({&one, 1});
}

void adamw_updates(std::span<const AdamWUpdate> updates) {
  std::vector<CudaAdam> on_gpu;
  for (const AdamWUpdate& update : updates) {
    const Arguments arguments("adamw_update");
    check_step(arguments, update.options);
    const bool rounds = update.options.rounding != 0;
    Common c = common(arguments, update.tensors, /*needs_gradient=*/true, rounds);
    c.loop.first = stream(arguments, update.m, "m", c.count, Takes::kWideOrBfloat16, c.wide);
    c.loop.second = stream(arguments, update.v, "v", c.count, rounds ? Takes::kWideOrBfloat16 : Takes::kWide, c.wide);
    const AdamNumbers numbers = adam_numbers(update.options);
    if (arguments.on_gpu()) {
      on_gpu.push_back({c.loop, numbers, c.count});
      continue;
    }
    const auto loop = loops(c.wide).adam;
    each_block(c.count, [&](std::int64_t, std::int64_t begin, std::int64_t end) { loop(c.loop, numbers, begin, end); });
  }
  if (on_gpu.empty()) return;
  check_cuda(cuda().adam(on_gpu.data(), static_cast<std::int64_t>(on_gpu.size()), cuda_stream()), "adamw_update");
}

NormPair lamb_direction(const UpdateTensors& tensors, at::Tensor& m, at::Tensor& v, at::Tensor& update,
                        const AdamW& options) {
  const Arguments arguments("lamb_direction");
  check_step(arguments, options);
  Common c = rounding_common(arguments, tensors);
  c.loop.first = stream(arguments, m, "m", c.count, Takes::kWideOrBfloat16, c.wide);
  c.loop.second = stream(arguments, v, "v", c.count, Takes::kWide, c.wide);
  c.loop.update = stream(arguments, update, "update", c.count, Takes::kWide, c.wide);
  AdamNumbers numbers = adam_numbers(options);
  numbers.rounding = 0;
  numbers.decay = options.weight_decay;
  numbers.rate = 1 / (1 - std::pow(options.beta1, static_cast<double>(options.step)));
  if (arguments.on_gpu()) {
    check_cuda(cuda().lamb(c.loop, numbers, c.count, cuda_stream()), "lamb_direction");
    const std::array<CudaSquares, 2> both{CudaSquares{c.loop.weight, c.count}, CudaSquares{c.loop.update, c.count}};
    const std::vector<double> sums = gpu_squares(both, tensors.weight);
    return {.weight_squared = sums[0], .update_squared = sums[1]};
  }
  std::vector<double> weights(static_cast<std::size_t>((c.count + kUpdateBlock - 1) / kUpdateBlock)),
      updates(weights.size());
  const auto loop = loops(c.wide).lamb;
  each_block(c.count, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
    double squares[2];
    loop(c.loop, numbers, begin, end, squares);
    weights[static_cast<std::size_t>(block)] = squares[0];
    updates[static_cast<std::size_t>(block)] = squares[1];
  });
  return {.weight_squared = tree_sum(std::move(weights)), .update_squared = tree_sum(std::move(updates))};
}

double lamb_ratio(const NormPair& norms, double low, double high) {
  const double phi = std::clamp(std::sqrt(norms.weight_squared), low, high);
  return phi == 0 || norms.update_squared == 0 ? 1 : phi / std::sqrt(norms.update_squared);
}

void apply_direction(const UpdateTensors& tensors, const at::Tensor& update, double rate) {
  const Arguments arguments("apply_direction");
  Common c = rounding_common(arguments, tensors, /*needs_gradient=*/false);
  c.loop.update = stream(arguments, update, "update", c.count, Takes::kWide, c.wide);
  if (arguments.on_gpu()) return check_cuda(cuda().apply(c.loop, rate, c.count, cuda_stream()), "apply_direction");
  const auto loop = loops(c.wide).apply;
  each_block(c.count, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    loop(c.loop, rate, tensors.rounding, begin, end);
  });
}

void store_rounded(at::Tensor& weight, const at::Tensor& wide, std::uint64_t rounding) {
  const Arguments arguments("store_rounded");
  if (arguments.element(weight, "weight") != Element::kBfloat16 || !weight.is_contiguous() || !weight.is_cpu())
    arguments.refuse(fmt::format("{} must be contiguous bfloat16 on the CPU", describe(weight, "weight")));
  const Stream from = stream(arguments, wide, "wide", weight.numel(), Takes::kWide, Element::kFloat);
  auto* to = static_cast<std::uint16_t*>(weight.mutable_data_ptr());
  each_block(weight.numel(), [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint64_t chance = rounding_bits(rounding, static_cast<std::uint64_t>(i)) >> kWeightChance;
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<const float*>(from.data)[i]);
      to[i] = static_cast<std::uint16_t>(rounded_bits(bits, static_cast<std::uint32_t>(chance)) >> 16);
    }
  });
}

NormPair lars_norms(const UpdateTensors& tensors) {
  const Arguments arguments("lars_norms");
  const Common c = rounding_common(arguments, tensors);
  if (arguments.on_gpu()) {
    const std::array<CudaSquares, 2> both{CudaSquares{c.loop.weight, c.count}, CudaSquares{c.loop.gradient, c.count}};
    const std::vector<double> sums = gpu_squares(both, tensors.weight);
    return {.weight_squared = sums[0], .update_squared = sums[1] * tensors.gradient_scale * tensors.gradient_scale};
  }
  const double gradient = squares_of(c.loop.gradient, c.wide, c.count);
  return {.weight_squared = squares_of(c.loop.weight, c.wide, c.count),
          .update_squared = gradient * tensors.gradient_scale * tensors.gradient_scale};
}

double lars_ratio(const NormPair& norms, const Lars& options) {
  const double weight = std::sqrt(norms.weight_squared), gradient = std::sqrt(norms.update_squared);
  if (weight == 0 || gradient == 0) return 1;
  return options.coefficient * weight / (gradient + options.weight_decay * weight);
}

void lars_update(const UpdateTensors& tensors, at::Tensor& velocity, double ratio, const Lars& options) {
  const Arguments arguments("lars_update");
  Common c = rounding_common(arguments, tensors);
  c.loop.first = stream(arguments, velocity, "velocity", c.count, Takes::kWideOrBfloat16, c.wide);
  const LarsNumbers numbers{
      .rate = options.learning_rate * ratio, .decay = options.weight_decay, .momentum = options.momentum};
  if (arguments.on_gpu()) return check_cuda(cuda().lars(c.loop, numbers, c.count, cuda_stream()), "lars_update");
  const auto loop = loops(c.wide).lars;
  each_block(c.count, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    loop(c.loop, numbers, tensors.rounding, begin, end);
  });
}

double sum_of_squares(const at::Tensor& tensor) {
  const at::Tensor* const one = &tensor;
  return sums_of_squares({&one, 1})[0];
}

std::vector<double> sums_of_squares(std::span<const at::Tensor* const> tensors) {
  std::vector<double> sums;
  std::vector<CudaSquares> on_gpu;
  for (const at::Tensor* tensor : tensors) {
    bool there = false;
    const CudaSquares call = squares_call(*tensor, there);
    if (there) {
      on_gpu.push_back(call);
    } else {
      sums.push_back(squares_of(call.numbers, sums_of(call.numbers.element), call.count));
    }
  }
  if (on_gpu.empty()) return sums;
  if (!sums.empty()) throw ConfigError("sums_of_squares: some tensors are on the CPU and some on a GPU");
  return gpu_squares(on_gpu, *tensors[0]);
}

at::Tensor sums_of_squares_on_device(std::span<const at::Tensor* const> tensors) {
  std::vector<CudaSquares> calls;
  for (const at::Tensor* tensor : tensors) {
    bool there = false;
    calls.push_back(squares_call(*tensor, there));
    if (!there) throw ConfigError("sums_of_squares_on_device: a tensor is not on a GPU");
  }
  return start_squares(calls, *tensors[0]);
}

}  // namespace trireme::kernels
