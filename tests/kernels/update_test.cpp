#include "trireme/kernels/update.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kCounts[] = {0, 1, 3, 16, 17, 1000, 16384 * 2 + 37};

/// What an update may read and write, for one mixture of types.
struct Mixture {
  c10::ScalarType weight, gradient, moment;
  std::optional<c10::ScalarType> low;
};
std::vector<Mixture> mixtures() {
  return {{at::kDouble, at::kDouble, at::kDouble, {}},
          {at::kFloat, at::kFloat, at::kFloat, {}},
          {at::kFloat, at::kBFloat16, at::kFloat, at::kBFloat16},
          {at::kFloat, at::kHalf, at::kBFloat16, at::kHalf}};
}

/// Runs `body(mixture, count)` for every mixture and size on every instruction set.
template <typename Body>
void for_every_mixture(Body&& body) {
  const Threads one(1);
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const Mixture& mix : mixtures()) {
      for (const std::int64_t count : kCounts) {
        SCOPED_TRACE(fmt::format("{} numbers, gradient {}, moment {}, {}", count, c10::toString(mix.gradient),
                                 c10::toString(mix.moment), to_string(set)));
        body(mix, count);
      }
    }
  }
}

/// The tensors of an update and the same in double, for the written-out formula.
struct State {
  State(const Mixture& mix, std::int64_t count)
      : weight(normal_tensor({count}, mix.weight, "w")),
        first(at::zeros({count}, mix.moment)),
        second(at::zeros({count}, mix.weight)),
        w(wide(weight, false)),
        m(wide(first, false)),
        v(wide(second, false)),
        error(mix.weight == at::kDouble ? 1e-12 : 3e-6),
        moment_error(mix.moment == at::kBFloat16 ? 0.02 : error) {
    if (mix.low) low = at::empty({count}, *mix.low);
  }
  /// A step's gradient, ours and in double with the scale applied.
  void draw(const Mixture& mix, int step) {
    gradient = normal_tensor(weight.sizes(), mix.gradient, fmt::format("g{}", step));
    g = wide(gradient, false).mul(kScale);
  }
  UpdateTensors tensors() { return {weight, gradient, low, kScale, /*zero_gradient=*/true}; }
  void expect_equal() {
    const double loose = moment_error > error ? 3e-3 : error;  // a rounded moment shows in the weight by its step
    expect_near(weight, w, error, loose, "weight");
    expect_near(first, m, moment_error, moment_error, "first");
    expect_near(second, v, error, error, "second");
    if (low.defined()) {
      EXPECT_TRUE(same_bits(low, weight.to(low.scalar_type())));
    }
    EXPECT_EQ(gradient.ne(0).sum().item<std::int64_t>(), 0);
  }

  static constexpr double kScale = 0.25;
  at::Tensor weight, first, second, w, m, v, gradient, g, low;
  double error, moment_error;
};

TEST(UpdateKernels, AdamIsItsFormula) {
  for (const bool decoupled : {true, false}) {
    for_every_mixture([&](const Mixture& mix, std::int64_t count) {
      State s(mix, count);
      for (int step = 1; step <= 3; ++step) {
        s.draw(mix, step);
        const AdamW o{.learning_rate = 0.01, .weight_decay = 0.1, .beta2 = 0.99, .step = step, .decoupled = decoupled};
        adamw_update(s.tensors(), s.first, s.second, o);
        const at::Tensor g = decoupled ? s.g : s.g.add(s.w, o.weight_decay);
        s.m = s.m.mul(o.beta1).add(g.mul(1 - o.beta1));
        s.v = s.v.mul(o.beta2).add(g.square().mul(1 - o.beta2));
        const at::Tensor direction =
            s.m.div(1 - std::pow(o.beta1, step)).div(s.v.div(1 - std::pow(o.beta2, step)).sqrt().add(o.epsilon));
        if (decoupled) s.w = s.w.mul(1 - o.learning_rate * o.weight_decay);
        s.w = s.w.sub(direction, o.learning_rate);
      }
      s.expect_equal();
    });
  }
}

