#include "trireme/kernels/image_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var_mean.h>
#include <fmt/format.h>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_image_table.h"

namespace trireme::kernels {
namespace {

constexpr auto kImageFormat = at::MemoryFormat::ChannelsLast;

void check_channels_last(const Arguments& arguments, const at::Tensor& image, const char* name) {
  if (!fits_image_ops(image))
    arguments.refuse(fmt::format("{} must be an image on a GPU, channels last, with channels in steps of 16 bytes",
                                 describe(image, name)));
}

/// Null where it is undefined; else of x's shape and type.
const void* image_like(const Arguments& arguments, const at::Tensor& image, const at::Tensor& x, const char* name) {
  if (!image.defined()) return nullptr;
  check_channels_last(arguments, image, name);
  if (image.sizes() != x.sizes() || image.scalar_type() != x.scalar_type())
    arguments.refuse(fmt::format("{} is not like {}", describe(image, name), describe(x, "x")));
  return image.const_data_ptr();
}

CudaImageShape image_shape(const Arguments& arguments, const at::Tensor& x) {
  return {.rows = x.numel() / x.size(1), .channels = x.size(1), .element = arguments.element(x, "x")};
}

CudaBatchNorm norm_call(const Arguments& arguments, const BatchNorm& norm) {
  check_channels_last(arguments, norm.x, "x");
  const std::int64_t channels = norm.x.size(1);
  for (const at::Tensor* one : {&norm.scale, &norm.shift}) {
    if (one->numel() != channels || !one->is_contiguous() || one->scalar_type() != norm.x.scalar_type())
      arguments.refuse(fmt::format("{} does not fit {}", describe(*one, "scale or shift"), describe(norm.x, "x")));
  }
  return {.x = norm.x.const_data_ptr(),
          .mean = norm.mean.const_data_ptr<float>(),
          .rstd = norm.rstd.const_data_ptr<float>(),
          .scale = norm.scale.const_data_ptr(),
          .shift = norm.shift.const_data_ptr()};
}

at::Tensor float_room(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions(at::kFloat).device(x.device()));
}
at::Tensor norm_sums_room(const at::Tensor& x) { return float_room(x, {2 * kCudaImageBlocks, x.size(1)}); }

at::Tensor sign_bits(const at::Tensor& x) {
  const std::int64_t vector = 16 / static_cast<std::int64_t>(x.element_size());
  return at::empty({x.numel() / vector}, at::TensorOptions(at::kByte).device(x.device()));
}

CudaMaxPool max_pool_call(const at::Tensor& in, const at::Tensor& out, const at::Tensor& winner, const PoolShape& pool,
                          const Arguments& arguments) {
  CudaMaxPool call{.x = in.const_data_ptr(),
                   .y = out.mutable_data_ptr(),
                   .winner = static_cast<std::uint8_t*>(const_cast<void*>(winner.const_data_ptr())),
                   .samples = in.size(0),
                   .channels = in.size(1),
                   .element = arguments.element(in, "x")};
  for (int i = 0; i < 2; ++i) {
    call.kernel[i] = static_cast<std::int32_t>(pool.kernel[i]);
    call.stride[i] = static_cast<std::int32_t>(pool.stride[i]);
    call.padding[i] = static_cast<std::int32_t>(pool.padding[i]);
  }
  return call;
}

// ---- by the tensor library

constexpr std::int64_t kPixelAxes[] = {0, 2, 3};

at::Tensor wide_image(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }
at::Tensor by_channel(const at::Tensor& numbers, const at::Tensor& like) {
  return numbers.to(like.scalar_type()).view({1, -1, 1, 1});
}

at::Tensor plain_standardised(const BatchNorm& norm) {
  const at::Tensor x = wide_image(norm.x);
  return (x - by_channel(norm.mean, x)) * by_channel(norm.rstd, x);
}
at::Tensor plain_norm(const BatchNorm& norm) {
  const at::Tensor x = plain_standardised(norm);
  return x * by_channel(norm.scale, x) + by_channel(norm.shift, x);
}

NormedImage plain_apply(const BatchNorm& norm, const BesideNorm& beside) {
  at::Tensor y = plain_norm(norm);
  if (beside.other) y = y + plain_norm(*beside.other);
  if (!beside.other && beside.add.defined()) y = y + wide_image(beside.add);
  if (beside.relu) y = at::relu(y);
  return {y.to(norm.x.scalar_type()), beside.keeps_signs ? y.gt(0) : at::Tensor()};
}

at::Tensor plain_g(const BatchNorm& norm, const NormGradient& gradient) {
  at::Tensor g = wide_image(gradient.dy);
  if (gradient.more.defined()) g = g + wide_image(gradient.more);
  if (gradient.positive.defined()) g = g * gradient.positive;
  return gradient.relu_of_norm ? g * plain_norm(norm).gt(0) : g;
}

BatchNormSums plain_sums(const BatchNorm& norm, const NormGradient& gradient) {
  const at::Tensor g = plain_g(norm, gradient);
  const at::Tensor sums = at::stack({at::sum(g, kPixelAxes), at::sum(g * plain_standardised(norm), kPixelAxes)});
  const auto type = norm.x.scalar_type();
  return {sums, sums[1].to(type), sums[0].to(type), gradient.wants_g ? g.to(type) : at::Tensor()};
}

at::Tensor plain_gradient(const BatchNorm& norm, const at::Tensor& dy, const BatchNormSums& sums, bool relu_of_norm) {
  const at::Tensor g = plain_g(norm, {.dy = dy, .relu_of_norm = relu_of_norm}), x = plain_standardised(norm);
  const at::Tensor means = sums.sums / (static_cast<double>(norm.x.numel()) / static_cast<double>(norm.x.size(1)));
  const at::Tensor centred = g - by_channel(means[0], g) - x * by_channel(means[1], g);
  return (centred * by_channel(norm.scale, g) * by_channel(norm.rstd, g)).to(norm.x.scalar_type());
}

}  // namespace

