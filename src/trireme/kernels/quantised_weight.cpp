#include "trireme/kernels/quantised_weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

/// Where all weights are 0 any scale will do, but 0 cannot be divided by.
at::Tensor not_zero(const at::Tensor& scales) { return at::where(scales == 0, at::ones_like(scales), scales); }

QuantisedWeight to_int8(const at::Tensor& weight) {
  const at::Tensor scales = not_zero(at::amax(at::abs(weight), {1}, /*keepdim=*/true) / 127.0F);
  return {.format = WeightFormat::kInt8,
          .rows = weight.size(0),
          .columns = weight.size(1),
          .group = weight.size(1),
          .values = at::clamp(at::round(weight / scales), -127, 127).to(at::kChar).contiguous(),
          .scales = scales.contiguous()};
}

QuantisedWeight to_e4m3(const at::Tensor& weight) {
  const at::Tensor scales = not_zero(at::amax(at::abs(weight), {1}, /*keepdim=*/true) / 448.0F);
  return {.format = WeightFormat::kE4m3,
          .rows = weight.size(0),
          .columns = weight.size(1),
          .group = weight.size(1),
          .values = at::clamp(weight / scales, -448, 448).to(at::kFloat8_e4m3fn).contiguous(),
          .scales = scales.contiguous()};
}

/// Numbers of float16, as published files keep them, none below what it was: codes reach as far as before.
at::Tensor as_half(const at::Tensor& scales) {
  constexpr float kAbove = 1.0F + 0x1p-10F, kLeast = 0x1p-24F;
  return at::clamp_min((scales * kAbove).to(at::kHalf).to(at::kFloat), kLeast);
}

QuantisedWeight to_int4(const at::Tensor& weight, const QuantiseWeight& how) {
  const std::int64_t rows = weight.size(0), columns = weight.size(1), groups = columns / how.group;
  const at::Tensor grouped = weight.view({rows, groups, how.group});
  at::Tensor scales, zeros;
  if (how.symmetric) {
    // q - 8 is in [-8, 7]; the larger side decides, so that nothing is cut off.
    const at::Tensor least = at::amin(grouped, {2}), most = at::amax(grouped, {2});
    scales = not_zero(at::where(-least / 8.0F > most / 7.0F, -least / 8.0F, most / 7.0F));
    scales = as_half(scales);
    zeros = at::full_like(scales, 8.0);
  } else {
    const at::Tensor least = at::clamp_max(at::amin(grouped, {2}), 0), most = at::clamp_min(at::amax(grouped, {2}), 0);
    scales = not_zero((most - least) / 15.0F);
    scales = as_half(scales);
    zeros = at::clamp(at::round(-least / scales), 0, 15);
  }
  const at::Tensor codes = at::clamp(at::round(grouped / scales.unsqueeze(2)) + zeros.unsqueeze(2), 0, 15)
                               .to(at::kByte)
                               .view({rows, columns / 2, 2});
  return {.format = WeightFormat::kInt4,
          .rows = rows,
          .columns = columns,
          .group = how.group,
          .values = (codes.select(2, 0) + codes.select(2, 1) * 16).to(at::kByte).contiguous(),
          .scales = scales.contiguous(),
          .zeros = zeros.contiguous()};
}

}  // namespace

QuantisedWeight quantise_weight(const at::Tensor& weight, const QuantiseWeight& how) {
  TRIREME_CHECK(weight.dim() == 2, "a weight of {} dimensions", weight.dim());
  const at::Tensor floats = weight.to(at::kFloat).contiguous();
  if (how.format == WeightFormat::kInt8) return to_int8(floats);
  if (how.format == WeightFormat::kE4m3) return to_e4m3(floats);
  if (how.group <= 0 || how.group % 2 != 0 || weight.size(1) % how.group != 0) {
    throw ConfigError(
        fmt::format("groups of {} do not divide the {} inputs of a weight, in even numbers", how.group, weight.size(1)),
        "give a group that does, such as 32 or 64");
  }
  return to_int4(floats, how);
}

at::Tensor dequantise_weight(const QuantisedWeight& weight) {
  if (weight.format != WeightFormat::kInt4) return weight.values.to(at::kFloat) * weight.scales;
  const at::Tensor codes = at::stack({at::bitwise_and(weight.values, 15), weight.values.__rshift__(4)}, 2)
                               .view({weight.rows, weight.columns / weight.group, weight.group})
                               .to(at::kFloat);
  return ((codes - weight.zeros.unsqueeze(2)) * weight.scales.unsqueeze(2)).view({weight.rows, weight.columns});
}

}  // namespace trireme::kernels
