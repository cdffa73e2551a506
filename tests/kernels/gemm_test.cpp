// What the library is told of a GEMM, and what is left to the tensor library: looked at without a GPU.
#include "trireme/kernels/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mm.h>

#include "tests/kernels/support.h"
#include "trireme/base/error.h"
#include "trireme/kernels/gemm_plans.h"

namespace trireme::kernels {
namespace {

using Kind = GemmExtras::Kind;

/// Memory that begins at a multiple of 256 bytes, as a GPU's does.
at::Tensor even(at::IntArrayRef shape, at::ScalarType type) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const at::Tensor bytes = at::empty({count * 8 + 256}, at::kByte);
  const auto over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(bytes.const_data_ptr()) % 256);
  return bytes.narrow(0, (256 - over) % 256, count * static_cast<std::int64_t>(c10::elementSize(type)))
      .view(type)
      .view(shape);
}

TEST(ProductCall, KnowsHowMatricesAreStored) {
  const at::Tensor x = even({64, 32}, at::kBFloat16), w = even({48, 32}, at::kBFloat16),
                   y = even({64, 48}, at::kBFloat16);
  const auto forward = product_call(y, x, w.t(), false, {});
  ASSERT_TRUE(forward);
  EXPECT_EQ(product_key(*forward), "bf16 bf16 -> bf16 64x48x32 nt");
  EXPECT_EQ(forward->a_stride, 32);
  EXPECT_EQ(forward->b_stride, 32);
  const auto back = product_call(x, y, w, false, {});
  ASSERT_TRUE(back);
  EXPECT_EQ(product_key(*back), "bf16 bf16 -> bf16 64x32x48 nn");
  at::Tensor dw = even({48, 32}, at::kFloat);
  const auto gradient = product_call(dw, y.t(), x, true, {});
  ASSERT_TRUE(gradient);
  EXPECT_EQ(product_key(*gradient), "bf16 bf16 -> fp32 48x32x64 tn");  // added or not: the same plan
  EXPECT_TRUE(gradient->add);
  EXPECT_TRUE(gradient->transpose_a);
  EXPECT_EQ(gradient->a_stride, 48);
}

TEST(ProductCall, NamesWhatAPlanDependsOn) {
  const at::Tensor wide = even({64, 96}, at::kBFloat16), x = wide.narrow(1, 32, 32), w = even({48, 32}, at::kBFloat16);
  const at::Tensor y = even({64, 48}, at::kBFloat16), inner = even({64, 48}, at::kBFloat16),
                   bias = even({48}, at::kBFloat16);
  const auto call = product_call(y, x, w.t(), false, {.kind = Kind::kGelu, .bias = bias, .inner = inner});
  ASSERT_TRUE(call);
  EXPECT_EQ(product_key(*call), "bf16 bf16 -> bf16 64x48x32 nt gelu bias a/96 at 16");
}

TEST(ProductCall, MayBeAddedOntoWhatLiesElsewhere) {
  const auto bf16 = at::kBFloat16;
  const at::Tensor x = even({64, 32}, bf16), w = even({48, 32}, bf16), y = even({64, 48}, bf16),
                   onto = even({64, 48}, bf16), wide = even({64, 96}, bf16);
  const auto call = product_call(y, x, w.t(), true, {.onto = onto});
  ASSERT_TRUE(call);
  EXPECT_EQ(product_key(*call), "bf16 bf16 -> bf16 64x48x32 nt onto");
  EXPECT_TRUE(call->add);
  EXPECT_EQ(call->c, onto.const_data_ptr());
  const auto gaps = product_call(y, x, w.t(), true, {.onto = wide.narrow(1, 0, 48)});
  ASSERT_TRUE(gaps);
  EXPECT_EQ(product_key(*gaps), "bf16 bf16 -> bf16 64x48x32 nt onto onto/96");
  EXPECT_FALSE(product_call(y, x, w.t(), true, {.onto = even({64, 48}, at::kFloat)})) << "another type";
  EXPECT_FALSE(product_call(y, x, w.t(), true, {.onto = even({48, 64}, bf16).t()})) << "by columns";
  EXPECT_THROW(product_call(y, x, w.t(), true, {.onto = even({64, 32}, bf16)}), InternalError);
  EXPECT_THROW(product_call(y, x, w.t(), false, {.onto = onto}), InternalError);
}

