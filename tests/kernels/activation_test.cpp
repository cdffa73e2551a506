#include "trireme/kernels/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

constexpr Activation kKinds[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};

at::Tensor plain(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kRelu:
      return x.relu();
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return x.mul(x.sigmoid());
  }
  return {};
}

TEST(ActivationKernels, EqualTheDefinitionAndItsGradient) {
  for_every_type_and_set([](const Precision& precision) {
    for (const Activation kind : kKinds) {
      for (const auto [rows, width] : row_shapes()) {
        for (const bool with_bias : {false, true}) {
          SCOPED_TRACE(fmt::format("[{}, {}] kind {} bias {}", rows, width, static_cast<int>(kind), with_bias));
          const auto type = precision.type;
          const at::Tensor x = normal_tensor({rows, width}, type, "x", 2),
                           dy = normal_tensor({rows, width}, type, "dy");
          const at::Tensor bias = with_bias ? normal_tensor({width}, type, "b") : at::Tensor();
          at::Tensor y = at::empty_like(x), dx = at::empty_like(x), dbias, in = wide(x), b;
          if (with_bias) {
            dbias = at::ones({width}, sums_type(type));
            b = wide(bias);
          }
          activation_forward(y, x, bias, kind);
          activation_backward(dx, dbias, dy, x, bias, kind);
          const at::Tensor expected = plain(with_bias ? in.add(b) : in, kind);
          expected.backward(wide(dy, false));
          expect_near(y, expected, precision, "y");
          expect_near(dx, in.grad(), precision, "dx");
          const double sum_error = type == at::kDouble ? 1e-12 : 1e-5;
          if (!with_bias) continue;
          expect_near(dbias, b.grad().add(1), sum_error, sum_error * 3, "dbias");
          activation_backward(dx, dbias, dy, x, bias, kind, nullptr, /*overwrite=*/true);
          expect_near(dbias, b.grad(), sum_error, sum_error * 3, "dbias, begun");
        }
      }
    }
  });
}

TEST(ActivationKernels, GatedEqualTheDefinitionAndItsGradient) {
  for_every_type_and_set([](const Precision& precision) {
    for (const Activation kind : kKinds) {
      for (const auto [rows, width] : row_shapes()) {
        SCOPED_TRACE(fmt::format("[{}, {}] kind {}", rows, width, static_cast<int>(kind)));
        const auto type = precision.type;
        // Gate and up as the halves of one projection.
        at::Tensor both = normal_tensor({rows, 2 * width}, type, "gate and up");
        at::Tensor gate = both.slice(1, 0, width), up = both.slice(1, width);
        const at::Tensor dy = normal_tensor({rows, width}, type, "dy");
        at::Tensor y = at::empty({rows, width}, type), again = at::empty_like(y), g = wide(gate), u = wide(up);
        const at::Tensor expected = plain(g, kind).mul(u);
        expected.backward(wide(dy, false));
        gated_forward(y, gate, up, kind);
        expect_near(y, expected, precision, "y");
        gated_backward(gate, up, again, dy, gate, up, kind);  // over its own inputs
        EXPECT_TRUE(same_bits(again, y));
        expect_near(gate, g.grad(), precision, "dgate");
        expect_near(up, u.grad(), precision, "dup");
      }
    }
  });
}

// Relative to the value itself, down to where it is all but zero: sums of many small activations must not be noise.
TEST(ActivationKernels, AreAccurateRelativeToTheirOwnSize) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    SCOPED_TRACE(to_string(set));
    const auto x = at::linspace(-13, 13, 200001, at::kFloat).unsqueeze(0);
    const at::Tensor none, in = wide(x, false);
    at::Tensor y = at::empty_like(x);
    activation_forward(y, x, none, Activation::kGelu);
    expect_near(y, in.mul(in.mul(-std::sqrt(0.5)).erfc()).mul(0.5), 1e-6, 1e-37, "gelu");
    // The exponent's own rounding, as many units as the exponent is large, is all that is added.
    activation_forward(y, x, none, Activation::kSilu);
    expect_near(y, in.mul(in.sigmoid()), 1.5e-6, 0, "silu");
    activation_forward(y, x, none, Activation::kGeluTanh);
    const at::Tensor twice_u = in.add(in.pow(3).mul(0.044715)).mul(2 * std::sqrt(2 / M_PI));
    expect_near(y, in.mul(twice_u.sigmoid()), 1e-5, 1e-37, "gelu tanh");
    const at::Tensor near_zero = x.div(4);
    activation_forward(y, near_zero, none, Activation::kSilu);
    expect_near(y, plain(wide(near_zero, false), Activation::kSilu), 6e-7, 0, "silu");
    activation_forward(y, near_zero, none, Activation::kGeluTanh);
    expect_near(y, plain(wide(near_zero, false), Activation::kGeluTanh), 1e-6, 1e-9, "gelu tanh");
  }
}

