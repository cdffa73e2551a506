#include "trireme/kernels/update.h"

#include <cmath>
#include <limits>

#include "tests/gpu/support.h"

namespace trireme::gpu {
namespace {

struct Tensors {
  Pair weight, gradient, m, v, update;
  at::Tensor cpu_low, gpu_low;  // undefined: none
};

/// The CPU's side is of the same type here: both round alike but for the order of fused operations.
Tensors tensors(std::int64_t count, at::ScalarType type, at::ScalarType gradient) {
  const auto both = [&](const at::Tensor& values, at::ScalarType as) {
    return Pair{values.to(as), values.to(as).to(gpu())};
  };
  Tensors t{both(normal_tensor({count}, at::kDouble, "w"), type),
            both(normal_tensor({count}, at::kDouble, "g"), gradient),
            both(normal_tensor({count}, at::kDouble, "m", 0.1), type),
            both(normal_tensor({count}, at::kDouble, "v", 0.1).square(), type),
            both(at::zeros({count}, at::kDouble), type),
            {},
            {}};
  if (type == at::kFloat) {
    t.cpu_low = at::empty({count}, at::kBFloat16);
    t.gpu_low = t.cpu_low.to(gpu());
  }
  return t;
}

void expect_same(const Tensors& t, double tolerance) {
  for (const auto& [name, pair] : {std::pair{"weight", &t.weight}, std::pair{"gradient", &t.gradient},
                                   std::pair{"m", &t.m}, std::pair{"v", &t.v}, std::pair{"update", &t.update}}) {
    kernels::expect_near(pair->gpu.cpu(), pair->cpu, tolerance, tolerance, name);
  }
  if (t.cpu_low.defined()) kernels::expect_near(t.gpu_low.cpu(), t.cpu_low, 0.0079, 0, "low");
}

template <typename Body>
void for_updates(Body&& body) {
  for (const std::int64_t count : {1, 7, 4096, 100003}) {
    for (const auto gradient : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(count);
      Tensors t = tensors(count, at::kFloat, gradient);
      body(t);
      expect_same(t, 3e-6);
    }
    Tensors t = tensors(count, at::kDouble, at::kDouble);
    body(t);
    expect_same(t, 1e-13);
  }
}

kernels::UpdateTensors side(Tensors& t, at::Tensor Pair::*of) {
  return {.weight = t.weight.*of,
          .gradient = t.gradient.*of,
          .low = of == &Pair::cpu ? t.cpu_low : t.gpu_low,
          .gradient_scale = 0.7,
          .zero_gradient = true};
}

TEST(GpuUpdates, EqualTheCpus) {
  at::Tensor none;
  for_updates([&](Tensors& t) {
    for (const auto of : {&Pair::cpu, &Pair::gpu}) {
      kernels::sgd_update(side(t, of), t.m.*of,
                          {.learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true});
    }
  });
  for_updates([&](Tensors& t) {
    for (const auto of : {&Pair::cpu, &Pair::gpu}) kernels::sgd_update(side(t, of), none, {.learning_rate = 0.1});
  });
  for_updates([&](Tensors& t) {
    for (const auto of : {&Pair::cpu, &Pair::gpu}) {
      kernels::adagrad_update(side(t, of), t.v.*of, {.learning_rate = 0.1, .weight_decay = 0.01});
    }
  });
  for (const bool decoupled : {true, false}) {
    for_updates([&](Tensors& t) {
      for (const auto of : {&Pair::cpu, &Pair::gpu}) {
        kernels::adamw_update(side(t, of), t.m.*of, t.v.*of,
                              {.learning_rate = 0.1, .weight_decay = 0.1, .step = 3, .decoupled = decoupled});
      }
    });
  }
  for_updates([&](Tensors& t) {
    kernels::NormPair norms[2];
    int i = 0;
    for (const auto of : {&Pair::cpu, &Pair::gpu}) {
      norms[i] = kernels::lamb_direction(side(t, of), t.m.*of, t.v.*of, t.update.*of,
                                         {.learning_rate = 0.1, .weight_decay = 0.1, .step = 3});
      kernels::apply_direction(side(t, of), t.update.*of, 0.1 * kernels::lamb_ratio(norms[0]));
      ++i;
    }
    EXPECT_NEAR(norms[1].weight_squared / norms[0].weight_squared, 1, 1e-6);
    EXPECT_NEAR(norms[1].update_squared / norms[0].update_squared, 1, 1e-5);
  });
  for_updates([&](Tensors& t) {
    const auto cpu = kernels::lars_norms(side(t, &Pair::cpu)), there = kernels::lars_norms(side(t, &Pair::gpu));
    EXPECT_NEAR(there.weight_squared / cpu.weight_squared, 1, 1e-6);
    EXPECT_NEAR(there.update_squared / cpu.update_squared, 1, 1e-6);
    for (const auto of : {&Pair::cpu, &Pair::gpu}) {
      kernels::lars_update(side(t, of), t.m.*of, 0.3, {.learning_rate = 0.1, .weight_decay = 0.1});
    }
  });
}

TEST(GpuUpdates, ManyAtOnceAreEachByItself) {
  std::vector<Tensors> all, alone;
  for (std::int64_t i = 0; i < 250; ++i) {
    const std::int64_t count = i == 40 ? 0 : 1 + (i * 7919) % 9000;
    all.push_back(tensors(count, at::kFloat, at::kFloat));
    alone.push_back(tensors(count, at::kFloat, at::kFloat));
  }
  std::vector<kernels::AdamWUpdate> updates;
  std::vector<const at::Tensor*> weights;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const kernels::AdamW options{.learning_rate = 0.01 * static_cast<double>(i), .weight_decay = 0.1, .step = 2};
    updates.push_back({side(all[i], &Pair::gpu), all[i].m.gpu, all[i].v.gpu, options});
    kernels::adamw_update(side(alone[i], &Pair::gpu), alone[i].m.gpu, alone[i].v.gpu, options);
    weights.push_back(&all[i].weight.gpu);
  }
  kernels::adamw_updates(updates);
  const std::vector<double> squares = kernels::sums_of_squares(weights);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(same_bits(all[i].weight.gpu.cpu(), alone[i].weight.gpu.cpu())) << i;
    EXPECT_TRUE(same_bits(all[i].v.gpu.cpu(), alone[i].v.gpu.cpu())) << i;
    EXPECT_TRUE(same_bits(all[i].gpu_low.cpu(), alone[i].gpu_low.cpu())) << i;
    const double expected = kernels::sum_of_squares(all[i].weight.gpu.cpu());
    EXPECT_NEAR(squares[i], expected, 2e-7 * expected) << i;  // four squares are added up in float
  }
}

