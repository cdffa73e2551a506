#include "trireme/kernels/dropout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

/// One draw by the definition, with base/random.h.
std::uint32_t draw(const Random& stream, std::uint64_t number) {
  const PhiloxCounter words = stream.block(Random::Purpose::kBits, 0, 1);
  const std::uint64_t block = number / 4;
  return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), words[2], words[3]},
                {words[0], words[1]})[number % 4];
}

TEST(DropoutKernels, DropWhatTheDefinitionSays) {
  for_every_type_and_set([](const Precision& precision) {
    for (const double p : {0.1, 0.5, 0.97}) {
      for (const auto [rows, width] : row_shapes()) {
        SCOPED_TRACE(fmt::format("[{}, {}] p {}", rows, width, p));
        const Dropout dropout{Random(1, "dropout/layer 3/step 9"), p};
        at::Tensor x = normal_tensor({rows, width}, precision.type, "x"), dropped = x.clone();
        // Rows of a long sequence, beyond 32 bits of draws, in any order.
        at::Tensor index = at::arange(rows).mul(7).add(std::int64_t{1} << 40);
        dropout_(dropped, dropout, index, 5, width + 9);
        const auto threshold = static_cast<std::uint32_t>(std::nearbyint(p * 0x1p32));
        for (std::int64_t r = 0; r < rows; ++r) {
          const at::Tensor now = dropped[r].to(at::kDouble),
                           before = x[r].to(at::kDouble).div(1 - p).to(x.scalar_type());
          for (std::int64_t c = 0; c < std::min<std::int64_t>(width, 300); ++c) {
            const std::uint64_t number =
                static_cast<std::uint64_t>(index[r].item<std::int64_t>() * (width + 9) + 5 + c);
            const bool falls = draw(dropout.stream, number) < threshold;
            const double expected = falls ? 0 : before[c].item<double>();
            ASSERT_NEAR(now[c].item<double>(), expected, std::abs(expected) * 2 * precision.relative) << r << " " << c;
          }
        }
      }
    }
  });
}

TEST(DropoutKernels, SlicesDrawTheCoinsOfTheWhole) {
  for_every_type_and_set([](const Precision& precision) {
    const Dropout dropout{Random(1, "d"), 0.3};
    const at::Tensor x = normal_tensor({23, 301}, precision.type, "x"), index = at::arange(23).add(100);
    at::Tensor whole = x.clone(), pieces = x.clone();
    dropout_(whole, dropout, index, 0, 301);
    for (const auto& [top, bottom] : {std::pair{0, 7}, std::pair{7, 23}}) {
      for (const auto& [left, right] : {std::pair{0, 2}, std::pair{2, 131}, std::pair{131, 301}}) {
        at::Tensor piece = pieces.slice(0, top, bottom).slice(1, left, right);
        dropout_(piece, dropout, index.slice(0, top, bottom), left, 301);
      }
    }
    EXPECT_TRUE(same_bits(whole, pieces));
    at::Tensor threads = with_threads(3, [&] {
      at::Tensor y = x.clone();
      dropout_(y, dropout, index, 0, 301);
      return y;
    });
    EXPECT_TRUE(same_bits(whole, threads));
  });
}

TEST(DropoutKernels, DropTheRightShareEvenlyAndKeepTheMean) {
  const std::int64_t n = 1 << 20;
  for (const double p : {0.001, 0.1, 0.5, 0.9}) {
    at::Tensor x = at::ones({1024, 1024});
    dropout_(x, {Random(2, "share"), p}, at::arange(1024), 0, 1024);
    const double sigma = std::sqrt(p * (1 - p) / static_cast<double>(n));
    EXPECT_NEAR(x.eq(0).to(at::kDouble).mean().item<double>(), p, 5 * sigma);
    EXPECT_NEAR(x.to(at::kDouble).mean().item<double>(), 1, 5 * sigma / (1 - p));
    const at::Tensor columns = x.eq(0).to(at::kDouble).mean(0);
    EXPECT_LT(columns.sub(p).abs().max().item<double>(), 6 * std::sqrt(p * (1 - p) / 1024));
  }
}

TEST(DropoutKernels, OtherStepsAndLayersDrawOthers) {
  at::Tensor a = at::ones({64, 64}), b = a.clone();
  dropout_(a, {Random(1, "dropout/layer 1/step 1"), 0.5}, at::arange(64), 0, 64);
  dropout_(b, {Random(1, "dropout/layer 1/step 2"), 0.5}, at::arange(64), 0, 64);
  EXPECT_NEAR(a.eq(b).to(at::kDouble).mean().item<double>(), 0.5, 0.05);
}

TEST(DropoutKernels, HaveTheRightEnds) {
  const at::Tensor start = normal_tensor({64, 64}, at::kFloat, "x");
  at::Tensor x = start.clone();
  dropout_(x, {Random(1, "d"), 0}, at::arange(64), 0, 64);
  EXPECT_TRUE(same_bits(x, start));
  dropout_(x, {Random(1, "d"), 1e-12}, at::arange(64), 0, 64);  // no draw is below a threshold of 0
  EXPECT_TRUE(same_bits(x, start));
  dropout_(x, {Random(1, "d"), 1 - 1e-12}, at::arange(64), 0, 64);
  EXPECT_EQ(x.ne(0).sum().item<std::int64_t>(), 0);
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    at::Tensor y = at::full({1, 400}, INFINITY);
    dropout_(y, {Random(1, "d"), 0.5}, at::arange(1), 0, 400);
    EXPECT_EQ(y.isnan().sum().item<std::int64_t>(), 0);  // what falls is 0, whatever it was
    EXPECT_EQ(y.eq(0).logical_or(y.eq(INFINITY)).sum().item<std::int64_t>(), 400);
  }
}

TEST(DropoutKernels, SayWhatIsWrong) {
  at::Tensor x = at::zeros({2, 8});
  EXPECT_THAT(refusal([&] { dropout_(x, {Random(1, "d"), 1}, at::arange(2), 0, 8); }), HasSubstr("p is 1"));
  EXPECT_EQ(refusal([&] {
              dropout_(x, {Random(1, "d"), 0.5}, at::arange(2), 4, 8);
            }),
            "dropout_: x, float [2, 8] has columns 4 to 11 of 8");
  EXPECT_THAT(refusal([&] {
                dropout_(x, {Random(1, "d"), 0.5}, at::arange(3), 0, 8);
              }),
              HasSubstr("row_index, int64 [3] must be 2"));
}

}  // namespace
}  // namespace trireme::kernels