TEST(ActivationKernels, HaveTheRightEnds) {
  for_every_type_and_set([](const Precision& precision) {
    for (const Activation kind : kKinds) {
      SCOPED_TRACE(static_cast<int>(kind));
      const at::Tensor none;
      at::Tensor x = at::zeros({1, 6}, precision.type), y = at::empty_like(x), dx = at::empty_like(x), nothing;
      const at::Tensor dy = at::ones_like(x);
      x[0][0] = std::nan("");
      x[0][1] = INFINITY;
      x[0][2] = -60000;
      x[0][3] = 60000;
      x[0][4] = precision.type == at::kHalf ? -60000 : -1e30;
      activation_forward(y, x, none, kind);
      activation_backward(dx, nothing, dy, x, none, kind);
      EXPECT_TRUE(std::isnan(y[0][0].item<double>()));
      EXPECT_EQ(y[0][1].item<double>(), INFINITY);
      EXPECT_EQ(y[0][2].item<double>(), 0);
      EXPECT_EQ(y[0][3].item<double>(), x[0][3].item<double>());
      EXPECT_EQ(y[0][4].item<double>(), 0);
      EXPECT_EQ(y[0][5].item<double>(), 0);
      if (kind != Activation::kRelu) {
        EXPECT_TRUE(std::isnan(dx[0][0].item<double>()));
      }
      EXPECT_EQ(dx[0][2].item<double>(), 0);
      EXPECT_EQ(dx[0][3].item<double>(), 1);
      EXPECT_EQ(dx[0][4].item<double>(), 0);
      EXPECT_EQ(dx[0][5].item<double>(), kind == Activation::kRelu ? 0 : 0.5);
    }
  });
}

TEST(ActivationKernels, WorkInPlaceOnRowsThatLieApart) {
  for_every_type_and_set([](const Precision& precision) {
    const at::Tensor none, x = normal_tensor({9, 37}, precision.type, "x"),
                           dy = normal_tensor({9, 37}, precision.type, "d");
    at::Tensor y = at::empty_like(x), dx = at::empty_like(x), nothing, in_place = apart(x), dy_place = apart(dy);
    activation_forward(y, x, none, Activation::kGelu);
    activation_backward(dx, nothing, dy, x, none, Activation::kGelu);
    activation_backward(dy_place, nothing, dy_place, in_place, none, Activation::kGelu);
    activation_forward(in_place, in_place, none, Activation::kGelu);
    EXPECT_TRUE(same_bits(in_place, y));
    EXPECT_TRUE(same_bits(dy_place, dx));
  });
}

TEST(ActivationKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for_every_type_and_set([](const Precision& precision) {
    const at::Tensor x = normal_tensor({1031, 100}, precision.type, "x"),
                     bias = normal_tensor({100}, precision.type, "b");
    const auto once = [&] {
      at::Tensor dx = at::empty_like(x), dbias = at::zeros({100}, sums_type(precision.type));
      activation_backward(dx, dbias, x, x, bias, Activation::kSilu);
      return std::make_pair(dx, dbias);
    };
    const auto one = with_threads(1, once), two = with_threads(2, once);
    EXPECT_TRUE(same_bits(one.first, two.first) && same_bits(one.second, two.second));
  });
}

TEST(ActivationKernels, SayWhatIsWrong) {
  const at::Tensor x = at::zeros({4, 6}), bias = at::zeros({6}, at::kHalf), none;
  at::Tensor y = at::zeros({6, 4}), whole = at::zeros({4, 6}, at::kInt), same = at::zeros({4, 6});
  EXPECT_THAT(refusal([&] { activation_forward(y, x, none, Activation::kRelu); }), HasSubstr("y, float [6, 4]"));
  EXPECT_THAT(refusal([&] { activation_forward(whole, whole, none, Activation::kRelu); }),
              HasSubstr("x, int32 [4, 6]"));
  EXPECT_THAT(refusal([&] { activation_forward(same, x, bias, Activation::kRelu); }), HasSubstr("bias, half [6]"));
}

}  // namespace
}  // namespace trireme::kernels