/// Between those of other types; at places that begin within a vector of eight; of 16 bits that have no body of their
/// own.
TEST(GpuUpdates, TakeNarrowGradientsBesideFp32StatesInOneCall) {
  std::vector<Tensors> all;
  for (std::int64_t i = 0; i < 60; ++i) {
    const std::int64_t count = 1 + (i * 7919) % 9000;
    Tensors& t = all.emplace_back(tensors(count, at::kFloat,
                                          i % 4 == 0   ? at::kFloat
                                          : i % 4 == 1 ? at::kHalf
                                                       : at::kBFloat16));
    if (i % 3 != 0) continue;
    at::Tensor room = at::empty({count + 4}, t.gradient.gpu.options());
    room.narrow(0, 4, count).copy_(t.gradient.gpu);
    t.gradient.gpu = room.narrow(0, 4, count);
  }
  std::vector<kernels::AdamWUpdate> updates;
  for (Tensors& t : all) {
    const kernels::AdamW options{.learning_rate = 0.01, .weight_decay = 0.1, .step = 2};
    updates.push_back({side(t, &Pair::gpu), t.m.gpu, t.v.gpu, options});
    kernels::adamw_update(side(t, &Pair::cpu), t.m.cpu, t.v.cpu, options);
  }
  kernels::adamw_updates(updates);
  for (const Tensors& t : all) expect_same(t, 3e-6);
}

/// The same chances as on the CPU: but for numbers that fused operations leave on the other side of a draw, the bits.
TEST(GpuUpdate, RoundsByChanceAsTheCpuDoes) {
  const std::int64_t count = 100003;
  Pair weight = {normal_tensor({count}, at::kBFloat16, "w"), {}}, m = {normal_tensor({count}, at::kBFloat16, "m"), {}};
  Pair v = {normal_tensor({count}, at::kBFloat16, "v").square(), {}},
       gradient = {normal_tensor({count}, at::kBFloat16, "g"), {}};
  for (Pair* pair : {&weight, &m, &v, &gradient}) pair->gpu = pair->cpu.to(gpu());
  at::Tensor none;
  for (const auto of : {&Pair::cpu, &Pair::gpu}) {
    kernels::adamw_update({.weight = weight.*of, .gradient = gradient.*of, .low = none}, m.*of, v.*of,
                          {.learning_rate = 1e-3, .weight_decay = 0.1, .step = 3, .rounding = 99});
  }
  for (const Pair* pair : {&weight, &m, &v}) {
    const at::Tensor here = pair->gpu.cpu();
    EXPECT_LT(here.ne(pair->cpu).sum().item<std::int64_t>(), count / 500);
    kernels::expect_near(here, pair->cpu, 0.0079, 1e-30, "a neighbour");
  }
}

/// Where squares leave what a float can hold, at odd places and lengths too.
TEST(GpuSquares, EqualTheCpusForNumbersOfAnySize) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const double size : {1e-25, 1e-4, 1.0, 1e3, 1e25}) {
      if (type == at::kHalf && (size < 1e-4 || size > 1e3)) continue;
      for (const std::int64_t first : {0, 4}) {
        for (const std::int64_t count : {1, 7, 4096, 100003}) {
          const at::Tensor x = normal_tensor({first + count}, at::kDouble, "x").mul(size).to(type);
          const double there = kernels::sum_of_squares(x.to(gpu()).narrow(0, first, count));
          const double here = x.narrow(0, first, count).to(at::kDouble).square().sum().item<double>();
          EXPECT_NEAR(there, here, 4e-7 * here) << c10::toString(type) << " " << size << " " << first << " " << count;
        }
      }
    }
  }
  const at::Tensor non_finite = at::ones({1000}, at::TensorOptions(at::kBFloat16).device(gpu()));
  non_finite[777] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(kernels::sum_of_squares(non_finite)));
  non_finite[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(kernels::sum_of_squares(non_finite)));
}

}  // namespace
}  // namespace trireme::gpu
