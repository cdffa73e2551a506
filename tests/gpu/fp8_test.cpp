// 8-bit products beside the same numbers rounded by hand, and beside exact products.
#include "trireme/kernels/fp8.h"

#include <ATen/ops/mm.h>

#include "tests/gpu/support.h"
#include "tests/train/support.h"

namespace trireme::gpu {
namespace {

using kernels::Fp8Format;
using kernels::Fp8Matrix;
using kernels::Fp8Scaling;

double most_of(Fp8Format format) { return format == Fp8Format::kE4m3 ? 448 : 57344; }

/// Scales as [n, k], one for each number.
at::Tensor spread(const Fp8Matrix& matrix) {
  const std::int64_t n = matrix.values.size(0), k = matrix.values.size(1);
  const at::Tensor scales = matrix.scales.cpu().to(at::kDouble);
  if (matrix.scaling == Fp8Scaling::kTensor) return scales.expand({n, k});
  if (matrix.scaling == Fp8Scaling::kLines) return scales.t().repeat_interleave(128, 1).narrow(1, 0, k);
  return scales.narrow(1, 0, (k + 127) / 128).repeat_interleave(128, 0).repeat_interleave(128, 1);
}
at::Tensor numbers_of(const Fp8Matrix& matrix) {
  return matrix.values.to(at::kFloat).cpu().to(at::kDouble) * spread(matrix);
}

/// The largest number of what each scale covers, as [n, k].
at::Tensor largest(const at::Tensor& x, Fp8Scaling scaling) {
  if (scaling == Fp8Scaling::kTensor) return x.abs().max().expand(x.sizes());
  const std::int64_t n = x.size(0), k = x.size(1);
  const at::Tensor lines = x.abs().view({n, k / 128, 128}).amax(2);
  if (scaling == Fp8Scaling::kLines) return lines.repeat_interleave(128, 1);
  return lines.view({n / 128, 128, k / 128}).amax(1).repeat_interleave(128, 0).repeat_interleave(128, 1);
}

TEST(GpuFp8, RoundsToTheNearestOfItsScale) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto scaling : {Fp8Scaling::kTensor, Fp8Scaling::kLines, Fp8Scaling::kTiles}) {
      for (const auto format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
        for (const auto& [n, m] : {std::pair{128, 256}, {384, 128}, {1024, 640}}) {
          SCOPED_TRACE(fmt::format("{} x {}, scaling {}", n, m, static_cast<int>(scaling)));
          // An outlier in one corner, zeros in another block.
          at::Tensor x = normal_tensor({n, m}, at::kDouble, "x").to(type);
          x[1][2] = 1000;
          x.narrow(0, n - 128, 128).narrow(1, m - 128, 128).zero_();
          const auto [rows, columns] = kernels::to_fp8(x.to(gpu()), format, scaling, true, true);
          const double step = format == Fp8Format::kE4m3 ? 1.0 / 16 : 1.0 / 8;  // half a step, relative to the number
          const auto check = [&](const Fp8Matrix& matrix, const at::Tensor& exact) {
            const at::Tensor top = largest(exact, scaling), found = numbers_of(matrix);
            // Near zero steps no longer shrink: the smallest is 2^-9 (2^-16) of the format's numbers.
            const at::Tensor tiny = top / most_of(format) * (format == Fp8Format::kE4m3 ? 1.0 / 1024 : 1.0 / 131072);
            const at::Tensor wrong = ((found - exact).abs() > exact.abs() * step + tiny + 1e-12);
            EXPECT_EQ(wrong.sum().item<std::int64_t>(), 0);
            const at::Tensor reach = (spread(matrix) * most_of(format) - top).abs() > top * 1e-5 + (top == 0) * 1e9;
            EXPECT_EQ(reach.sum().item<std::int64_t>(), 0) << "a scale does not bring the largest to the format's";
          };
          check(rows, x.to(at::kDouble));
          check(columns, x.to(at::kDouble).t().contiguous());
        }
      }
    }
  }
}

