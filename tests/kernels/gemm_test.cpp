// A GEMM call as a value: every epilogue beside the same in double, and how calls are planned.
#include "trireme/kernels/gemm.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "tests/kernels/support.h"
#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/kernels/autotune.h"

namespace trireme::kernels {
namespace {

using Op = Epilogue::Op;

at::Tensor exact(const at::Tensor& x) { return x.to(at::kDouble); }

at::Tensor reference(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      break;
  }
  return x * at::sigmoid(x);
}
/// By central differences, of a function that is smooth where the numbers are.
at::Tensor slope(const at::Tensor& x, Activation kind) {
  const double h = 1e-5;
  return (reference(x + h, kind) - reference(x - h, kind)) / (2 * h);
}

/// What the tests multiply: [6, 5] by [5, 4].
struct GemmCase {
  at::ScalarType type;
  bool transpose_a, transpose_b;
  at::Tensor a, b, bias, residual, before, pre_activation;

  GemmCase(at::ScalarType of, bool ta, bool tb) : type(of), transpose_a(ta), transpose_b(tb) {
    const auto made = [&](at::IntArrayRef shape, const char* name) {
      return normal_tensor(shape, at::kDouble, name).to(type);
    };
    a = ta ? made({5, 6}, "a") : made({6, 5}, "a");
    b = tb ? made({4, 5}, "b") : made({5, 4}, "b");
    bias = made({4}, "bias"), residual = made({6, 4}, "residual"), before = made({6, 4}, "before");
    pre_activation = made({6, 4}, "pre_activation");
  }
  at::Tensor product() const {
    return at::mm(transpose_a ? exact(a).t() : exact(a), transpose_b ? exact(b).t() : exact(b));
  }
  Gemm call() const { return {.a = a, .b = b, .transpose_a = transpose_a, .transpose_b = transpose_b}; }
};

void expect_close_gemm(const at::Tensor& found, const at::Tensor& expected, at::ScalarType type, const char* what) {
  // Of several roundings: the product's, the sums', the activation's.
  const double step = type == at::kDouble ? 2e-12 : type == at::kFloat ? 4e-6 : 0.012;
  expect_near(exact(found), expected, step, 8 * step, what);
}

TEST(Gemm, EveryEpilogueIsWhatItSays) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (int bits = 0; bits < 128; ++bits) {
      const auto bit = [&](int which) { return (bits >> which & 1) != 0; };
      const bool accumulate = bit(2), biased = bit(3), added = bit(4), given = bit(6) || accumulate;
      const GemmCase on(type, bit(0), bit(1));
      SCOPED_TRACE(fmt::format("{} transposes {}{} accumulate {} bias {} residual {} gelu {} out {}",
                               c10::toString(type), bit(0), bit(1), accumulate, biased, added, bit(5), given));
      Gemm call = on.call();
      at::Tensor sum = on.product();
      if (accumulate) sum = sum + exact(on.before);
      if (biased) {
        call.epilogue.bias = on.bias;
        sum = sum + exact(on.bias);
      }
      if (added) {
        call.epilogue.residual = on.residual;
        sum = sum + exact(on.residual);
      }
      if (bit(5)) call.epilogue.op = Op::kActivation;
      call.accumulate = accumulate;
      if (given) call.out = accumulate ? on.before.clone() : at::full_like(on.before, -77);
      const at::Tensor residual = on.residual.clone();
      const GemmResult made = gemm(call);
      EXPECT_EQ(made.out.scalar_type(), type);
      EXPECT_TRUE(!given || made.out.is_same(call.out));
      EXPECT_TRUE(same_bits(on.residual, residual)) << "a residual is only read";
      if (bit(5)) {
        expect_close_gemm(made.pre_activation, sum, type, "pre-activation");
        expect_close_gemm(made.out, reference(exact(made.pre_activation), Activation::kGeluTanh), type, "gelu");
      } else {
        expect_close_gemm(made.out, sum, type, "sum");
        EXPECT_FALSE(made.pre_activation.defined());
      }
    }
  }
}