bool fits_image_ops(const at::Tensor& image) {
  const auto type = image.scalar_type();
  return image.is_cuda() && image.dim() == 4 && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
         image.numel() > 0 && image.is_contiguous(kImageFormat) &&
         image.size(1) * static_cast<std::int64_t>(image.element_size()) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(image.const_data_ptr()) % 16 == 0;
}

BatchNorm batch_norm_of(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double epsilon) {
  if (!fits_image_ops(x)) {
    const auto [variance, mean] = at::var_mean(wide_image(x), kPixelAxes, /*unbiased=*/false);
    return {x, scale, shift, mean, (variance + epsilon).rsqrt()};
  }
  const Arguments arguments("batch_norm_of");
  BatchNorm norm{x, scale, shift, float_room(x, {x.size(1)}), float_room(x, {x.size(1)})};
  norm_call(arguments, norm);  // its checks
  const at::Tensor room = norm_sums_room(x);
  check_cuda(cuda_images().batch_norm_statistics({.x = x.const_data_ptr(),
                                                  .partial = room.mutable_data_ptr<float>(),
                                                  .mean = norm.mean.mutable_data_ptr<float>(),
                                                  .rstd = norm.rstd.mutable_data_ptr<float>(),
                                                  .epsilon = epsilon},
                                                 image_shape(arguments, x), cuda_stream()),
             "batch norm's statistics");
  return norm;
}

NormedImage apply_batch_norm(const BatchNorm& norm, const BesideNorm& beside) {
  if (!fits_image_ops(norm.x)) return plain_apply(norm, beside);
  const Arguments arguments("apply_batch_norm");
  CudaBatchNormApply call{.norm = norm_call(arguments, norm), .relu = beside.relu};
  if (beside.other) {
    image_like(arguments, beside.other->x, norm.x, "the other norm's x");
    call.other = norm_call(arguments, *beside.other);
  } else {
    call.add = image_like(arguments, beside.add, norm.x, "add");
  }
  NormedImage out{.y = at::empty_like(norm.x, kImageFormat), .positive = {}};
  call.y = out.y.mutable_data_ptr();
  if (beside.keeps_signs) {
    out.positive = sign_bits(norm.x);
    call.positive = out.positive.mutable_data_ptr<std::uint8_t>();
  }
  check_cuda(cuda_images().batch_norm_apply(call, image_shape(arguments, norm.x), cuda_stream()), "batch norm");
  return out;
}

