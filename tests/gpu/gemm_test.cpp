// GEMMs with their epilogues, fused and not, beside the same in double on the CPU.
#include "trireme/kernels/gemm.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/device/stream.h"
#include "trireme/kernels/autotune.h"
#include "trireme/kernels/gemm_execute.h"

namespace trireme::gpu {
namespace {

using kernels::Gemm;
using kernels::GemmPlan;
using Op = kernels::Epilogue::Op;

bool on_cublaslt(const Gemm& call) { return kernels::plan_gemm(call).backend == GemmPlan::Backend::kCublasLt; }

/// Runs the call with those parts in the GEMM's own pass, whatever is faster; false where cuBLASLt has no algorithm.
bool run_fused(const Gemm& call, const GemmPlan::Fused& fused) {
  const at::Tensor bias_grad = fused.bias_grad ? at::empty({call.out.size(0)}, call.out.options()) : at::Tensor();
  const auto lt = kernels::cublaslt_call(call, fused, bias_grad);
  if (!lt || !kernels::has_algorithm(*lt, call.out)) return false;
  kernels::execute(call, {.backend = GemmPlan::Backend::kCublasLt, .fused = fused});
  return true;
}

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

TEST(GpuGemm, EqualsTheCpusForEveryTypeAndStorage) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [m, n, k] : kShapes) {
      SCOPED_TRACE(fmt::format("{} {}x{}x{}", c10::toString(type), m, n, k));
      const Pair a = normal_pair({m, k}, type, "a"), b = normal_pair({k, n}, type, "b");
      const at::Tensor exact = at::mm(a.cpu, b.cpu);
      const at::Tensor a_transposed = a.gpu.t().contiguous(), b_transposed = b.gpu.t().contiguous();
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          for (const auto out_type : {type, at::kFloat}) {
            const auto made = [&] {
              Gemm call{.a = transpose_a ? a_transposed : a.gpu,
                        .b = transpose_b ? b_transposed : b.gpu,
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .out = at::full({m, n}, -77, a.gpu.options().dtype(out_type))};
              EXPECT_TRUE(on_cublaslt(call));
              kernels::gemm(call);
              return call;
            };
            Gemm call = made();
            expect_close(call.out, exact, out_type, "out");
            call.accumulate = true;
            kernels::gemm(call);
            expect_close(call.out, 2 * exact, out_type, "accumulated");
            Gemm again = made();
            again.accumulate = true;
            kernels::gemm(again);
            EXPECT_TRUE(same_bits(again.out.cpu(), call.out.cpu()));
          }
        }
      }
    }
  }
}

TEST(GpuGemm, RowsMayHaveGapsAndOddAddressesGoToAten) {
  const at::Tensor wide = normal_tensor({256, 3 * 64}, at::kDouble, "x").to(at::kBFloat16).to(gpu());
  const at::Tensor w = normal_tensor({128, 64}, at::kDouble, "w").to(at::kBFloat16).to(gpu());
  const auto check = [&](std::int64_t first, bool fits) {
    const at::Tensor x = wide.narrow(1, first, 64);
    const Gemm call{.a = x, .b = w, .transpose_b = true};
    EXPECT_EQ(on_cublaslt(call), fits);
    const at::Tensor out = kernels::gemm(call).out;
    expect_close(out, at::mm(x.cpu().to(at::kDouble), w.cpu().to(at::kDouble).t()), at::kBFloat16, "gaps");
  };
  for (const std::int64_t first : {0, 64, 128}) check(first, true);
  check(3, false);
}