TEST(UpdateKernels, AdamEqualsPyTorchsFusedOne) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    at::Tensor weight = normal_tensor({1003}, type, "w"), m = at::zeros({1003}, type), v = at::zeros({1003}, type),
               none;
    at::Tensor weight2 = weight.clone(), m2 = m.clone(), v2 = v.clone();
    for (int step = 1; step <= 20; ++step) {
      at::Tensor g = normal_tensor({1003}, type, fmt::format("g{}", step));
      adamw_update({weight, g, none}, m, v, {.learning_rate = 1e-2, .weight_decay = 0.1, .step = step});
      at::Tensor count = at::full({}, static_cast<double>(step), at::kFloat);
      at::TensorList no_max;
      std::vector<at::Tensor> ws{weight2}, gs{g}, ms{m2}, vs{v2}, counts{count};
      at::_fused_adamw_(ws, gs, ms, vs, no_max, counts, 1e-2, 0.9, 0.999, 0.1, 1e-8, false, false);
    }
    expect_near(weight, weight2, type == at::kFloat ? 1e-5 : 1e-12, type == at::kFloat ? 1e-6 : 1e-13, "weight");
    expect_near(m, m2, type == at::kFloat ? 1e-5 : 1e-12, 1e-7, "m");
    expect_near(v, v2, type == at::kFloat ? 1e-5 : 1e-12, 1e-9, "v");
  }
}

TEST(UpdateKernels, SgdIsItsFormulaAndPyTorchs) {
  for (const Sgd base : {Sgd{.learning_rate = 0.1, .weight_decay = 0.01},
                         Sgd{.learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.3},
                         Sgd{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}}) {
    for_every_mixture([&](const Mixture& mix, std::int64_t count) {
      State s(mix, count);
      s.first.fill_(1e6);  // what the first step must not look at
      at::Tensor peer = s.w.clone(), peer_velocity = at::zeros_like(peer), none;
      for (int step = 1; step <= 3; ++step) {
        s.draw(mix, step);
        Sgd o = base;
        o.first = step == 1;
        const at::Tensor scaled = s.g;
        sgd_update(s.tensors(), o.momentum == 0 ? none : s.first, o);
        at::Tensor g = s.g.add(s.w, o.weight_decay);
        if (o.momentum != 0) {
          s.m = o.first ? g : s.m.mul(o.momentum).add(g.mul(1 - o.dampening));
          g = o.nesterov ? g.add(s.m, o.momentum) : s.m;
        }
        s.w = s.w.sub(g, o.learning_rate);
        std::vector<at::Tensor> ws{peer}, gs{scaled.clone()}, vs{peer_velocity};
        if (o.momentum == 0) vs.clear();
        at::_fused_sgd_(ws, gs, vs, o.weight_decay, o.momentum, o.learning_rate, o.dampening, o.nesterov, false,
                        o.first);
      }
      if (base.momentum == 0) s.first.copy_(s.m);
      s.expect_equal();
      expect_near(s.w, peer, 1e-10, 1e-10, "PyTorch's weight");
    });
  }
}

TEST(UpdateKernels, AdagradIsItsFormulaAndPyTorchs) {
  for_every_mixture([](const Mixture& mix, std::int64_t count) {
    State s(mix, count);
    const Adagrad o{.learning_rate = 0.1, .weight_decay = 0.01};
    at::Tensor peer = s.w.clone(), peer_sum = at::zeros_like(peer);
    for (int step = 1; step <= 3; ++step) {
      s.draw(mix, step);
      std::vector<at::Tensor> ws{peer}, gs{s.g.clone()}, vs{peer_sum},
          counts{at::full({}, static_cast<double>(step), at::kFloat)};
      at::_fused_adagrad_(ws, gs, vs, counts, o.learning_rate, 0.0, o.weight_decay, o.epsilon, false);
      adagrad_update(s.tensors(), s.second, o);
      const at::Tensor g = s.g.add(s.w, o.weight_decay);
      s.v = s.v.add(g.square());
      s.w = s.w.sub(g.div(s.v.sqrt().add(o.epsilon)), o.learning_rate);
    }
    s.expect_equal();
    expect_near(s.w, peer, 1e-10, 1e-10, "PyTorch's weight");
  });
}

