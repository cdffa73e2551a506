// Passes over experts' rows on the CPU: every type and instruction set beside ATen's operators in double.
#include "trireme/kernels/expert_rows.h"

#include <ATen/ops/erf.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include "tests/kernels/support.h"
#include "trireme/kernels/expert_ops.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kRowWidths[] = {1, 3, 16, 17, 67, 300};

at::ScalarType type_of_gates(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

double largest_apart(const at::Tensor& found, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  return ((found.to(at::kDouble) - expected).abs() / (expected.abs() + 1)).max().item<double>();
}

double bound_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-13 : type == at::kFloat ? 4e-6 : type == at::kHalf ? 2e-3 : 1e-2;
}

TEST(ExpertRows, AreSummedByTokenInTheirOrder) {
  for_every_type_and_set([](const Precision& precision) {
    const std::vector<std::int64_t> first{0, 2, 2, 5, 6}, order{4, 1, 0, 3, 2, 5};
    for (const std::int64_t width : kRowWidths) {
      const at::Tensor from = normal_tensor({6, width}, precision.type, "from"), wide = from.to(at::kDouble);
      at::Tensor to = at::full({4, width}, 7, from.options());
      sum_token_rows(to, from, first, order);
      const at::Tensor none = at::zeros_like(wide[0]);
      const std::vector<at::Tensor> expected{wide[4] + wide[1], none, wide[0] + wide[3] + wide[2], wide[5]};
      for (std::int64_t token = 0; token < 4; ++token)
        EXPECT_LE(largest_apart(to[token], expected[static_cast<std::size_t>(token)]), bound_of(precision.type))
            << width;
    }
  });
}

TEST(ExpertRows, AreScaledByGatesAndGiveTheirGradients) {
  for_every_type_and_set([](const Precision& precision) {
    for (const std::int64_t width : kRowWidths) {
      const at::Tensor before = normal_tensor({5, width}, precision.type, "before"),
                       gates = normal_tensor({5}, type_of_gates(precision.type), "gates"),
                       dy = normal_tensor({5, width}, precision.type, "dy");
      const at::Tensor wide = gates.to(at::kDouble).unsqueeze(1);
      at::Tensor rows = before.clone();
      scale_expert_rows(rows, gates);
      EXPECT_LE(largest_apart(rows, before.to(at::kDouble) * wide), bound_of(precision.type));
      at::Tensor grad = dy.clone(), of_gates = at::empty_like(gates);
      scale_expert_rows_backward(grad, of_gates, before, gates);
      EXPECT_LE(largest_apart(grad, dy.to(at::kDouble) * wide), bound_of(precision.type));
      EXPECT_LE(largest_apart(of_gates, (dy.to(at::kDouble) * before.to(at::kDouble)).sum(1)),
                bound_of(type_of_gates(precision.type)));
    }
  });
}

at::Tensor value_of(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return x * 0.5 * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      break;
  }
  return x * at::sigmoid(x);
}

/// By central differences; relu has none at 0, where no number here is.
at::Tensor slope_of(const at::Tensor& x, Activation kind) {
  const double h = 1e-6;
  return (value_of(x + h, kind) - value_of(x - h, kind)) / (2 * h);
}

TEST(ExpertRows, ActivationsTimesGatesArePassesOfTheirOwnAtOnce) {
  for_every_type_and_set([](const Precision& precision) {
    const at::ScalarType type = precision.type;
    for (const Activation kind : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
      for (const bool gated : {false, true}) {
        for (const std::int64_t width : kRowWidths) {
          SCOPED_TRACE(fmt::format("kind {} gated {} width {}", static_cast<int>(kind), gated, width));
          const at::Tensor pre = normal_tensor({4, gated ? 2 * width : width}, type, "pre"),
                           gates = normal_tensor({4}, type_of_gates(type), "gates"),
                           dy = normal_tensor({4, width}, type, "dy");
          const at::Tensor x = pre.to(at::kDouble).narrow(1, 0, width), d = dy.to(at::kDouble),
                           gate = gates.to(at::kDouble).unsqueeze(1),
                           up = gated ? pre.to(at::kDouble).narrow(1, width, width) : at::ones_like(x);
          const at::Tensor y = value_of(x, kind) * up;
          EXPECT_LE(largest_apart(expert_activation(pre, gates, kind, gated), y * gate), bound_of(type));
          const ExpertActivationGrad grad =
              expert_activation_backward(dy.clone(), pre, gates, kind, gated, /*reuse=*/false);
          EXPECT_LE(largest_apart(grad.y, y * gate), bound_of(type));
          EXPECT_LE(largest_apart(grad.gates, (d * y).sum(1)), type == at::kDouble ? 1e-12 : 2e-5);
          const double slopes = std::max(bound_of(type), 1e-8);  // differences are no nearer
          EXPECT_LE(largest_apart(grad.pre.narrow(1, 0, width), d * gate * up * slope_of(x, kind)), slopes);
          if (gated) {
            EXPECT_LE(largest_apart(grad.pre.narrow(1, width, width), d * gate * value_of(x, kind)), bound_of(type));
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace trireme::kernels
