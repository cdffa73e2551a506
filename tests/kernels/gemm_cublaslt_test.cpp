// What cuBLASLt is told of a GEMM, and what is left to ATen: looked at without a GPU.
#include "trireme/kernels/gemm_cublaslt.h"

#include <ATen/ops/empty.h>

#include "tests/kernels/support.h"
#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

/// Memory that begins at a multiple of 256 bytes, as a GPU's does.
at::Tensor aligned(at::IntArrayRef shape, at::ScalarType type) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const at::Tensor bytes = at::empty({count * 8 + 256}, at::kByte);
  const auto over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(bytes.const_data_ptr()) % 256);
  return bytes.narrow(0, (256 - over) % 256, count * static_cast<std::int64_t>(c10::elementSize(type)))
      .view(type)
      .view(shape);
}

TEST(CublasLtCall, KnowsHowMatricesAreStored) {
  const at::Tensor x = aligned({64, 32}, at::kBFloat16), w = aligned({48, 32}, at::kBFloat16),
                   y = aligned({64, 48}, at::kBFloat16);
  const auto forward = cublaslt_call({.a = x, .b = w, .transpose_b = true, .out = y}, {});
  ASSERT_TRUE(forward);
  EXPECT_EQ(gemm_key(*forward), "bf16 bf16 -> bf16 64x48x32 nt");
  EXPECT_EQ(forward->a_stride, 32);
  EXPECT_EQ(forward->b_stride, 32);
  const auto view = cublaslt_call({.a = x, .b = w.t(), .out = y}, {});
  ASSERT_TRUE(view);
  EXPECT_EQ(gemm_key(*view), gemm_key(*forward)) << "a view that is transposed is as good";
  const auto backward = cublaslt_call({.a = y, .b = w, .out = x}, {});
  ASSERT_TRUE(backward);
  EXPECT_EQ(gemm_key(*backward), "bf16 bf16 -> bf16 64x32x48 nn");
  const at::Tensor dw = aligned({48, 32}, at::kFloat);
  const auto grad = cublaslt_call({.a = y, .b = x, .transpose_a = true, .out = dw}, {.accumulate = true});
  ASSERT_TRUE(grad);
  EXPECT_EQ(gemm_key(*grad), "bf16 bf16 -> fp32 48x32x64 tn");  // accumulated or not: the same algorithm
  EXPECT_TRUE(grad->add);
  EXPECT_TRUE(grad->transpose_a);
  EXPECT_EQ(grad->a_stride, 48);
}

TEST(CublasLtCall, NamesWhatAnAlgorithmDependsOn) {
  const auto bf16 = at::kBFloat16;
  const at::Tensor wide = aligned({64, 96}, bf16), x = wide.narrow(1, 32, 32), w = aligned({48, 32}, bf16);
  const at::Tensor y = aligned({64, 48}, bf16), pre = aligned({64, 48}, bf16), bias = aligned({48}, bf16);
  Gemm call{.a = x, .b = w, .transpose_b = true, .out = y};
  call.epilogue = {.bias = bias, .op = Epilogue::Op::kActivation, .pre_activation = pre};
  const auto gelu = cublaslt_call(call, {.bias = true, .activation = true});
  ASSERT_TRUE(gelu);
  EXPECT_EQ(gemm_key(*gelu), "bf16 bf16 -> bf16 64x48x32 nt gelu bias a/96 at 16");
  call.a = aligned({64, 32}, bf16);
  call.epilogue = {.op = Epilogue::Op::kActivationBackward, .pre_activation = pre};
  const auto dgelu = cublaslt_call(call, {.activation = true});
  ASSERT_TRUE(dgelu);
  EXPECT_EQ(gemm_key(*dgelu), "bf16 bf16 -> bf16 64x48x32 nt dgelu");
  const auto sum = cublaslt_call(call, {.bias_grad = true}, aligned({64}, bf16));
  ASSERT_TRUE(sum);
  EXPECT_EQ(gemm_key(*sum), "bf16 bf16 -> bf16 64x48x32 nt bias-grad");
  call.epilogue.activation = Activation::kSilu;
  EXPECT_FALSE(cublaslt_call(call, {.activation = true})) << "GELU by tanh is all there is";
}

