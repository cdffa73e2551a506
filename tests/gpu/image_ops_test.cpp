#include "trireme/kernels/image_ops.h"

#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>

#include "tests/gpu/support.h"

namespace trireme::gpu {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
constexpr double kEps = 1e-5;

Pair image(at::IntArrayRef sizes, at::ScalarType type, std::string_view name, double add = 0) {
  Pair pair = pair_of(normal_tensor(sizes, at::kDouble, name, 1) + add, type);
  pair.gpu = pair.gpu.contiguous(kLast);
  return pair;
}

/// Types that images have; sums of many numbers of both signs cancel.
std::vector<Near> image_types() {
  return {{at::kFloat, 1e-4, 2e-5}, {at::kBFloat16, 0.012, 2e-3}, {at::kHalf, 0.0015, 3e-4}};
}

struct NormOnCpu {
  at::Tensor x, scale, y, mean, rstd;
  NormOnCpu(const at::Tensor& of, const at::Tensor& by, const at::Tensor& shift) : x(of), scale(by) {
    std::tie(y, mean, rstd) = at::native_batch_norm(of, by, shift, {}, {}, true, 0, kEps);
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& g) const {
    return at::native_batch_norm_backward(g, x, scale, {}, {}, mean, rstd, true, kEps, {true, true, true});
  }
};

struct Layer {
  Pair x, scale, shift;
  Layer(at::IntArrayRef sizes, at::ScalarType type, const std::string& name)
      : x(image(sizes, type, name + ".x", 3)),
        scale(pair_of(normal_tensor({sizes[1]}, at::kDouble, name + ".scale", 1), type)),
        shift(pair_of(normal_tensor({sizes[1]}, at::kDouble, name + ".shift", 1), type)) {}
  kernels::BatchNorm there() const { return kernels::batch_norm_of(x.gpu, scale.gpu, shift.gpu, kEps); }
  NormOnCpu here() const { return {x.cpu, scale.cpu, shift.cpu}; }
};

/// Gradients where ReLU's argument is nearly zero depend on the last bit: none of those.
at::Tensor clear_of_zero(const at::Tensor& dy, const at::Tensor& before) { return dy * before.abs().gt(0.05); }

class ImageShapes : public ::testing::TestWithParam<std::vector<std::int64_t>> {};

TEST_P(ImageShapes, BatchNormAndReluEqualTheCpu) {
  for (const Near& near : image_types()) {
    SCOPED_TRACE(c10::toString(near.type));
    const Layer layer(GetParam(), near.type, "a");
    const kernels::BatchNorm norm = layer.there();
    const NormOnCpu cpu = layer.here();
    const kernels::NormedImage out = apply_batch_norm(norm, {.relu = true});
    expect_near({at::relu(cpu.y), out.y}, near, "y", 3);
    const at::Tensor dy = clear_of_zero(image(GetParam(), near.type, "dy").cpu, cpu.y);
    const at::Tensor g = at::threshold_backward(dy, at::relu(cpu.y), 0);
    const auto [dx, dscale, dshift] = cpu.backward(g);
    const at::Tensor dy_there = dy.to(near.type).to(gpu()).contiguous(kLast);
    const kernels::BatchNormSums sums = batch_norm_sums(norm, {.dy = dy_there, .relu_of_norm = true});
    expect_near({dscale, sums.dscale}, near, "dscale", 3);
    expect_near({dshift, sums.dshift}, near, "dshift", 3);
    expect_near({dx, batch_norm_gradient(norm, dy_there, sums, true)}, near, "dx", 3);
  }
}

TEST_P(ImageShapes, ResidualSumsEqualTheCpu) {
  for (const bool two_norms : {false, true}) {
    for (const Near& near : image_types()) {
      SCOPED_TRACE(c10::toString(near.type));
      const Layer first(GetParam(), near.type, "a"), second(GetParam(), near.type, "b");
      const kernels::BatchNorm norm = first.there(), other = second.there();
      const NormOnCpu cpu = first.here(), cpu_other = second.here();
      const at::Tensor before = cpu.y + (two_norms ? cpu_other.y : second.x.cpu);
      const kernels::NormedImage out = apply_batch_norm(norm, {.add = two_norms ? at::Tensor() : second.x.gpu,
                                                               .other = two_norms ? &other : nullptr,
                                                               .relu = true,
                                                               .keeps_signs = true});
      expect_near({at::relu(before), out.y}, near, "y", 3);
      const at::Tensor dy = clear_of_zero(image(GetParam(), near.type, "dy").cpu, before),
                       more = clear_of_zero(image(GetParam(), near.type, "more").cpu, before);
      const auto there = [&](const at::Tensor& t) { return t.to(near.type).to(gpu()).contiguous(kLast); };
      const kernels::BatchNormSums sums =
          batch_norm_sums(norm, {.dy = there(dy), .more = there(more), .positive = out.positive, .wants_g = true});
      const at::Tensor g = at::threshold_backward(dy + more, at::relu(before), 0);
      const auto [dx, dscale, dshift] = cpu.backward(g);
      expect_near({g, sums.g}, near, "g", 3);
      expect_near({dscale, sums.dscale}, near, "dscale", 3);
      expect_near({dshift, sums.dshift}, near, "dshift", 3);
      expect_near({dx, batch_norm_gradient(norm, sums.g, sums, false)}, near, "dx", 3);
    }
  }
}

TEST_P(ImageShapes, MaxPoolingEqualsTheCpu) {
  const std::vector<std::int64_t> sizes = GetParam();
  for (const std::int64_t stride : {1, 2, 3}) {
    for (const Near& near : image_types()) {
      SCOPED_TRACE(c10::toString(near.type));
      const Pair x = image(sizes, near.type, "x");
      const auto [y, index] = at::max_pool2d_with_indices(x.cpu, {3, 3}, {stride, stride}, {1, 1}, {1, 1});
      const kernels::PoolShape pool{.kernel = {3, 3}, .stride = {stride, stride}, .padding = {1, 1}};
      const auto [out, winner] = kernels::max_pool(x.gpu, pool, y.size(2), y.size(3));
      expect_near({y, out}, near, "y");
      const Pair dy = image(y.sizes(), near.type, "dy");
      // Equal numbers of 16 bits have the first of them as their maximum on both sides.
      const at::Tensor dx =
          at::max_pool2d_with_indices_backward(dy.cpu, x.cpu, {3, 3}, {stride, stride}, {1, 1}, {1, 1}, false, index);
      expect_near({dx, kernels::max_pool_backward(dy.gpu, winner, pool, sizes[2], sizes[3])}, near, "dx");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ImageShapes,
    ::testing::Values(std::vector<std::int64_t>{2, 8, 5, 7}, std::vector<std::int64_t>{3, 64, 9, 9},
                      std::vector<std::int64_t>{1, 24, 1, 17}, std::vector<std::int64_t>{4, 256, 14, 14},
                      std::vector<std::int64_t>{2, 2048, 7, 7}, std::vector<std::int64_t>{16, 96, 33, 31}));

TEST(GpuBatchNorm, OfImagesThatLieOtherwiseIsTheTensorLibrarys) {
  const Layer layer({2, 8, 4, 4}, at::kFloat, "a");
  const at::Tensor x = layer.x.gpu.contiguous();
  EXPECT_FALSE(kernels::fits_image_ops(x));
  EXPECT_TRUE(kernels::fits_image_ops(x.contiguous(kLast)));
  const kernels::BatchNorm norm = kernels::batch_norm_of(x, layer.scale.gpu, layer.shift.gpu, kEps);
  expect_near({layer.here().y, apply_batch_norm(norm, {}).y}, {at::kFloat, 1e-4, 2e-5}, "y");
}

}  // namespace
}  // namespace trireme::gpu
