// GemmPrecision with what comes before and after them in one pass, beside the same in double on the CPU.
#include "trireme/kernels/gemm.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/device/graph.h"

namespace trireme::gpu {
namespace {

using kernels::GemmExtras;
using Kind = GemmExtras::Kind;

/// Sums of so many terms, each rounded: about the root of their number times half a step, and float's own.
void expect_close(const at::Tensor& found, const at::Tensor& exact, at::ScalarType type, const char* what) {
  const at::Tensor here = found.cpu().to(at::kDouble);
  const double step = type == at::kBFloat16 ? 0.004 : type == at::kHalf ? 0.0005 : 1e-5;
  const double error = (here - exact).norm().item<double>() / (exact.norm().item<double>() + 1e-30);
  EXPECT_LT(error, step) << what;
  const double most = (here - exact).abs().max().item<double>(), top = exact.abs().max().item<double>();
  EXPECT_LT(most, 4 * step * top) << what;
}

struct Shape {
  std::int64_t m, n, k;
};
const Shape kShapes[] = {{64, 48, 32}, {256, 768, 768}, {1000, 3072, 768}, {4096, 64, 128}, {8, 8, 4096}};

at::Tensor tanh_gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }
/// By the definition's derivative.
at::Tensor gelu_slope(const at::Tensor& x) {
  const double root = 0.79788456080286536, cube = 0.044715;
  const at::Tensor t = (root * (x + cube * x * x * x)).tanh();
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cube * x * x);
}

TEST(GpuProducts, EqualTheCpusForEveryTypeAndStorage) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [m, n, k] : kShapes) {
      SCOPED_TRACE(fmt::format("{} {}x{}x{}", c10::toString(type), m, n, k));
      const Pair a = normal_pair({m, k}, type, "a"), b = normal_pair({k, n}, type, "b");
      const at::Tensor exact = at::mm(a.cpu, b.cpu);
      const at::Tensor by_columns_a = a.gpu.t().contiguous().t(), by_columns_b = b.gpu.t().contiguous().t();
      for (const at::Tensor& left : {a.gpu, by_columns_a}) {
        for (const at::Tensor& right : {b.gpu, by_columns_b}) {
          for (const auto out_type : {type, at::kFloat}) {
            at::Tensor out = at::full({m, n}, -77, a.gpu.options().dtype(out_type));
            ASSERT_TRUE(kernels::takes_product(out, left, right));
            kernels::product_into(out, left, right);
            expect_close(out, exact, out_type, "product");
            kernels::product_into(out, left, right, /*add=*/true);
            expect_close(out, 2 * exact, out_type, "added");
            at::Tensor again = at::full({m, n}, -77, out.options());
            kernels::product_into(again, left, right);
            kernels::product_into(again, left, right, /*add=*/true);
            EXPECT_TRUE(same_bits(again.cpu(), out.cpu()));
          }
        }
      }
    }
  }
}

TEST(GpuProducts, RowsMayHaveGapsAndOddPlacesGoElsewhere) {
  const at::Tensor wide = normal_tensor({256, 3 * 64}, at::kDouble, "x").to(at::kBFloat16).to(gpu());
  const at::Tensor w = normal_tensor({128, 64}, at::kDouble, "w").to(at::kBFloat16).to(gpu());
  for (const std::int64_t first : {0, 64, 128}) {
    const at::Tensor x = wide.narrow(1, first, 64);
    at::Tensor out = at::empty({256, 128}, x.options());
    EXPECT_TRUE(kernels::takes_product(out, x, w.t()));
    kernels::product_into(out, x, w.t());
    expect_close(out, at::mm(x.cpu().to(at::kDouble), w.cpu().to(at::kDouble).t()), at::kBFloat16, "gaps");
  }
  const at::Tensor odd = wide.narrow(1, 3, 64);
  at::Tensor out = at::empty({256, 128}, odd.options());
  EXPECT_FALSE(kernels::takes_product(out, odd, w.t()));
  kernels::product_into(out, odd, w.t());
  expect_close(out, at::mm(odd.cpu().to(at::kDouble), w.cpu().to(at::kDouble).t()), at::kBFloat16, "odd place");
}