TEST(Gemm, BackwardThroughAnActivationWithRecomputationAndBiasGradient) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const auto kind : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
      for (int bits = 0; bits < 32; ++bits) {
        const auto bit = [&](int which) { return (bits >> which & 1) != 0; };
        SCOPED_TRACE(fmt::format("{} activation {} bits {}", c10::toString(type), static_cast<int>(kind), bits));
        const GemmCase on(type, bit(0), bit(1));
        Gemm call = on.call();
        call.epilogue = {.op = Op::kActivationBackward, .activation = kind, .pre_activation = on.pre_activation};
        if (bit(2)) call.epilogue.recompute = at::full_like(on.before, -77);
        const at::Tensor start = at::full({4}, 3, sums);
        call.epilogue.accumulate_bias_grad = bit(3);
        call.epilogue.bias_grad_out = start.clone();
        at::Tensor sum = on.product();
        if (bit(4)) {
          call.out = on.before.clone();
          call.accumulate = true;
          sum = sum + exact(on.before);
        }
        const at::Tensor expected = sum * slope(exact(on.pre_activation), kind);
        const double loose = 1e-7;  // of the differences
        const GemmResult made = gemm(call);
        const double step = type == at::kBFloat16 ? 0.012 : type == at::kFloat ? 4e-6 : loose;
        expect_near(exact(made.out), expected, step, 4 * step, "gradient");
        const at::Tensor total = exact(made.out).sum(0) + (bit(3) ? 3 : 0);
        expect_near(exact(call.epilogue.bias_grad_out), total, step, 40 * step, "bias gradient");
        if (bit(2))
          expect_close_gemm(call.epilogue.recompute, reference(exact(on.pre_activation), kind), type, "recomputed");
      }
    }
  }
}

TEST(Gemm, ABiasGradientComesBesideAWeightGradient) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    for (int bits = 0; bits < 16; ++bits) {
      const auto bit = [&](int which) { return (bits >> which & 1) != 0; };
      SCOPED_TRACE(fmt::format("{} bits {}", c10::toString(type), bits));
      const GemmCase on(type, bit(0), bit(1));
      Gemm call = on.call();
      const at::Tensor before = on.before.to(sums);  // wider than 16-bit operands
      call.out = before.clone();
      call.accumulate = bit(2);
      call.epilogue.bias_grad_a = at::full({6}, 3, sums);
      call.epilogue.accumulate_bias_grad = bit(3);
      gemm(call);
      expect_close_gemm(call.out, bit(2) ? on.product() + exact(before) : on.product(), type, "weight gradient");
      const at::Tensor rows = bit(0) ? exact(on.a) : exact(on.a).t();
      expect_close_gemm(call.epilogue.bias_grad_a, rows.sum(0) + (bit(3) ? 3 : 0), type, "bias gradient");
    }
  }
}

/// 16-bit products are rounded once each; their sum in float is not.
TEST(Gemm, AccumulatesInTheTypeOfItsOutput) {
  const GemmCase on(at::kBFloat16, true, false);
  Gemm call = on.call();
  call.out = at::zeros({6, 4}, at::kFloat);
  call.accumulate = true;
  const at::Tensor product = plan_gemm(call).widens
                                 ? at::mm(on.a.t().to(at::kFloat), on.b.to(at::kFloat)).to(at::kBFloat16)
                                 : at::mm(on.a.t(), on.b);
  const at::Tensor once = product.to(at::kFloat);
  for (int i = 0; i < 3; ++i) gemm(call);
  EXPECT_TRUE(same_bits(call.out, once + once + once));
}

/// Without AVX-512 a bf16 GEMM of ATen takes fifty times as long as one in float.
TEST(Gemm, WithoutInstructionsFor16BitsIsMadeInFloatAndRoundedOnce) {
  const UseInstructionSet older(std::min(machine_instruction_set(), InstructionSet::kV3));
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const bool transposed : {false, true}) {
      const GemmCase on(type, transposed, transposed);
      const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
      const at::Tensor a = wide(transposed ? on.a.t() : on.a), b = wide(transposed ? on.b.t() : on.b);
      Gemm call = on.call();
      EXPECT_TRUE(plan_gemm(call).widens);
      EXPECT_TRUE(same_bits(gemm(call).out, at::mm(a, b).to(type)));
      call.out_type = at::kFloat;
      EXPECT_TRUE(same_bits(gemm(call).out, at::mm(a, b).to(type).to(at::kFloat)));
      call.out_type.reset();
      call.epilogue.bias = on.bias;
      EXPECT_TRUE(same_bits(gemm(call).out, at::addmm(wide(on.bias), a, b).to(type)));
      call.epilogue.bias = at::Tensor();
      call.out = on.before.clone();
      call.accumulate = true;
      EXPECT_TRUE(same_bits(gemm(call).out, at::addmm(wide(on.before), a, b).to(type)));
    }
  }
  const GemmCase on(at::kBFloat16, false, true);
  EXPECT_EQ(to_text(on.call(), plan_gemm(on.call())), "ATen in fp32, bf16 bf16 -> bf16 6x4x5 nt");
  const GemmCase whole(at::kFloat, false, true);
  EXPECT_FALSE(plan_gemm(whole.call()).widens);
}