TEST(GpuGemm, FusedEpiloguesAreWhatTheyWouldBeApart) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [m, n, k] : {Shape{256, 768, 768}, Shape{1024, 3072, 768}, Shape{512, 128, 256}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}x{}", c10::toString(type), m, n, k));
      const Pair x = normal_pair({m, k}, type, "x"), w = normal_pair({n, k}, type, "w", 0.05),
                 bias = normal_pair({n}, type, "b"), dy = normal_pair({m, k}, type, "dy"),
                 back = normal_pair({k, n}, type, "back", 0.05);
      const at::Tensor product = at::mm(x.cpu, w.cpu.t()), sum = product + bias.cpu;
      const auto room = [&] { return at::empty({m, n}, x.gpu.options()); };
      Gemm call{.a = x.gpu, .b = w.gpu, .transpose_b = true, .out = room(), .epilogue = {.bias = bias.gpu}};
      ASSERT_TRUE(run_fused(call, {.bias = true}));
      expect_close(call.out, sum, type, "bias");
      // A residual that lies elsewhere and stays as it is, its rows with gaps too.
      for (const std::int64_t gap : {0, 64}) {
        const at::Tensor wide = at::full({m, n + gap}, 3, x.gpu.options());
        Gemm adding = call;
        adding.epilogue.residual = wide.narrow(1, 0, n);
        ASSERT_TRUE(run_fused(adding, {.bias = true, .residual = true}));
        expect_close(adding.out, sum + 3, type, "bias, residual");
        EXPECT_TRUE(same_bits(wide.cpu(), at::full({m, n + gap}, 3, x.gpu.options()).cpu()));
        expect_close(kernels::gemm(adding).out, sum + 3, type, "as planned");
        adding.epilogue.bias = at::Tensor();
        expect_close(kernels::gemm(adding).out, product + 3, type, "without a bias");
      }
      for (const bool biased : {true, false}) {
        Gemm gelu = call;
        gelu.epilogue = {.bias = biased ? bias.gpu : at::Tensor(), .op = Op::kActivation, .pre_activation = room()};
        ASSERT_TRUE(run_fused(gelu, {.bias = biased, .activation = true}));
        const at::Tensor entered = biased ? sum : product;
        expect_close(gelu.epilogue.pre_activation, entered, type, "pre-activation");
        expect_close(gelu.out, tanh_gelu(entered), type, "GELU");
      }
      const at::Tensor pre = sum.to(type);
      const at::Tensor expected = at::mm(dy.cpu, back.cpu) * gelu_slope(pre.to(at::kDouble));
      Gemm dgelu{.a = dy.gpu, .b = back.gpu, .out = room()};
      dgelu.epilogue = {.op = Op::kActivationBackward, .pre_activation = pre.to(gpu())};
      ASSERT_TRUE(run_fused(dgelu, {.activation = true}));
      expect_close(dgelu.out, expected, type, "GELU's derivative");
      // The weight's gradient with the bias's: in float, and in the type itself, where the sum is rounded with it.
      const at::Tensor exact = at::mm(dy.cpu.t(), pre.to(at::kDouble));
      for (const auto out_type : {at::kFloat, type}) {
        Gemm grad{.a = dy.gpu, .b = pre.to(gpu()), .transpose_a = true};
        grad.out = at::empty({k, n}, dgelu.out.options().dtype(out_type));
        grad.epilogue.bias_grad_a = at::empty({k}, grad.out.options().dtype(at::kFloat));
        if (!run_fused(grad, {.bias_grad = true})) {
          GTEST_LOG_(INFO) << "no algorithm with the bias's gradient in " << c10::toString(out_type);
          continue;
        }
        expect_close(grad.out, exact, out_type, "weight gradient");
        expect_close(grad.epilogue.bias_grad_a, dy.cpu.sum(0), out_type, "bias gradient");
        grad.accumulate = true;
        ASSERT_TRUE(run_fused(grad, {.accumulate = true, .bias_grad = true}));
        expect_close(grad.out, 2 * exact, out_type, "weight gradient, accumulated");
        expect_close(grad.epilogue.bias_grad_a, dy.cpu.sum(0), out_type, "bias gradient, not accumulated");
        grad.epilogue.accumulate_bias_grad = true;
        ASSERT_TRUE(run_fused(grad, {.accumulate = true, .bias_grad = true}));
        expect_close(grad.epilogue.bias_grad_a, 2 * dy.cpu.sum(0), out_type, "bias gradient, accumulated");
      }
    }
  }
}