TEST(CublasLtCall, MayAddAResidualThatLiesElsewhere) {
  const auto bf16 = at::kBFloat16;
  const at::Tensor residual = aligned({64, 48}, bf16), wide = aligned({64, 96}, bf16);
  Gemm call{.a = aligned({64, 32}, bf16), .b = aligned({48, 32}, bf16), .transpose_b = true};
  call.out = aligned({64, 48}, bf16);
  const auto with = [&](const at::Tensor& added) {
    call.epilogue.residual = added;
    return cublaslt_call(call, {.residual = true});
  };
  const auto plain = with(residual);
  ASSERT_TRUE(plain);
  EXPECT_EQ(gemm_key(*plain), "bf16 bf16 -> bf16 64x48x32 nt residual");
  EXPECT_TRUE(plain->add);
  EXPECT_EQ(plain->c, residual.const_data_ptr());
  const auto gaps = with(wide.narrow(1, 0, 48));
  ASSERT_TRUE(gaps);
  EXPECT_EQ(gemm_key(*gaps), "bf16 bf16 -> bf16 64x48x32 nt residual residual/96");
  EXPECT_FALSE(with(aligned({64, 48}, at::kFloat))) << "another type";
  EXPECT_FALSE(with(aligned({48, 64}, bf16).t())) << "column-major";
  EXPECT_THROW(with(aligned({64, 32}, bf16)), InternalError);
  call.epilogue.residual = residual;
  EXPECT_THROW(cublaslt_call(call, {.accumulate = true, .residual = true}), InternalError);
}

TEST(CublasLtCall, LeavesOutWhatDoesNotFit) {
  const auto bf16 = at::kBFloat16;
  const at::Tensor x = aligned({64, 32}, bf16), wt = aligned({48, 32}, bf16).t(), y = aligned({64, 48}, bf16);
  const auto fits = [](const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    return cublaslt_call({.a = a, .b = b, .out = out}, {}).has_value();
  };
  EXPECT_TRUE(fits(y, x, wt));
  // Types that do not go together, doubles, 16-bit results of floats.
  EXPECT_FALSE(fits(y, x.to(at::kHalf), wt));
  EXPECT_FALSE(fits(aligned({64, 48}, at::kDouble), aligned({64, 32}, at::kDouble), aligned({32, 48}, at::kDouble)));
  EXPECT_FALSE(fits(y, aligned({64, 32}, at::kFloat), aligned({32, 48}, at::kFloat)));
  // Rows of 17 numbers, a place in the middle of 16 bytes, a column-major result.
  EXPECT_FALSE(fits(aligned({64, 48}, bf16), aligned({64, 17}, bf16), aligned({17, 48}, bf16)));
  EXPECT_FALSE(fits(y, aligned({64 * 32 + 1}, bf16).narrow(0, 1, 64 * 32).view({64, 32}), wt));
  EXPECT_FALSE(fits(aligned({48, 64}, bf16).t(), x, wt));
  // A bias of another type than the result, and a bias gradient without a place to go.
  Gemm call{.a = x, .b = wt, .out = y, .epilogue = {.bias = aligned({48}, at::kFloat)}};
  EXPECT_FALSE(cublaslt_call(call, {.bias = true}));
  EXPECT_FALSE(cublaslt_call(call, {.bias_grad = true}));
  // Shapes that contradict each other are a mistake of ours.
  EXPECT_THROW(fits(y, x, wt.t()), InternalError);
  call.epilogue.bias = aligned({64}, bf16);
  EXPECT_THROW(cublaslt_call(call, {.bias = true}), InternalError);
}

TEST(CublasLtCall, Fp8OperandsLieAlongK) {
  const auto e4m3 = at::kFloat8_e4m3fn, e5m2 = at::kFloat8_e5m2;
  const at::Tensor scale = aligned({1}, at::kFloat);
  const auto key = [&](at::ScalarType a, at::ScalarType b, Fp8Scaling scaling) -> std::string {
    Gemm call{.a = Fp8Matrix{.values = aligned({64, 32}, a), .scales = scale, .scaling = scaling},
              .b = Fp8Matrix{.values = aligned({48, 32}, b), .scales = scale, .scaling = scaling},
              .transpose_b = true,
              .out = aligned({64, 48}, at::kBFloat16),
              .fast_accumulation = true};
    const auto made = cublaslt_call(call, {});
    if (made) {
      EXPECT_EQ(made->a_scale, scale.const_data_ptr<float>());
    }
    return made ? gemm_key(*made) : "none";
  };
  EXPECT_EQ(key(e5m2, e4m3, Fp8Scaling::kTensor), "e5m2 e4m3 -> bf16 64x48x32 nt fast");
  EXPECT_EQ(key(e5m2, e5m2, Fp8Scaling::kTensor), "none");
  EXPECT_EQ(key(e4m3, e4m3, Fp8Scaling::kBlocks1x128), "none");
  const at::Tensor y = aligned({64, 48}, at::kBFloat16);
  EXPECT_FALSE(cublaslt_call({.a = aligned({64, 32}, e4m3), .b = aligned({32, 48}, e4m3), .out = y}, {}));
  EXPECT_FALSE(cublaslt_call({.a = aligned({32, 64}, e4m3).t(), .b = aligned({48, 32}, e4m3).t(), .out = y}, {}));
}

}  // namespace
}  // namespace trireme::kernels