TEST(Gemm, OfTheCpuIsAtens) {
  const GemmCase on(at::kFloat, false, true);
  Gemm call = on.call();
  EXPECT_TRUE(same_bits(gemm(call).out, at::mm(on.a, on.b.t())));
  call.epilogue.bias = on.bias;
  EXPECT_TRUE(same_bits(gemm(call).out, at::addmm(on.bias, on.a, on.b.t())));
  EXPECT_EQ(tuning_cache_text(), "") << "nothing is timed";
}

TEST(GemmPlan, SaysWhatIsFusedAndWhatIsAPassOfItsOwn) {
  const GemmCase on(at::kFloat, false, true);
  const auto text = [](const Gemm& call) { return to_text(call, plan_gemm(call)); };
  Gemm call = on.call();
  EXPECT_EQ(text(call), "ATen fp32 fp32 -> fp32 6x4x5 nt");
  call.epilogue.bias = on.bias;
  EXPECT_EQ(text(call), "ATen fp32 fp32 -> fp32 6x4x5 nt + bias");
  call.epilogue.residual = on.residual;
  call.epilogue.op = Op::kActivation;
  call.epilogue.activation = Activation::kSilu;
  EXPECT_EQ(text(call), "ATen fp32 fp32 -> fp32 6x4x5 nt + bias, then residual, silu");
  call.accumulate = true;
  call.out = on.before;
  EXPECT_EQ(text(call), "ATen fp32 fp32 -> fp32 6x4x5 nt + accumulate, then bias, residual, silu");
  const GemmCase narrow(at::kBFloat16, true, false);
  Gemm grad = narrow.call();
  grad.out = at::zeros({6, 4}, at::kFloat);
  grad.accumulate = true;
  grad.epilogue.bias_grad_a = at::zeros({6}, at::kFloat);
  EXPECT_EQ(text(grad), fmt::format("ATen{} bf16 bf16 -> fp32 6x4x5 tn, then accumulate, bias-grad",
                                    plan_gemm(grad).widens ? " in fp32," : ""));
  Gemm back = on.call();
  back.epilogue = {.op = Op::kActivationBackward, .pre_activation = on.pre_activation, .recompute = on.before};
  EXPECT_EQ(text(back), "ATen fp32 fp32 -> fp32 6x4x5 nt, then d-gelu-tanh, gelu-tanh");
  // As a GPU may plan the first.
  EXPECT_EQ(to_text(on.call(), {.backend = GemmPlan::Backend::kCublasLt}), "cuBLASLt fp32 fp32 -> fp32 6x4x5 nt");
}

TEST(Gemm, RefusesWhatContradictsItself) {
  const GemmCase on(at::kFloat, false, false);
  const auto refused = [&](const std::function<void(Gemm&)>& change) {
    Gemm call = on.call();
    change(call);
    EXPECT_THROW(gemm(call), InternalError);
  };
  refused([](Gemm& call) { call.transpose_a = true; });
  refused([](Gemm& call) { call.accumulate = true; });
  refused([](Gemm& call) { call.out = at::empty({4, 6}); });
  refused([](Gemm& call) { call.epilogue.bias = at::empty({6}); });
  refused([](Gemm& call) { call.epilogue.residual = at::empty({6, 5}); });
  refused([](Gemm& call) { call.epilogue.bias_grad_a = at::empty({4}); });
  refused([](Gemm& call) { call.epilogue.op = Op::kActivationBackward; });
  refused([](Gemm& call) { call.epilogue.recompute = at::empty({6, 4}); });
  refused([](Gemm& call) { call.a.scales = at::ones({1}); });
}

}  // namespace
}  // namespace trireme::kernels