TEST(UpdateKernels, LambIsItsFormula) {
  for_every_mixture([](const Mixture& mix, std::int64_t count) {
    State s(mix, count);
    at::Tensor update = at::empty_like(s.weight);
    for (int step = 1; step <= 3; ++step) {
      s.draw(mix, step);
      const AdamW o{.learning_rate = 0.02, .weight_decay = 0.1, .epsilon = 1e-6, .step = step};
      const NormPair norms = lamb_direction(s.tensors(), s.first, s.second, update, o);
      const double ratio = lamb_ratio(norms);
      apply_direction(s.tensors(), update, o.learning_rate * ratio);
      s.m = s.m.mul(o.beta1).add(s.g.mul(1 - o.beta1));
      s.v = s.v.mul(o.beta2).add(s.g.square().mul(1 - o.beta2));
      const at::Tensor direction = s.m.div(1 - std::pow(o.beta1, step))
                                       .div(s.v.div(1 - std::pow(o.beta2, step)).sqrt().add(o.epsilon))
                                       .add(s.w, o.weight_decay);
      const double weight_norm = s.w.norm().item<double>(), update_norm = direction.norm().item<double>();
      const double expected = count == 0 ? 1 : weight_norm / update_norm;
      EXPECT_NEAR(ratio, expected, expected * (s.moment_error > s.error ? 3e-3 : 1e-5));
      // The size of a step is the learning rate times the size of the weight: LAMB's point.
      if (count > 0) {
        EXPECT_NEAR(direction.mul(o.learning_rate * expected).norm().item<double>(), o.learning_rate * weight_norm,
                    1e-9);
      }
      s.w = s.w.sub(direction, o.learning_rate * expected);
    }
    s.expect_equal();
  });
}

TEST(UpdateKernels, LarsIsItsFormula) {
  for_every_mixture([](const Mixture& mix, std::int64_t count) {
    State s(mix, count);
    for (int step = 1; step <= 3; ++step) {
      s.draw(mix, step);
      // A learning rate that changes: a ratio outside the velocity would show.
      const Lars o{.learning_rate = 2.0 / step, .weight_decay = 0.01, .coefficient = 0.02};
      const NormPair norms = lars_norms(s.tensors());
      EXPECT_NEAR(norms.weight_squared, s.w.square().sum().item<double>(), 1e-4 * static_cast<double>(count));
      const double weight = s.w.norm().item<double>(), gradient = s.g.norm().item<double>();
      const double ratio = count == 0 ? 1 : o.coefficient * weight / (gradient + o.weight_decay * weight);
      EXPECT_NEAR(lars_ratio(norms, o), ratio, 1e-3 * ratio);
      lars_update(s.tensors(), s.first, ratio, o);
      s.m = s.m.mul(o.momentum).add(s.g.add(s.w, o.weight_decay).mul(o.learning_rate * ratio));
      s.w = s.w.sub(s.m);
    }
    s.expect_equal();
  });
}

TEST(UpdateKernels, RatiosOfNothingAreOne) {
  EXPECT_EQ(lamb_ratio({0, 4}), 1);
  EXPECT_EQ(lamb_ratio({4, 0}), 1);
  EXPECT_EQ(lamb_ratio({16, 4}), 2);
  EXPECT_EQ(lars_ratio({0, 4}, {.learning_rate = 1}), 1);
  EXPECT_EQ(lars_ratio({4, 0}, {.learning_rate = 1, .weight_decay = 1}), 1);
  EXPECT_DOUBLE_EQ(lars_ratio({4, 9}, {.learning_rate = 1, .weight_decay = 0.5, .coefficient = 0.1}), 0.05);
}

