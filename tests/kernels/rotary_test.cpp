#include "trireme/kernels/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

struct Angles {
  at::Tensor cosines, sines;
};
Angles angles(std::int64_t positions, std::int64_t half, c10::ScalarType type) {
  const auto frequencies = at::arange(half, at::kDouble).mul(-2.0 / 16).exp();
  const auto turns = at::arange(positions, at::kDouble).unsqueeze(1).mul(frequencies);
  return {turns.cos().to(sums_type(type)), turns.sin().to(sums_type(type))};
}

/// By complex numbers: pair k of the head is a + bi, multiplied by c + si.
at::Tensor plain_rotary(const at::Tensor& x, const Angles& table, const at::Tensor& positions, RotaryPairs pairs) {
  const std::int64_t half = table.cosines.size(1);
  const auto at_tokens = [&](const at::Tensor& t) {
    return t.to(at::kDouble).index_select(0, positions.flatten()).view({x.size(0), x.size(1), 1, half});
  };
  const at::Tensor c = at_tokens(table.cosines), s = at_tokens(table.sines);
  const at::Tensor transposed = x.narrow(3, 0, 2 * half), rest = x.slice(3, 2 * half);
  if (pairs == RotaryPairs::kHalves) {
    const at::Tensor a = transposed.narrow(3, 0, half), b = transposed.narrow(3, half, half);
    return at::cat({a.mul(c).sub(b.mul(s)), a.mul(s).add(b.mul(c)), rest}, 3);
  }
  const at::Tensor pair = transposed.unflatten(3, {half, 2}), a = pair.select(4, 0), b = pair.select(4, 1);
  return at::cat({at::stack({a.mul(c).sub(b.mul(s)), a.mul(s).add(b.mul(c))}, 4).flatten(3), rest}, 3);
}

TEST(RotaryKernels, TurnPairsAndTheGradientBack) {
  for_every_type_and_set([](const Precision& precision) {
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
      for (const std::int64_t half : {1, 3, 8, 17, 32, 64}) {
        for (const std::int64_t rest : {0, 5}) {
          SCOPED_TRACE(fmt::format("half {} rest {} pairs {}", half, rest, static_cast<int>(pairs)));
          const Angles table = angles(50, half, precision.type);
          const at::Tensor positions = at::tensor({7, 0, 49, 3, 3, 21}, at::kLong).view({2, 3});
          // A view of one fused projection: queries before it, values behind.
          at::Tensor fused = normal_tensor({2, 3, 9, 2 * half + rest}, precision.type, "qkv");
          const at::Tensor before = fused.clone();
          at::Tensor keys = fused.slice(2, 4, 6);
          at::Tensor in = wide(keys);
          rotary_(keys, table.cosines, table.sines, positions, pairs, false);
          const at::Tensor expected = plain_rotary(in, table, positions, pairs);
          expect_near(keys, expected, precision, "turned");
          EXPECT_TRUE(same_bits(fused.slice(2, 0, 4), before.slice(2, 0, 4)));
          EXPECT_TRUE(same_bits(fused.slice(2, 6), before.slice(2, 6)));

          at::Tensor gradient = normal_tensor(in.sizes(), precision.type, "dy");
          expected.backward(wide(gradient, false));
          rotary_(gradient, table.cosines, table.sines, positions, pairs, true);
          expect_near(gradient, in.grad(), precision, "gradient");
        }
      }
    }
  });
}

TEST(RotaryKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for_every_type_and_set([](const Precision& precision) {
    const Angles table = angles(701, 16, precision.type);
    const auto once = [&] {
      at::Tensor x = normal_tensor({1, 701, 4, 32}, precision.type, "x");
      rotary_(x, table.cosines, table.sines, at::arange(701).unsqueeze(0), RotaryPairs::kNeighbours, false);
      return x;
    };
    EXPECT_TRUE(same_bits(with_threads(1, once), with_threads(2, once)));
  });
}

TEST(RotaryKernels, PassNanOnWithinItsPairOnly) {
  for_every_type_and_set([](const Precision& precision) {
    const Angles table = angles(2, 9, precision.type);
    at::Tensor x = normal_tensor({1, 1, 1, 18}, precision.type, "x");
    x[0][0][0][3] = std::nan("");
    rotary_(x, table.cosines, table.sines, at::ones({1, 1}, at::kLong), RotaryPairs::kNeighbours, false);
    EXPECT_EQ(x.isnan().sum().item<int>(), 2);
    EXPECT_TRUE(x[0][0][0][2].isnan().item<bool>());
  });
}

TEST(RotaryKernels, TakeNothing) {
  const Angles table = angles(4, 8, at::kFloat);
  at::Tensor none = at::empty({0, 5, 2, 16});
  rotary_(none, table.cosines, table.sines, at::empty({0, 5}, at::kLong), RotaryPairs::kHalves, false);
}

TEST(RotaryKernels, SayWhatIsWrong) {
  const Angles table = angles(4, 8, at::kFloat);
  at::Tensor x = at::zeros({1, 2, 3, 16}), narrow = at::zeros({1, 2, 3, 8});
  const at::Tensor positions = at::tensor({1, 4}, at::kLong).view({1, 2});
  EXPECT_EQ(refusal([&] { rotary_(x, table.cosines, table.sines, positions, RotaryPairs::kHalves, false); }),
            "rotary_: positions[1] is 4, but cosines, float [4, 8] have rows 0 to 3");
  EXPECT_THAT(refusal([&] { rotary_(narrow, table.cosines, table.sines, positions, RotaryPairs::kHalves, false); }),
              HasSubstr("rotate 16 elements of a head"));
  EXPECT_THAT(
      refusal([&] { rotary_(x, table.cosines.to(at::kDouble), table.sines, positions, RotaryPairs::kHalves, false); }),
      HasSubstr("cosines, double [4, 8]"));
}

}  // namespace
}  // namespace trireme::kernels
