// FP8 GEMMs beside the same numbers quantised by hand, and beside exact GEMMs.
#include "trireme/kernels/fp8.h"

#include <ATen/ops/mm.h>

#include <nlohmann/json.hpp>

#include "tests/gpu/support.h"
#include "tests/kernels/fp8_reference.h"
#include "tests/train/support.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/gemm.h"

namespace trireme::gpu {
namespace {

using kernels::Fp8Format;
using kernels::Fp8Matrix;
using kernels::Fp8Scaling;

using kernels::numbers_of;

double most_of(Fp8Format format) { return kernels::fp8_largest(format); }

TEST(GpuFp8, RoundsToTheNearestOfItsScale) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto scaling : {Fp8Scaling::kTensor, Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128}) {
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
            const at::Tensor top = kernels::largest_in_block(exact, scaling), found = numbers_of(matrix);
            // Near zero steps no longer shrink: the smallest is 2^-9 (2^-16) of the format's numbers.
            const at::Tensor tiny = top / most_of(format) * (format == Fp8Format::kE4m3 ? 1.0 / 1024 : 1.0 / 131072);
            const at::Tensor wrong = ((found - exact).abs() > exact.abs() * step + tiny + 1e-12);
            EXPECT_EQ(wrong.sum().item<std::int64_t>(), 0);
            const at::Tensor reach =
                (kernels::spread_scales(matrix) * most_of(format) - top).abs() > top * 1e-5 + (top == 0) * 1e9;
            EXPECT_EQ(reach.sum().item<std::int64_t>(), 0) << "a scale does not bring the largest to the format's";
          };
          check(rows, x.to(at::kDouble));
          check(columns, x.to(at::kDouble).t().contiguous());
        }
      }
    }
  }
}

/// What CI trains with on the CPU is what a GPU has: codes and scales to the bit.
TEST(GpuFp8, CodesAndScalesAreThoseOfTheCpu) {
  const auto same = [](const Fp8Matrix& there, const Fp8Matrix& here) {
    EXPECT_TRUE(same_bits(there.values.view(at::kByte).cpu(), here.values.view(at::kByte)));
    EXPECT_TRUE(same_bits(there.scales.cpu(), here.scales));
  };
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    at::Tensor x = normal_tensor({384, 256}, at::kDouble, "x").to(type);
    x[1][2] = 1000;
    x[300][5] = -0.0;
    for (const auto scaling : {Fp8Scaling::kTensor, Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128}) {
      for (const auto format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
        SCOPED_TRACE(fmt::format("{}, scaling {}", c10::toString(type), static_cast<int>(scaling)));
        const auto here = kernels::to_fp8(x, format, scaling, true, true),
                   there = kernels::to_fp8(x.to(gpu()), format, scaling, true, true);
        same(there.rows, here.rows);
        same(there.columns, here.columns);
      }
    }
  }
}

TEST(GpuFp8, GemmsAreThoseOfTheQuantisedNumbers) {
  const at::Tensor a = normal_tensor({256, 384}, at::kFloat, "a").to(gpu()),
                   b = normal_tensor({128, 384}, at::kFloat, "b").to(gpu());
  const auto check = [&](Fp8Scaling of_a, Fp8Scaling of_b, Fp8Format format) {
    const Fp8Matrix left = kernels::to_fp8(a, format, of_a, true, false).rows;
    const Fp8Matrix right = kernels::to_fp8(b, Fp8Format::kE4m3, of_b, true, false).rows;
    const at::Tensor exact = at::mm(numbers_of(left), numbers_of(right).t());
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      kernels::Gemm call{.a = left, .b = right, .transpose_b = true, .out_type = type};
      const auto run = [&] { return kernels::gemm(call).out.cpu().to(at::kDouble); };
      const at::Tensor found = run();
      const double norm = exact.norm().item<double>(), error = (found - exact).norm().item<double>() / norm;
      EXPECT_LT(error, type == at::kFloat ? 2e-3 : 4e-3) << static_cast<int>(of_a) << static_cast<int>(of_b);
      EXPECT_TRUE(same_bits(run(), found));
      call.epilogue.residual = at::full({256, 128}, 5, a.options().dtype(type));
      call.epilogue.bias = at::full({128}, 2, call.epilogue.residual.options());
      EXPECT_LT((run() - exact - 7).norm().item<double>() / norm, 6e-3);
      // As a weight's gradient: into what is there, of any type.
      kernels::Gemm grad{.a = left, .b = right, .transpose_b = true, .accumulate = true};
      grad.out = at::full({256, 128}, 3, call.epilogue.residual.options());
      EXPECT_LT((kernels::gemm(grad).out.cpu().to(at::kDouble) - exact - 3).norm().item<double>() / norm, 6e-3);
    }
  };
  check(Fp8Scaling::kTensor, Fp8Scaling::kTensor, Fp8Format::kE4m3);
  check(Fp8Scaling::kTensor, Fp8Scaling::kTensor, Fp8Format::kE5m2);
  check(Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128, Fp8Format::kE4m3);
  check(Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks1x128, Fp8Format::kE4m3);
}

