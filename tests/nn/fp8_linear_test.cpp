// FP8 GEMMs of a linear layer on the CPU, beside the same layer written out over dequantised matrices.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/kernels/fp8_reference.h"
#include "tests/kernels/support.h"
#include "trireme/nn/fp8.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {
namespace {

using kernels::Fp8Format;
using kernels::Fp8Scaling;
using kernels::normal_tensor;
using kernels::numbers_of;
using spec::GemmPrecision;

constexpr std::int64_t kTokens = 128, kIn = 256, kOut = 128;

/// What a tensor becomes on its way into a GEMM that sums over its last dimension, in double.
at::Tensor seen(const at::Tensor& x, Fp8Format format, Fp8Scaling scaling) {
  return numbers_of(kernels::to_fp8(x.contiguous(), format, scaling, true, false).rows);
}

struct Case {
  Params params;
  Param& weight;
  at::Tensor x = normal_tensor({kTokens, kIn}, at::kFloat, "x").to(at::kBFloat16);
  at::Tensor dy = normal_tensor({kTokens, kOut}, at::kFloat, "dy", 1e-3).to(at::kBFloat16);

  explicit Case(GemmPrecision gemm)
      : weight(params.add("w", {kOut, kIn}, {.kind = Init::Kind::kNormal, .scale = 0.05}, true)) {
    weight.gemm = gemm;
    initialise(params, Precision::kBf16, 7);
  }
};

struct Passed {
  at::Tensor y, dx, dw;
};
Passed pass(Case& in) {
  Linear linear(in.weight, nullptr);
  Context context;
  context.training = true;
  Tape tape;
  zero_grad(in.params);
  Passed out;
  out.y = linear.forward(in.x, context, &tape);
  out.dx = linear.backward(in.dy, context, tape);
  out.dw = in.weight.gradient.clone();
  return out;
}

double apart(const at::Tensor& found, const at::Tensor& exact) {
  return ((found.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

TEST(Fp8Linear, MultipliesQuantisedOperandsInAllThreeGemms) {
  for (const GemmPrecision gemm : {GemmPrecision::kFp8, GemmPrecision::kFp8Blocks}) {
    const bool blocks = gemm == GemmPrecision::kFp8Blocks;
    const Fp8Scaling lines = blocks ? Fp8Scaling::kBlocks1x128 : Fp8Scaling::kTensor,
                     tiles = blocks ? Fp8Scaling::kBlocks128x128 : Fp8Scaling::kTensor;
    const Fp8Format of_grad = blocks ? Fp8Format::kE4m3 : Fp8Format::kE5m2, of_rest = Fp8Format::kE4m3;
    Case in(gemm);
    const Passed found = pass(in);
    const at::Tensor w = in.weight.value;
    const at::Tensor y = at::mm(seen(in.x, of_rest, lines), seen(w, of_rest, tiles).t());
    const at::Tensor dx = at::mm(seen(in.dy, of_grad, lines), seen(w.t(), of_rest, tiles).t());
    const at::Tensor dw = at::mm(seen(in.dy.t(), of_grad, lines), seen(in.x.t(), of_rest, lines).t());
    EXPECT_LT(apart(found.y, y), 3e-3) << "half a place of bf16";
    EXPECT_LT(apart(found.dx, dx), 3e-3);
    EXPECT_LT(apart(found.dw, dw), 1e-6) << "in float";
    // Beside GEMMs of bf16: quantisation is there, and small.
    Case plain(GemmPrecision::kSame);
    const Passed same = pass(plain);
    EXPECT_GT(apart(found.y, same.y.to(at::kDouble)), 0.01);
    EXPECT_LT(apart(found.y, same.y.to(at::kDouble)), 0.05);
  }
}

TEST(Fp8Linear, DelayedScalesFollowTheStepsBefore) {
  Case in(GemmPrecision::kFp8Delayed), now(GemmPrecision::kFp8);
  Fp8History history(in.params, 4, 0, at::kCPU);
  const Passed first = pass(in), current = pass(now);
  EXPECT_TRUE(at::equal(first.y, current.y)) << "the first step looks at its own numbers";
  EXPECT_TRUE(at::equal(first.dw, current.dw));
  history.advance();
  const Passed second = pass(in);
  EXPECT_TRUE(at::equal(second.y, first.y)) << "the same numbers: the scale of the step before is theirs";
  // A spike is beyond what the scale of the steps before reaches, and saturates; the next step knows it.
  in.x = in.x * 8;
  const Passed spike = pass(in);
  EXPECT_GT(apart(spike.y, 8 * first.y.to(at::kDouble)), 0.05);
  history.advance();
  const Passed after = pass(in);
  EXPECT_LT(apart(after.y, 8 * first.y.to(at::kDouble)), 1e-6) << "powers of two change nothing";
}

}  // namespace
}  // namespace trireme::nn