TEST(GpuProducts, ExtrasAreWhatTheyWouldBeApart) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [m, n, k] : {Shape{256, 768, 768}, Shape{1024, 3072, 768}, Shape{512, 128, 256}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}x{}", c10::toString(type), m, n, k));
      const Pair x = normal_pair({m, k}, type, "x"), w = normal_pair({n, k}, type, "w", 0.05),
                 bias = normal_pair({n}, type, "b"), dy = normal_pair({m, k}, type, "dy"),
                 back = normal_pair({k, n}, type, "back", 0.05);
      const at::Tensor inner = at::mm(x.cpu, w.cpu.t()) + bias.cpu;
      at::Tensor out = at::empty({m, n}, x.gpu.options()), aux = at::empty({m, n}, x.gpu.options());
      const GemmExtras with_bias{.kind = Kind::kBias, .bias = bias.gpu};
      ASSERT_TRUE(kernels::takes_product(out, x.gpu, w.gpu.t(), with_bias));
      kernels::fused_product(out, x.gpu, w.gpu.t(), false, with_bias);
      expect_close(out, inner, type, "bias");
      // Onto what lies elsewhere and stays as it is, its rows with gaps too.
      for (const std::int64_t gap : {0, 64}) {
        const at::Tensor wide = at::full({m, n + gap}, 3, x.gpu.options()), onto = wide.narrow(1, 0, n);
        GemmExtras with_onto = with_bias;
        with_onto.onto = onto;
        ASSERT_TRUE(kernels::takes_product(out, x.gpu, w.gpu.t(), with_onto, true));
        kernels::fused_product(out, x.gpu, w.gpu.t(), true, with_onto);
        expect_close(out, inner + 3, type, "bias, onto");
        EXPECT_TRUE(same_bits(wide.cpu(), at::full({m, n + gap}, 3, x.gpu.options()).cpu()));
        expect_close(kernels::linear_product(x.gpu, w.gpu, bias.gpu, onto), inner + 3, type, "linear, onto");
        expect_close(kernels::linear_product(x.gpu, w.gpu, at::Tensor(), onto), at::mm(x.cpu, w.cpu.t()) + 3, type,
                     "without a bias");
      }
      for (const bool biased : {true, false}) {
        const GemmExtras with_gelu{.kind = Kind::kGelu, .bias = biased ? bias.gpu : at::Tensor(), .inner = aux};
        ASSERT_TRUE(kernels::takes_product(out, x.gpu, w.gpu.t(), with_gelu));
        kernels::fused_product(out, x.gpu, w.gpu.t(), false, with_gelu);
        const at::Tensor entered = biased ? inner : at::mm(x.cpu, w.cpu.t());
        expect_close(aux, entered, type, "what enters GELU");
        expect_close(out, tanh_gelu(entered), type, "GELU");
      }
      const at::Tensor kept = inner.to(type);
      const at::Tensor slope = at::mm(dy.cpu, back.cpu) * gelu_slope(kept.to(at::kDouble));
      const GemmExtras of_slope{.kind = Kind::kGeluSlope, .inner = kept.to(gpu())};
      ASSERT_TRUE(kernels::takes_product(out, dy.gpu, back.gpu, of_slope));
      kernels::fused_product(out, dy.gpu, back.gpu, false, of_slope);
      expect_close(out, slope, type, "GELU's slope");
      at::Tensor sum = at::empty({n}, out.options());
      const GemmExtras slope_sum{.kind = Kind::kGeluSlopeSum, .bias = sum, .inner = kept.to(gpu())};
      ASSERT_TRUE(kernels::takes_product(out, dy.gpu, back.gpu, slope_sum));
      kernels::fused_product(out, dy.gpu, back.gpu, false, slope_sum);
      expect_close(out, slope, type, "GELU's slope, with the sum");
      expect_close(sum, slope.sum(0), type, "its sum");
      // The weight's gradient in float, with the bias's.
      at::Tensor gradient = at::empty({k, n}, out.options().dtype(at::kFloat)),
                 rows = at::empty({k}, gradient.options());
      const GemmExtras of_sum{.kind = Kind::kSum, .bias = rows};
      const at::Tensor exact = at::mm(dy.cpu.t(), inner.to(type).to(at::kDouble));
      if (!kernels::takes_product(gradient, dy.gpu.t(), kept.to(gpu()), of_sum)) {
        GTEST_LOG_(INFO) << "no plan with the sum of rows";
        continue;
      }
      kernels::fused_product(gradient, dy.gpu.t(), kept.to(gpu()), false, of_sum);
      expect_close(gradient, exact, at::kFloat, "gradient");
      expect_close(rows, dy.cpu.sum(0), at::kFloat, "sum of rows");
      kernels::fused_product(gradient, dy.gpu.t(), kept.to(gpu()), true, of_sum);
      expect_close(gradient, 2 * exact, at::kFloat, "gradient, added");
      expect_close(rows, dy.cpu.sum(0), at::kFloat, "sum of rows, not added");
      // And in the type itself, the sum rounded with it.
      at::Tensor few = at::empty({k, n}, out.options()), few_rows = at::empty({k}, few.options());
      const GemmExtras narrow_sum{.kind = Kind::kSum, .bias = few_rows};
      if (!kernels::takes_product(few, dy.gpu.t(), kept.to(gpu()), narrow_sum)) {
        GTEST_LOG_(INFO) << "no plan with the sum of rows in 16 bits";
        continue;
      }
      kernels::fused_product(few, dy.gpu.t(), kept.to(gpu()), false, narrow_sum);
      expect_close(few, exact, type, "narrow gradient");
      expect_close(few_rows, dy.cpu.sum(0), type, "narrow sum of rows");
      kernels::fused_product(few, dy.gpu.t(), kept.to(gpu()), true, narrow_sum);
      expect_close(few, 2 * exact, type, "narrow gradient, added");
    }
  }
}