TEST(GpuFp8, ProductsAreThoseOfTheRoundedNumbers) {
  const at::Tensor a = normal_tensor({256, 384}, at::kFloat, "a").to(gpu()),
                   b = normal_tensor({128, 384}, at::kFloat, "b").to(gpu());
  const auto check = [&](Fp8Scaling of_a, Fp8Scaling of_b, Fp8Format format) {
    const Fp8Matrix left = kernels::to_fp8(a, format, of_a, true, false).rows;
    const Fp8Matrix right = kernels::to_fp8(b, Fp8Format::kE4m3, of_b, true, false).rows;
    const at::Tensor exact = at::mm(numbers_of(left), numbers_of(right).t());
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const at::Tensor found = kernels::fp8_product(left, right, type, /*fast=*/false).cpu().to(at::kDouble);
      const double error = (found - exact).norm().item<double>() / exact.norm().item<double>();
      EXPECT_LT(error, type == at::kFloat ? 2e-3 : 4e-3) << static_cast<int>(of_a) << static_cast<int>(of_b);
      EXPECT_TRUE(same_bits(kernels::fp8_product(left, right, type, false).cpu().to(at::kDouble), found));
      const at::Tensor onto = at::full({256, 128}, 5, a.options().dtype(type)),
                       bias = at::full({128}, 2, onto.options());
      const at::Tensor sum = kernels::fp8_product(left, right, type, false, bias, onto).cpu().to(at::kDouble);
      EXPECT_LT((sum - exact - 7).norm().item<double>() / exact.norm().item<double>(), 6e-3);
    }
  };
  check(Fp8Scaling::kTensor, Fp8Scaling::kTensor, Fp8Format::kE4m3);
  check(Fp8Scaling::kTensor, Fp8Scaling::kTensor, Fp8Format::kE5m2);
  check(Fp8Scaling::kLines, Fp8Scaling::kTiles, Fp8Format::kE4m3);
  check(Fp8Scaling::kLines, Fp8Scaling::kLines, Fp8Format::kE4m3);
}

TEST(GpuFp8, TrainsAsBfloat16DoesToAFewPercent) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kLlama, spec::Precision::kBf16);
  recipe.model.width = 256;
  recipe.model.heads = recipe.model.kv_heads = 4;
  recipe.model.head_size = 64;
  recipe.model.inner = 512;
  recipe.model.positions = 128;
  recipe.data.sequence = 128;
  recipe.batch.size = 8 * 128;
  recipe.optim.learning_rate = 3e-4;
  recipe.run.device = spec::DeviceKind::kCuda;
  const auto losses = [&](spec::Products products) {
    recipe.precision.products = products;
    std::vector<double> out;
    train::with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 60; ++step) out.push_back(trainer.step().loss);
    });
    return out;
  };
  const auto plain = losses(spec::Products::kSame);
  EXPECT_LT(plain.back(), 0.8 * plain.front());
  for (const auto products : {spec::Products::kFp8, spec::Products::kFp8Blocks, spec::Products::kFp8Delayed}) {
    const auto narrow = losses(products);
    EXPECT_NE(narrow.front(), plain.front()) << "nothing was rounded";
    for (std::size_t i = 0; i < plain.size(); i += 10) EXPECT_NEAR(narrow[i], plain[i], 0.05 * plain[i]) << i;
  }
}