TEST(ProductCall, LeavesOutWhatDoesNotFit) {
  const auto bf16 = at::kBFloat16;
  const at::Tensor x = even({64, 32}, bf16), w = even({48, 32}, bf16), y = even({64, 48}, bf16);
  EXPECT_TRUE(product_call(y, x, w.t(), false, {}));
  // Types that do not go together, doubles, 16-bit results of floats.
  EXPECT_FALSE(product_call(y, x.to(at::kHalf), w.t(), false, {}));
  EXPECT_FALSE(
      product_call(even({64, 48}, at::kDouble), even({64, 32}, at::kDouble), even({32, 48}, at::kDouble), false, {}));
  EXPECT_FALSE(product_call(y, even({64, 32}, at::kFloat), even({32, 48}, at::kFloat), false, {}));
  // Rows of 17 numbers, a place in the middle of 16 bytes, a result by columns.
  EXPECT_FALSE(product_call(even({64, 48}, bf16), even({64, 17}, bf16), even({17, 48}, bf16), false, {}));
  EXPECT_FALSE(product_call(y, even({64 * 32 + 1}, bf16).narrow(0, 1, 64 * 32).view({64, 32}), w.t(), false, {}));
  EXPECT_FALSE(product_call(even({48, 64}, bf16).t(), x, w.t(), false, {}));
  // A bias of another type than the result, and a sum without a place to go.
  EXPECT_FALSE(product_call(y, x, w.t(), false, {.kind = Kind::kBias, .bias = even({48}, at::kFloat)}));
  EXPECT_FALSE(product_call(y, x, w.t(), false, {.kind = Kind::kSum}));
  // Shapes that contradict each other are a mistake of ours.
  EXPECT_THROW(product_call(y, x, w, false, {}), InternalError);
  EXPECT_THROW(product_call(y, x, w.t(), false, {.kind = Kind::kBias, .bias = even({64}, bf16)}), InternalError);
}

TEST(ProductCall, EightBitFloatsAreSummedAlongRows) {
  const auto e4m3 = at::kFloat8_e4m3fn, e5m2 = at::kFloat8_e5m2;
  const at::Tensor y = even({64, 48}, at::kBFloat16), scale = even({1}, at::kFloat);
  const GemmExtras scales{.a_scale = scale, .b_scale = scale, .fast = true};
  const auto call = product_call(y, even({64, 32}, e5m2), even({48, 32}, e4m3).t(), false, scales);
  ASSERT_TRUE(call);
  EXPECT_EQ(product_key(*call), "e5m2 e4m3 -> bf16 64x48x32 nt fast");
  EXPECT_FALSE(product_call(y, even({64, 32}, e5m2), even({48, 32}, e5m2).t(), false, scales));
  EXPECT_FALSE(product_call(y, even({64, 32}, e4m3), even({32, 48}, e4m3), false, scales));
  EXPECT_FALSE(product_call(y, even({32, 64}, e4m3).t(), even({48, 32}, e4m3).t(), false, scales));
}

/// On the CPU the GEMMs are the tensor library's, whatever is asked.
TEST(GemmPrecision, OfTheCpuAreTheTensorLibrarys) {
  const at::Tensor x = normal_tensor({6, 5}, at::kDouble, "x"), w = normal_tensor({4, 5}, at::kDouble, "w"),
                   bias = normal_tensor({4}, at::kDouble, "b");
  const at::Tensor exact = at::mm(x, w.t());
  EXPECT_TRUE(same_bits(linear_product(x, w, at::Tensor()), exact));
  expect_near(linear_product(x, w, bias), exact + bias, 1e-14, 1e-14, "with a bias");
  const at::Tensor onto = normal_tensor({6, 4}, at::kDouble, "onto"), before = onto.clone();
  expect_near(linear_product(x, w, bias, onto), exact + bias + onto, 1e-14, 1e-14, "onto another");
  EXPECT_TRUE(same_bits(onto, before));
  at::Tensor out = at::empty({6, 4}, at::kDouble);
  product_into(out, x, w.t());
  EXPECT_TRUE(same_bits(out, exact));
  product_into(out, x, w.t(), /*add=*/true);
  expect_near(out, 2 * exact, 1e-14, 1e-14, "added");
  EXPECT_FALSE(takes_product(out, x, w.t()));
  EXPECT_FALSE(sums_in_product(out, x, w));
  EXPECT_EQ(chosen_text(), "");
}

}  // namespace
}  // namespace trireme::kernels