/// Whichever variant is chosen, the numbers are those of the definition.
TEST(GpuGemm, PlannedEpiloguesEqualTheCpu) {
  const std::int64_t m = 1024, hidden = 256, ffn = 1024;
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const Pair x = normal_pair({m, hidden}, type, "x"), w = normal_pair({ffn, hidden}, type, "w", 0.1),
               bias = normal_pair({ffn}, type, "b"), dy = normal_pair({m, hidden}, type, "dy"),
               out = normal_pair({hidden, ffn}, type, "out", 0.1);
    const Gemm forward{
        .a = x.gpu, .b = w.gpu, .transpose_b = true, .epilogue = {.bias = bias.gpu, .op = Op::kActivation}};
    const auto [active, pre] = kernels::gemm(forward);
    const at::Tensor exact = at::mm(x.cpu, w.cpu.t()) + bias.cpu;
    expect_close(pre, exact, type, "pre-activation");
    expect_close(active, tanh_gelu(exact), type, "activation");
    const at::Tensor rounded = pre.cpu().to(at::kDouble);
    const at::Tensor expected = at::mm(dy.cpu, out.cpu) * gelu_slope(rounded);
    for (const bool recompute : {true, false}) {
      Gemm backward{.a = dy.gpu, .b = out.gpu};
      backward.epilogue = {.op = Op::kActivationBackward, .pre_activation = pre};
      if (recompute) backward.epilogue.recompute = at::empty_like(pre);
      backward.epilogue.bias_grad_out = at::ones({ffn}, pre.options().dtype(at::kFloat));
      expect_close(kernels::gemm(backward).out, expected, type, "gradient of the pre-activation");
      expect_close(backward.epilogue.bias_grad_out, expected.sum(0), type, "bias gradient");
      if (recompute) expect_close(backward.epilogue.recompute, tanh_gelu(rounded), type, "recomputed");
    }
    const at::Tensor grad_exact = at::mm(dy.cpu.t(), rounded);
    Gemm grad{.a = dy.gpu, .b = pre, .transpose_a = true};
    grad.out = at::zeros({hidden, ffn}, pre.options().dtype(at::kFloat));
    grad.epilogue.bias_grad_a = at::zeros({hidden}, grad.out.options());
    for (int micro = 1; micro <= 3; ++micro) {
      grad.accumulate = grad.epilogue.accumulate_bias_grad = micro > 1;
      kernels::gemm(grad);
      expect_close(grad.out, micro * grad_exact, at::kFloat, "weight gradient");
      expect_close(grad.epilogue.bias_grad_a, micro * dy.cpu.sum(0), at::kFloat, "bias gradient beside it");
    }
  }
}

TEST(GpuGemm, TheTuningCacheIsWrittenAndReadAgain) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("trireme-tuning-{}.json", getpid());
  const at::Tensor a = normal_tensor({320, 160}, at::kFloat, "a").to(at::kBFloat16).to(gpu());
  kernels::gemm({.a = a, .b = a, .transpose_b = true});
  kernels::write_tuning_cache(path);
  ASSERT_TRUE(std::filesystem::exists(path));
  std::ifstream file(path);
  const auto tree = nlohmann::json::parse(file);
  EXPECT_TRUE(tree.at("gemms").contains("bf16 bf16 -> bf16 320x320x160 nt")) << tree.dump(1);
  EXPECT_GT(tree.at("gemms").at("bf16 bf16 -> bf16 320x320x160 nt").at("us").get<double>(), 0);
  std::filesystem::remove(path);
  kernels::write_tuning_cache(path);  // nothing new
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(GpuGemm, CanBeCapturedAndGivesTheSameBits) {
  const at::Tensor x = normal_tensor({512, 256}, at::kFloat, "x").to(at::kBFloat16).to(gpu()),
                   w = normal_tensor({1024, 256}, at::kFloat, "w").to(at::kBFloat16).to(gpu());
  const at::Tensor bias = normal_tensor({1024}, at::kFloat, "b").to(at::kBFloat16).to(gpu());
  const Gemm call{.a = x, .b = w, .transpose_b = true, .epilogue = {.bias = bias, .op = Op::kActivation}};
  const auto plain = kernels::gemm(call);
  kernels::GemmResult captured;
  // One that was timed, and one that was not: the heuristic's favourite serves it.
  Gemm other{.a = x, .b = x, .transpose_b = true, .out = at::empty({512, 512}, x.options())};
  device::CudaGraph graph([&] {
    captured = kernels::gemm(call);
    kernels::gemm(other);
  });
  for (int turn = 0; turn < 3; ++turn) {
    captured.out.zero_();
    graph.replay();
    EXPECT_TRUE(same_bits(captured.out.cpu(), plain.out.cpu()));
    EXPECT_TRUE(same_bits(captured.pre_activation.cpu(), plain.pre_activation.cpu()));
  }
  const at::Tensor replayed = other.out;
  other.out = at::empty_like(replayed);
  kernels::gemm(other);
  EXPECT_TRUE(same_bits(other.out.cpu(), replayed.cpu()));
}

/// With and without timed GEMMs, and saving activations: the same training to bfloat16's roundings.
TEST(GpuGemm, TrainsAsAtensDo) {
  spec::Recipe recipe = train::small_recipe(spec::Family::kGpt2, spec::Precision::kBf16);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.model.hidden_size = 64;
  recipe.model.num_heads = 4;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 256;
  const auto losses = [&](bool tuned, bool keep) {
    kernels::set_gemm_autotune(tuned);
    recipe.train.save_mlp_activations = keep;
    std::vector<double> out;
    train::with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 6; ++step) out.push_back(trainer.step().loss);
    });
    kernels::set_gemm_autotune(true);
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