/// With a scale that is given numbers are divided by it, and the largest is noted; in the first step they are looked
/// at.
TEST(GpuFp8, ADelayedScaleIsTakenAsItIs) {
  for (const auto format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const auto& [n, m] : {std::pair{128, 256}, {16, 48}, {400, 1040}}) {
      SCOPED_TRACE(fmt::format("{} x {}", n, m));
      at::Tensor x = normal_tensor({n, m}, at::kDouble, "x").to(at::kBFloat16);
      x[1][2] = -50;
      const auto floats = at::TensorOptions(at::kFloat).device(gpu());
      kernels::Fp8Live live{.scale = at::full({1}, 0.02, floats), .amax = at::zeros({1}, floats), .known = true};
      const auto [rows, columns] = kernels::to_fp8(x.to(gpu()), format, Fp8Scaling::kTensor, true, true, &live);
      EXPECT_EQ(live.amax.item<float>(), 50);
      EXPECT_FLOAT_EQ(rows.scales.item<float>(), 0.02F);
      // What lies beyond the format's largest number becomes that.
      const at::Tensor exact = (x.to(at::kDouble) / 0.02).clamp(-most_of(format), most_of(format)) * 0.02;
      const double step = format == Fp8Format::kE4m3 ? 1.0 / 16 : 1.0 / 8;
      const double tiny = 0.02 * (format == Fp8Format::kE4m3 ? 1.0 / 1024 : 1.0 / 131072);
      EXPECT_EQ(((numbers_of(rows) - exact).abs() > exact.abs() * step + tiny + 1e-6).sum().item<std::int64_t>(), 0);
      EXPECT_TRUE(same_bits(numbers_of(columns), numbers_of(rows).t().contiguous()));
      // The largest of several calls stays; the first step's scale comes from the numbers themselves.
      kernels::to_fp8(x.mul(0.5).to(gpu()), format, Fp8Scaling::kTensor, true, false, &live);
      EXPECT_EQ(live.amax.item<float>(), 50);
      live.known = false;
      const auto first = kernels::to_fp8(x.to(gpu()), format, Fp8Scaling::kTensor, true, false, &live);
      EXPECT_FLOAT_EQ(first.rows.scales.item<float>(), static_cast<float>(50 / most_of(format)));
    }
  }
}

TEST(GpuFp8, ScalesAdvanceAsOnTheCpu) {
  at::Tensor here = normal_tensor({700, 3 + 5}, at::kFloat, "table").abs();
  here.select(1, 2).fill_(448);
  here[3][0] = INFINITY;
  here[4][0] = NAN;
  here[5][0] = 0;
  at::Tensor there = here.to(gpu());
  for (std::int64_t step = 0; step < 7; ++step) {
    kernels::fp8_advance(here, step % 5, 2);
    kernels::fp8_advance(there, step % 5, 2);
    EXPECT_TRUE(same_bits(there.cpu(), here));
    const at::Tensor now = normal_tensor({700}, at::kFloat, fmt::format("step {}", step)).abs();
    here.select(1, 0).copy_(now);
    there.select(1, 0).copy_(now);
  }
}

/// Recorded or not, a bias in the product or not: the same bits; and a checkpoint has the scales.
TEST(GpuFp8, DelayedScalesAreTheSameInRecordedSteps) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kGpt2, spec::Precision::kBf16);
  recipe.model.width = 64;
  recipe.model.heads = recipe.model.kv_heads = 4;
  recipe.model.head_size = 16;
  recipe.model.inner = 128;
  recipe.model.positions = 32;
  recipe.data.sequence = 32;
  recipe.batch.size = 8 * 32;
  recipe.train.microbatch = 4;
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.precision.products = spec::Products::kFp8Delayed;
  recipe.precision.fp8_history = 3;
  const auto losses = [&](bool capture) {
    recipe.train.capture = capture;
    std::vector<double> out;
    train::with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      EXPECT_NE(trainer.state().find_value("fp8/scales"), nullptr);
      EXPECT_TRUE(!capture || trainer.run_ahead());
      for (int step = 0; step < 9; ++step) out.push_back(trainer.step().loss);
    });
    return out;
  };
  const auto plain = losses(false);
  EXPECT_EQ(losses(false), plain);
  EXPECT_EQ(losses(true), plain);
}

TEST(GpuFp8, RefusesSizesThatDoNotFit) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kGpt2, spec::Precision::kBf16);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.precision.products = spec::Products::kFp8;
  EXPECT_THAT(kernels::refusal([&] { train::with_trainers(recipe, 1, [](train::Trainer&, comm::Rank&) {}); }),
              testing::HasSubstr("multiples of 16"));
}

}  // namespace
}  // namespace trireme::gpu