TEST(GpuFp8, TrainsAsBfloat16DoesToAFewPercent) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kLlama, spec::Precision::kBf16);
  recipe.model.hidden_size = 256;
  recipe.model.num_heads = recipe.model.num_kv_heads = 4;
  recipe.model.head_dim = 64;
  recipe.model.ffn_size = 512;
  recipe.model.max_seq_len = 128;
  recipe.data.seq_len = 128;
  recipe.batch.global_batch_tokens = 8 * 128;
  recipe.optim.learning_rate = 3e-4;
  recipe.run.device = spec::DeviceKind::kCuda;
  const auto losses = [&](spec::GemmPrecision gemm) {
    recipe.precision.gemm = gemm;
    std::vector<double> out;
    train::with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 60; ++step) out.push_back(trainer.step().loss);
    });
    return out;
  };
  const auto plain = losses(spec::GemmPrecision::kSame);
  EXPECT_LT(plain.back(), 0.8 * plain.front());
  for (const auto gemm :
       {spec::GemmPrecision::kFp8, spec::GemmPrecision::kFp8Blocks, spec::GemmPrecision::kFp8Delayed}) {
    const auto narrow = losses(gemm);
    EXPECT_NE(narrow.front(), plain.front()) << "nothing was quantised";
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
      kernels::Fp8DelayedScale device_scalars{
          .scale = at::full({1}, 0.02, floats), .amax = at::zeros({1}, floats), .known = true};
      const auto [rows, columns] =
          kernels::to_fp8(x.to(gpu()), format, Fp8Scaling::kTensor, true, true, &device_scalars);
      EXPECT_EQ(device_scalars.amax.item<float>(), 50);
      EXPECT_FLOAT_EQ(rows.scales.item<float>(), 0.02F);
      // What lies beyond the format's largest number becomes that.
      const at::Tensor exact = (x.to(at::kDouble) / 0.02).clamp(-most_of(format), most_of(format)) * 0.02;
      const double step = format == Fp8Format::kE4m3 ? 1.0 / 16 : 1.0 / 8;
      const double tiny = 0.02 * (format == Fp8Format::kE4m3 ? 1.0 / 1024 : 1.0 / 131072);
      EXPECT_EQ(((numbers_of(rows) - exact).abs() > exact.abs() * step + tiny + 1e-6).sum().item<std::int64_t>(), 0);
      EXPECT_TRUE(same_bits(numbers_of(columns), numbers_of(rows).t().contiguous()));
      // The largest of several calls stays; the first step's scale comes from the numbers themselves.
      kernels::to_fp8(x.mul(0.5).to(gpu()), format, Fp8Scaling::kTensor, true, false, &device_scalars);
      EXPECT_EQ(device_scalars.amax.item<float>(), 50);
      device_scalars.known = false;
      const auto first = kernels::to_fp8(x.to(gpu()), format, Fp8Scaling::kTensor, true, false, &device_scalars);
      EXPECT_FLOAT_EQ(first.rows.scales.item<float>(), static_cast<float>(50 / most_of(format)));
    }
  }
}