TEST(UpdateKernels, LeaveTheGradientWhereNobodyAskedForZeros) {
  at::Tensor weight = at::ones({40}), g = normal_tensor({40}, at::kFloat, "g"), before = g.clone(), none;
  sgd_update({weight, g, none}, none, {.learning_rate = 0.5});
  EXPECT_TRUE(same_bits(g, before));
}

TEST(UpdateKernels, SumSquaresInDouble) {
  for_every_type_and_set([](const Precision& precision) {
    for (const std::int64_t count : kCounts) {
      const at::Tensor x = normal_tensor({count}, precision.type, "x");
      const double expected = wide(x, false).square().sum().item<double>();
      EXPECT_NEAR(sum_of_squares(x), expected, expected * 1e-13) << count;
    }
    at::Tensor x = at::ones({100}, precision.type);
    x[99] = std::nan("");
    EXPECT_TRUE(std::isnan(sum_of_squares(x)));
    x[99] = -INFINITY;
    EXPECT_EQ(sum_of_squares(x), INFINITY);
  });
  // A float's square would overflow.
  EXPECT_DOUBLE_EQ(sum_of_squares(at::full({3}, 0x1p100, at::kFloat)), 3 * 0x1p200);
}

TEST(UpdateKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    const std::int64_t count = 200003;
    const auto once = [&] {
      at::Tensor w = normal_tensor({count}, at::kFloat, "w"), m = at::zeros({count}), v = at::zeros({count});
      at::Tensor g = normal_tensor({count}, at::kBFloat16, "g"), low = at::empty({count}, at::kBFloat16),
                 u = at::empty({count});
      const NormPair norms = lamb_direction({w, g, low}, m, v, u, {.learning_rate = 1});
      adamw_update({w, g, low}, m, v, {.learning_rate = 0.1, .step = 2});
      return std::make_tuple(w, low, norms.weight_squared, norms.update_squared, sum_of_squares(w));
    };
    const auto [w1, low1, a1, b1, s1] = with_threads(1, once);
    const auto [w2, low2, a2, b2, s2] = with_threads(2, once);
    EXPECT_TRUE(same_bits(w1, w2) && same_bits(low1, low2));
    EXPECT_TRUE(a1 == a2 && b1 == b2 && s1 == s2);
  }
}

TEST(UpdateKernels, SayWhatIsWrong) {
  at::Tensor weight = at::zeros({8}), g = at::zeros({8}), none, m = at::zeros({8}), v = at::zeros({8}, at::kBFloat16);
  at::Tensor narrow = at::zeros({8}, at::kHalf), shorter = at::zeros({7});
  EXPECT_EQ(refusal([&] {
              adamw_update({weight, g, none}, m, v, {.learning_rate = 1});
            }),
            "adamw_update: v, bfloat16 [8] must be 8 contiguous elements, float");
  EXPECT_EQ(refusal([&] {
              adamw_update({weight, shorter, none}, m, m, {.learning_rate = 1});
            }),
            "adamw_update: gradient, float [7] must be 8 contiguous elements, float, bfloat16 or half");
  EXPECT_THAT(refusal([&] {
                sgd_update({narrow, g, none}, none, {.learning_rate = 1});
              }),
              HasSubstr("weight, half [8]"));
  EXPECT_THAT(refusal([&] { sgd_update({weight, g, m}, none, {.learning_rate = 1}); }), HasSubstr("low, float [8]"));
  EXPECT_THAT(refusal([&] {
                adamw_update({weight, g, none}, m, m, {.learning_rate = 1, .step = 0});
              }),
              HasSubstr("steps count from 1"));
  EXPECT_THAT(refusal([&] {
                sgd_update({weight, g, none}, none, {.learning_rate = 1, .momentum = 0.5});
              }),
              HasSubstr("velocity is undefined"));
}

}  // namespace
}  // namespace trireme::kernels