BatchNormSums batch_norm_sums(const BatchNorm& norm, const NormGradient& gradient) {
  if (!fits_image_ops(norm.x)) return plain_sums(norm, gradient);
  const Arguments arguments("batch_norm_sums");
  const at::Tensor& x = norm.x;
  const at::Tensor room = norm_sums_room(x);
  BatchNormSums out{.sums = float_room(x, {2, x.size(1)}),
                    .dscale = at::empty_like(norm.scale),
                    .dshift = at::empty_like(norm.shift),
                    .g = gradient.wants_g ? at::empty_like(x, kImageFormat) : at::Tensor()};
  CudaBatchNormSums call{.norm = norm_call(arguments, norm),
                         .dy = image_like(arguments, gradient.dy, x, "dy"),
                         .more = image_like(arguments, gradient.more, x, "the other summand of dy"),
                         .relu_of_norm = gradient.relu_of_norm,
                         .g = gradient.wants_g ? out.g.mutable_data_ptr() : nullptr,
                         .partial = room.mutable_data_ptr<float>(),
                         .sums = out.sums.mutable_data_ptr<float>(),
                         .dscale = out.dscale.mutable_data_ptr(),
                         .dshift = out.dshift.mutable_data_ptr()};
  if (gradient.positive.defined()) call.positive = gradient.positive.const_data_ptr<std::uint8_t>();
  check_cuda(cuda_images().batch_norm_sums(call, image_shape(arguments, x), cuda_stream()), "batch norm's sums");
  return out;
}

at::Tensor batch_norm_gradient(const BatchNorm& norm, const at::Tensor& dy, const BatchNormSums& sums,
                               bool relu_of_norm) {
  if (!fits_image_ops(norm.x)) return plain_gradient(norm, dy, sums, relu_of_norm);
  const Arguments arguments("batch_norm_gradient");
  at::Tensor dx = at::empty_like(norm.x, kImageFormat);
  check_cuda(cuda_images().batch_norm_gradient({.norm = norm_call(arguments, norm),
                                                .dy = image_like(arguments, dy, norm.x, "dy"),
                                                .relu_of_norm = relu_of_norm,
                                                .sums = sums.sums.const_data_ptr<float>(),
                                                .dx = dx.mutable_data_ptr()},
                                               image_shape(arguments, norm.x), cuda_stream()),
             "batch norm's gradient");
  return dx;
}

std::pair<at::Tensor, at::Tensor> max_pool(const at::Tensor& x, const PoolShape& pool, std::int64_t out_height,
                                           std::int64_t out_width) {
  const Arguments arguments("max_pool");
  check_channels_last(arguments, x, "x");
  at::Tensor y = at::empty({x.size(0), x.size(1), out_height, out_width}, x.options(), kImageFormat);
  at::Tensor winner = at::empty_like(y, y.options().dtype(at::kByte), kImageFormat);
  CudaMaxPool call = max_pool_call(x, y, winner, pool, arguments);
  call.height = x.size(2), call.width = x.size(3), call.out_height = out_height, call.out_width = out_width;
  check_cuda(cuda_images().max_pool(call, cuda_stream()), "max pooling");
  return {y, winner};
}

at::Tensor max_pool_backward(const at::Tensor& dy, const at::Tensor& winner, const PoolShape& pool, std::int64_t height,
                             std::int64_t width) {
  const Arguments arguments("max_pool_backward");
  check_channels_last(arguments, dy, "dy");
  if (winner.sizes() != dy.sizes() || winner.scalar_type() != at::kByte || !winner.is_contiguous(kImageFormat))
    arguments.refuse(fmt::format("{} is not like dy", describe(winner, "winner")));
  at::Tensor dx = at::empty({dy.size(0), dy.size(1), height, width}, dy.options(), kImageFormat);
  CudaMaxPool call = max_pool_call(dy, dx, winner, pool, arguments);
  call.height = height, call.width = width, call.out_height = dy.size(2), call.out_width = dy.size(3);
  check_cuda(cuda_images().max_pool_backward(call, cuda_stream()), "max pooling's gradient");
  return dx;
}

}  // namespace trireme::kernels