/// Quantised as it is made: the bits of what is written first and quantised then, and the same largest numbers.
TEST(GpuFp8, GatedActivationsNeedNotBeWritten) {
  const auto floats = at::TensorOptions(at::kFloat).device(gpu());
  const auto device_scalars = [&](double scale) {
    return kernels::Fp8DelayedScale{
        .scale = at::full({1}, scale, floats), .amax = at::zeros({1}, floats), .known = true};
  };
  const auto same = [](const Fp8Matrix& a, const Fp8Matrix& b, const char* what) {
    EXPECT_TRUE(same_bits(a.values.view(at::kByte).cpu(), b.values.view(at::kByte).cpu())) << what;
    EXPECT_TRUE(same_bits(a.scales.cpu(), b.scales.cpu())) << what;
  };
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto kind : {kernels::Activation::kSilu, kernels::Activation::kGelu, kernels::Activation::kRelu}) {
      for (const auto& [n, m] : {std::pair{128, 256}, {16, 48}, {400, 1040}}) {
        SCOPED_TRACE(fmt::format("{} x {}, {}", n, m, static_cast<int>(kind)));
        const at::Tensor both = normal_tensor({n, 2 * m}, at::kFloat, "both").to(type).to(gpu());
        const at::Tensor dy = normal_tensor({n, m}, at::kFloat, "dy").to(type).to(gpu());
        const at::Tensor gate = both.narrow(1, 0, m), up = both.narrow(1, m, m);
        at::Tensor y = at::empty_like(dy), again = at::empty_like(dy), dboth = at::empty_like(both);
        at::Tensor dgate = dboth.narrow(1, 0, m), dup = dboth.narrow(1, m, m);
        kernels::gated_forward(y, gate, up, kind);
        kernels::gated_backward(dgate, dup, again, dy, gate, up, kind);
        const auto apart = device_scalars(0.01), together = device_scalars(0.01), apart_back = device_scalars(0.0001),
                   together_back = device_scalars(0.0001);
        const auto expected = kernels::to_fp8(y, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, true, &apart);
        const auto found = kernels::gated_to_fp8(gate, up, kind, Fp8Format::kE4m3, true, true, together);
        same(found.rows, expected.rows, "rows");
        same(found.columns, expected.columns, "columns");
        EXPECT_TRUE(same_bits(together.amax.cpu(), apart.amax.cpu()));
        const auto back = kernels::to_fp8(dboth, Fp8Format::kE5m2, Fp8Scaling::kTensor, true, true, &apart_back);
        const auto of_recomputed = device_scalars(0.01);
        const auto made = kernels::gated_backward_to_fp8(dy, gate, up, kind, together_back, of_recomputed);
        same(made.grad.rows, back.rows, "gradient's rows");
        same(made.grad.columns, back.columns, "gradient's columns");
        EXPECT_TRUE(same_bits(together_back.amax.cpu(), apart_back.amax.cpu()));
        const auto written_again = kernels::to_fp8(again, Fp8Format::kE4m3, Fp8Scaling::kTensor, false, true, &apart);
        same(made.recomputed, written_again.columns, "recomputed");
        EXPECT_TRUE(same_bits(of_recomputed.amax.cpu(), apart.amax.cpu()));
      }
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

/// A small model whose sizes FP8 GEMMs take, with delayed scales.
spec::Recipe delayed_recipe(spec::Family family) {
  spec::Recipe recipe = train::small_recipe(family, spec::Precision::kBf16);
  recipe.model.hidden_size = 64;
  recipe.model.num_heads = recipe.model.num_kv_heads = 4;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 128;
  recipe.model.max_seq_len = 32;
  recipe.data.seq_len = 32;
  recipe.batch.global_batch_tokens = 8 * 32;
  recipe.train.micro_batch_size = 4;
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.precision.gemm = spec::GemmPrecision::kFp8Delayed;
  recipe.precision.fp8_history = 3;
  return recipe;
}

/// With CUDA graphs or without, a gate's output written or quantised at once: the same bits; and a checkpoint has the
/// scales.
TEST(GpuFp8, DelayedScalesAreTheSameInCudaGraphs) {
  for (const spec::Family family : {spec::Family::kGpt2, spec::Family::kLlama}) {
    spec::Recipe recipe = delayed_recipe(family);
    const auto losses = [&](bool capture) {
      recipe.train.cuda_graphs = capture;
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
    if (family == spec::Family::kGpt2) continue;
    recipe.train.save_mlp_activations = true;  // what a gate gave is written, and read again in backward
    EXPECT_EQ(losses(false), plain);
    EXPECT_EQ(losses(true), plain);
  }
}

/// Ranks with other tokens, or with parts of the matrices, see different largest numbers, and must scale alike: as one
/// rank does that sees all of them.
TEST(GpuFp8, RanksAgreeOnDelayedScales) {
  constexpr int kSteps = 9;
  struct Course {
    std::vector<double> losses;
    std::vector<nlohmann::ordered_json> scales;  // after each step
  };
  for (const spec::Family family : {spec::Family::kGpt2, spec::Family::kLlama}) {
    spec::Recipe recipe = delayed_recipe(family);
    const auto courses = [&](int ranks, const spec::LayoutConfig& layout) {
      spec::Recipe changed = recipe;
      changed.layout = layout;
      std::vector<Course> out(static_cast<std::size_t>(ranks));
      train::with_trainers(changed, ranks, [&](train::Trainer& trainer, comm::Rank& rank) {
        Course& mine = out[static_cast<std::size_t>(rank.rank())];
        for (int step = 0; step < kSteps; ++step) {
          mine.losses.push_back(trainer.step().loss);
          mine.scales.push_back(trainer.state().value("fp8/scales").get());
        }
      });
      return out;
    };
    const Course one = courses(1, {}).front();
    const std::int64_t width = 3 + recipe.precision.fp8_history;
    const std::pair<const char*, spec::LayoutConfig> layouts[] = {{"copies", {.dp = 2}},
                                                                  {"parts", {.tp = 2}},
                                                                  {"ZeRO 1", {.dp = 2, .zero = 1}},
                                                                  {"ZeRO 2", {.dp = 2, .zero = 2}}};
    for (const auto& [name, layout] : layouts) {
      SCOPED_TRACE(fmt::format("{}, family {}", name, static_cast<int>(family)));
      const std::vector<Course> both = courses(2, layout);
      EXPECT_EQ(both[0].losses, both[1].losses);
      EXPECT_EQ(both[0].scales, both[1].scales);
      for (std::size_t i = 0; i < kSteps; ++i) EXPECT_NEAR(both[0].losses[i], one.losses[i], 0.03 * one.losses[i]) << i;
      // The first step's weights are the same numbers. Deeper layers differ by how they are rounded before.
      for (const auto& [param, rows] : one.scales[0].at("rows").items()) {
        const auto mine = both[0].scales[0].at("rows").at(param).get<std::vector<float>>();
        const auto theirs = rows.get<std::vector<float>>();
        for (std::int64_t row = 0; row < 3; ++row) {
          const auto scale = static_cast<std::size_t>(row * width + 1);
          const float allowed = row == nn::Fp8History::kWeight ? 0 : 0.5F * theirs[scale];
          EXPECT_NEAR(mine[scale], theirs[scale], allowed) << param << " row " << row;
        }
      }
    }
  }
}

TEST(GpuFp8, RefusesSizesThatDoNotFit) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kGpt2, spec::Precision::kBf16);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.precision.gemm = spec::GemmPrecision::kFp8;
  EXPECT_THAT(kernels::refusal([&] { train::with_trainers(recipe, 1, [](train::Trainer&, comm::Rank&) {}); }),
              testing::HasSubstr("multiples of 16"));
}

}  // namespace
}  // namespace trireme::gpu