/// Whichever way is chosen, the numbers are those of the definition.
TEST(GpuProducts, GeluAndBackEqualTheCpu) {
  const std::int64_t m = 1024, width = 256, inner_width = 1024;
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const Pair x = normal_pair({m, width}, type, "x"), w = normal_pair({inner_width, width}, type, "w", 0.1),
               bias = normal_pair({inner_width}, type, "b"), dy = normal_pair({m, width}, type, "dy"),
               out = normal_pair({width, inner_width}, type, "out", 0.1);
    const auto [inner, active] = kernels::gelu_linear(x.gpu, w.gpu, bias.gpu);
    const at::Tensor exact = at::mm(x.cpu, w.cpu.t()) + bias.cpu;
    expect_close(inner, exact, type, "inner");
    expect_close(active, tanh_gelu(exact), type, "active");
    const at::Tensor rounded = inner.cpu().to(at::kDouble);
    const at::Tensor slope = at::mm(dy.cpu, out.cpu) * gelu_slope(rounded);
    for (const bool again : {true, false}) {
      at::Tensor made = again ? at::empty_like(inner) : at::Tensor();
      at::Tensor sum = at::ones({inner_width}, inner.options().dtype(at::kFloat));
      const at::Tensor dinner = kernels::gelu_linear_back(dy.gpu, out.gpu, inner, made, sum);
      expect_close(dinner, slope, type, "dinner");
      expect_close(sum, slope.sum(0), type, "sum");
      if (again) expect_close(made, tanh_gelu(rounded), type, "recomputed");
    }
  }
}

TEST(GpuProducts, ChoicesAreWrittenAndTakenAgain) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("trireme-choices-{}.json", getpid());
  const at::Tensor a = normal_tensor({320, 160}, at::kFloat, "a").to(at::kBFloat16).to(gpu());
  at::Tensor out = at::empty({320, 320}, a.options());
  kernels::product_into(out, a, a.t());
  kernels::write_choices(path);
  ASSERT_TRUE(std::filesystem::exists(path));
  std::ifstream file(path);
  const auto tree = nlohmann::json::parse(file);
  EXPECT_TRUE(tree.at("products").contains("bf16 bf16 -> bf16 320x320x160 nt")) << tree.dump(1);
  EXPECT_GT(tree.at("products").at("bf16 bf16 -> bf16 320x320x160 nt").at("us").get<double>(), 0);
  std::filesystem::remove(path);
  kernels::write_choices(path);  // nothing new
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(GpuProducts, CanBeRecordedAndGiveTheSameBits) {
  const at::Tensor x = normal_tensor({512, 256}, at::kFloat, "x").to(at::kBFloat16).to(gpu()),
                   w = normal_tensor({1024, 256}, at::kFloat, "w").to(at::kBFloat16).to(gpu());
  const at::Tensor bias = normal_tensor({1024}, at::kFloat, "b").to(at::kBFloat16).to(gpu());
  const auto plain = kernels::gelu_linear(x, w, bias);
  kernels::GeluLinear recorded;
  // One that was timed, and one that was not: the library's favourite serves it.
  at::Tensor other = at::empty({512, 512}, x.options());
  device::CudaGraph graph([&] {
    recorded = kernels::gelu_linear(x, w, bias);
    kernels::product_into(other, x, x.t());
  });
  for (int turn = 0; turn < 3; ++turn) {
    recorded.active.zero_();
    graph.replay();
    EXPECT_TRUE(same_bits(recorded.active.cpu(), plain.active.cpu()));
    EXPECT_TRUE(same_bits(recorded.inner.cpu(), plain.inner.cpu()));
  }
  at::Tensor again = at::empty_like(other);
  kernels::product_into(again, x, x.t());
  EXPECT_TRUE(same_bits(again.cpu(), other.cpu()));
}

/// With and without timed GEMMs, and keeping what activations gave: the same training to bfloat16's roundings.
TEST(GpuProducts, TrainAsTheTensorLibrarysDo) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kGpt2, spec::Precision::kBf16);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.model.hidden_size = 64;
  recipe.model.num_heads = 4;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 256;
  const auto losses = [&](bool tuned, bool keep) {
    kernels::set_tuned_products(tuned);
    recipe.train.save_mlp_activations = keep;
    std::vector<double> out;
    train::with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 6; ++step) out.push_back(trainer.step().loss);
    });
    kernels::set_tuned_products(true);
    return out;
  };
  const auto plain = losses(false, false), tuned = losses(true, false), kept = losses(true, true);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(tuned[i], plain[i], 0.02);
    EXPECT_NEAR(kept[i], plain[i], 0.02);
  }
  EXPECT_EQ(losses(true, false), tuned);  // and itself to the bit
}

}  // namespace
}  // namespace trireme::gpu
