// FP8 on the CPU: every code of both formats, quantised tensors, and GEMMs of them beside a plain reference.
#include "trireme/kernels/fp8.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>

#include "tests/kernels/fp8_reference.h"
#include "tests/kernels/support.h"
#include "trireme/kernels/gemm.h"

namespace trireme::kernels {
namespace {

constexpr Fp8Format kFormats[] = {Fp8Format::kE4m3, Fp8Format::kE5m2};
constexpr Fp8Scaling kScalings[] = {Fp8Scaling::kTensor, Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128};

int last_code(Fp8Format format) { return format == Fp8Format::kE4m3 ? 0x7E : 0x7B; }

TEST(Fp8Codes, AreThoseOfTheTable) {
  for (const Fp8Format format : kFormats) {
    for (int code = 0; code < 256; ++code) {
      const double expected = fp8_number(code, format), found = decode_fp8(static_cast<std::uint8_t>(code), format);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(found)) << code;
        continue;
      }
      EXPECT_EQ(found, expected) << code;
      EXPECT_EQ(std::signbit(found), code >= 128) << code << ": -0 is a number of its own";
      if (std::isinf(expected)) continue;
      EXPECT_EQ(encode_fp8(static_cast<float>(expected), format), code);
    }
  }
}

TEST(Fp8Codes, RoundToTheNearestAndToEvenInBetween) {
  for (const Fp8Format format : kFormats) {
    for (int code = 0; code < last_code(format); ++code) {
      const auto low = static_cast<float>(fp8_number(code, format)),
                 high = static_cast<float>(fp8_number(code + 1, format)), middle = (low + high) / 2;
      const int even = code % 2 == 0 ? code : code + 1;
      EXPECT_EQ(encode_fp8(middle, format), even) << code;
      EXPECT_EQ(encode_fp8(std::nextafter(middle, 0.0F), format), code);
      EXPECT_EQ(encode_fp8(std::nextafter(middle, high), format), code + 1);
      EXPECT_EQ(encode_fp8(-middle, format), even | 0x80);
    }
  }
}

/// Every bfloat16 there is: 65,536 of them, NaNs and Infs included.
TEST(Fp8Codes, OfEveryBfloat16AreTheNearest) {
  for (const Fp8Format format : kFormats) {
    int wrong = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto value = std::bit_cast<float>(bits << 16);
      wrong += encode_fp8(value, format) != nearest_code(value, format) ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Fp8Codes, SaturateAndKeepNan) {
  for (const Fp8Format format : kFormats) {
    const float most = fp8_largest(format);
    for (const float beyond : {most, std::nextafter(most, INFINITY), 1.5F * most, 3e38F, INFINITY}) {
      EXPECT_EQ(encode_fp8(beyond, format), last_code(format)) << beyond;
      EXPECT_EQ(encode_fp8(-beyond, format), last_code(format) | 0x80) << beyond;
    }
    EXPECT_TRUE(std::isnan(decode_fp8(encode_fp8(NAN, format), format)));
    EXPECT_TRUE(std::isnan(decode_fp8(encode_fp8(-NAN, format), format)));
    const auto smallest = static_cast<float>(fp8_number(1, format));
    EXPECT_EQ(encode_fp8(smallest / 2, format), 0) << "half of it lies between 0 and 1, and 0 is even";
    EXPECT_EQ(encode_fp8(-smallest / 4, format), 0x80) << "the sign stays";
  }
}

TEST(Fp8, QuantisesWithTheScaleOfTheLargest) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const Fp8Scaling scaling : kScalings) {
      for (const Fp8Format format : kFormats) {
        for (const auto& [n, m] : {std::pair{128, 256}, {384, 128}}) {
          SCOPED_TRACE(fmt::format("{} x {} {}, scaling {}", n, m, c10::toString(type), static_cast<int>(scaling)));
          // An outlier in one corner, zeros in another block.
          at::Tensor x = normal_tensor({n, m}, at::kDouble, "x").to(type);
          x[1][2] = 1000;
          x.narrow(0, n - 128, 128).narrow(1, m - 128, 128).zero_();
          const auto [rows, columns] = to_fp8(apart(x), format, scaling, true, true);
          const auto check = [&](const Fp8Matrix& matrix, const at::Tensor& exact) {
            const at::Tensor top = largest_in_block(exact, scaling).to(at::kFloat);
            const at::Tensor scales = at::where(top > 0, top / fp8_largest(format), 1.0);
            EXPECT_TRUE(at::equal(spread_scales(matrix), scales.to(at::kDouble)));
            const at::Tensor shares = scales.reciprocal();
            const at::Tensor codes = matrix.values.view(at::kByte);
            int wrong = 0;
            for (std::int64_t i = 0; i < exact.size(0); ++i) {
              for (std::int64_t k = 0; k < exact.size(1); k += 7) {
                const float value = exact[i][k].item<float>() * shares[i][k].item<float>();
                wrong += codes[i][k].item<std::uint8_t>() != nearest_code(value, format) ? 1 : 0;
              }
            }
            EXPECT_EQ(wrong, 0);
          };
          check(rows, x.to(at::kDouble));
          check(columns, x.to(at::kDouble).t().contiguous());
        }
      }
    }
  }
}

/// What DeepSeek-V3 has scales of small blocks for: an activation channel far above the others pushes them, under one
/// scale, down to numbers that e4m3 tells apart badly or not at all.
TEST(Fp8, ScalesOfBlocksMultiplyDataWithOutliersMoreExactly) {
  at::Tensor x = normal_tensor({128, 2048}, at::kFloat, "x").to(at::kBFloat16),
             w = normal_tensor({256, 2048}, at::kFloat, "w", 0.02).to(at::kBFloat16);
  x.select(1, 5).mul_(3e5);
  w.select(1, 5).mul_(3e-6);  // so that the channel does not drown the others in the result
  const auto error = [&](bool blocks) {
    const auto scaled = [&](const at::Tensor& of, Fp8Scaling scaling) {
      return numbers_of(to_fp8(of, Fp8Format::kE4m3, scaling, true, false).rows);
    };
    const at::Tensor y = at::matmul(scaled(x, blocks ? Fp8Scaling::kBlocks1x128 : Fp8Scaling::kTensor),
                                    scaled(w, blocks ? Fp8Scaling::kBlocks128x128 : Fp8Scaling::kTensor).t());
    const at::Tensor exact = at::matmul(x.to(at::kDouble), w.to(at::kDouble).t());
    return ((y - exact).norm() / exact.norm()).item<double>();
  };
  const double of_blocks = error(true), of_tensor = error(false);
  EXPECT_GT(of_tensor, 2.5 * of_blocks) << of_blocks;
  EXPECT_GT(of_tensor, 0.5) << "most numbers were lost";
}

TEST(Fp8, TakesADelayedScaleAsItIsAndNotesTheLargest) {
  at::Tensor x = normal_tensor({48, 80}, at::kDouble, "x").to(at::kBFloat16);
  x[1][2] = -50;
  Fp8DelayedScale delayed{.scale = at::full({1}, 0.02F), .amax = at::zeros({1}), .known = true};
  const auto [rows, columns] = to_fp8(x, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, true, &delayed);
  EXPECT_EQ(delayed.amax.item<float>(), 50);
  EXPECT_EQ(rows.scales.item<float>(), 0.02F);
  EXPECT_NEAR(numbers_of(rows)[1][2].item<double>(), -448 * 0.02, 1e-6) << "beyond the largest: that";
  EXPECT_TRUE(at::equal(numbers_of(columns), numbers_of(rows).t()));
  to_fp8(x * 0.5, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, false, &delayed);
  EXPECT_EQ(delayed.amax.item<float>(), 50) << "the largest of several calls stays";
  delayed.known = false;
  const auto first = to_fp8(x, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, false, &delayed);
  EXPECT_EQ(first.rows.scales.item<float>(), 50.0F / 448.0F);
}

TEST(Fp8, QuantisesGatedActivationsAsIfWritten) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const std::int64_t n = 32, m = 48;
    const at::Tensor both = normal_tensor({n, 2 * m}, at::kFloat, "both").to(type),
                     dy = normal_tensor({n, m}, at::kFloat, "dy").to(type);
    const at::Tensor gate = both.narrow(1, 0, m), up = both.narrow(1, m, m);
    at::Tensor y = at::empty_like(dy), dboth = at::empty_like(both), none;
    at::Tensor dgate = dboth.narrow(1, 0, m), dup = dboth.narrow(1, m, m);
    gated_forward(y, gate, up, Activation::kSilu);
    gated_backward(dgate, dup, none, dy, gate, up, Activation::kSilu);
    const auto scale = [](double of) {
      return Fp8DelayedScale{.scale = at::full({1}, of, at::kFloat), .amax = at::zeros({1}), .known = true};
    };
    const auto same = [](const Fp8Matrix& a, const Fp8Matrix& b) {
      EXPECT_TRUE(same_bits(a.values.view(at::kByte), b.values.view(at::kByte)));
      EXPECT_TRUE(same_bits(a.scales, b.scales));
    };
    const auto apart_y = scale(0.01), together_y = scale(0.01), apart_dy = scale(1e-4), together_dy = scale(1e-4);
    const auto expected = to_fp8(y, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, true, &apart_y);
    const auto found = gated_to_fp8(gate, up, Activation::kSilu, Fp8Format::kE4m3, true, true, together_y);
    same(found.rows, expected.rows);
    same(found.columns, expected.columns);
    EXPECT_TRUE(same_bits(together_y.amax, apart_y.amax));
    const auto back = to_fp8(dboth, Fp8Format::kE5m2, Fp8Scaling::kTensor, true, true, &apart_dy);
    const auto made = gated_backward_to_fp8(dy, gate, up, Activation::kSilu, together_dy, scale(0.01));
    same(made.grad.rows, back.rows);
    same(made.grad.columns, back.columns);
    same(made.recomputed, expected.columns);
    EXPECT_TRUE(same_bits(together_dy.amax, apart_dy.amax));
  }
}

TEST(Fp8Gemm, IsThatOfTheQuantisedNumbers) {
  const at::Tensor a = normal_tensor({256, 384}, at::kFloat, "a"), b = normal_tensor({128, 384}, at::kFloat, "b");
  const auto check = [&](Fp8Scaling of_a, Fp8Scaling of_b, Fp8Format format) {
    SCOPED_TRACE(fmt::format("scaling {} and {}", static_cast<int>(of_a), static_cast<int>(of_b)));
    const Fp8Matrix left = to_fp8(a, format, of_a, true, false).rows,
                    right = to_fp8(b, Fp8Format::kE4m3, of_b, true, false).rows;
    const at::Tensor exact = at::mm(numbers_of(left), numbers_of(right).t());
    const double norm = exact.norm().item<double>();
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const double rounding = type == at::kFloat ? 1e-6 : 3e-3;
      Gemm call{.a = left, .b = right, .transpose_b = true, .out_type = type};
      EXPECT_LT((gemm(call).out.to(at::kDouble) - exact).norm().item<double>() / norm, rounding);
      call.epilogue.bias = at::full({128}, 2, type);
      EXPECT_LT((gemm(call).out.to(at::kDouble) - exact - 2).norm().item<double>() / norm, 2 * rounding);
      // As a weight's gradient: into what is there.
      Gemm grad{.a = left, .b = right, .transpose_b = true, .out = at::full({256, 128}, 3, type), .accumulate = true};
      EXPECT_LT((gemm(grad).out.to(at::kDouble) - exact - 3).norm().item<double>() / norm, 3 * rounding);
    }
  };
  check(Fp8Scaling::kTensor, Fp8Scaling::kTensor, Fp8Format::kE4m3);
  check(Fp8Scaling::kTensor, Fp8Scaling::kTensor, Fp8Format::kE5m2);
  check(Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128, Fp8Format::kE4m3);
  check(Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks1x128, Fp8Format::kE4m3);
}

/// One number in a thousand is a hundred thousand times as large: with one scale the others fall below what it can say,
/// with scales of small blocks only their neighbours do.
TEST(Fp8Gemm, SmallBlocksAreNearerThanOneScaleWhereThereAreOutliers) {
  at::Tensor a = normal_tensor({256, 384}, at::kFloat, "a");
  const at::Tensor b = normal_tensor({128, 384}, at::kFloat, "b");
  const at::Tensor flat = a.view({-1});
  for (std::int64_t i = 0; i < flat.numel(); i += 997) flat[i] *= 1e5;
  const auto error = [&](Fp8Scaling of_a, Fp8Scaling of_b) {
    const Fp8Matrix left = to_fp8(a, Fp8Format::kE4m3, of_a, true, false).rows,
                    right = to_fp8(b, Fp8Format::kE4m3, of_b, true, false).rows;
    const at::Tensor found = gemm({.a = left, .b = right, .transpose_b = true, .out_type = at::kFloat}).out;
    // Of the rows without an outlier, which have nothing to hide behind.
    const at::Tensor small = (a.abs().amax(1) < 100).unsqueeze(1).to(at::kDouble);
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble).t()) * small;
    return ((found.to(at::kDouble) * small - exact).norm() / exact.norm()).item<double>();
  };
  const double whole = error(Fp8Scaling::kTensor, Fp8Scaling::kTensor),
               blocks = error(Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128);
  EXPECT_LT(blocks, 0.05);
  EXPECT_GT(whole, 5 * blocks);
}

/// Whole numbers below 16 and scales that are powers of two: all sums are exact, so the bits must agree.
TEST(Fp8Gemm, HasTheBitsOfAPlainLoop) {
  const auto whole = [](std::int64_t n, std::int64_t k, int step) {
    at::Tensor x = at::empty({n, k}, at::kFloat);
    for (std::int64_t i = 0; i < x.numel(); ++i) x.view({-1})[i] = static_cast<float>((i * step) % 15 - 7);
    x[0][0] = 7;
    return x;
  };
  const at::Tensor a = whole(128, 256, 7), b = whole(256, 256, 11);
  at::Tensor expected = at::zeros({128, 256});
  const auto* pa = a.const_data_ptr<float>();
  const auto* pb = b.const_data_ptr<float>();
  auto* out = expected.mutable_data_ptr<float>();
  for (int i = 0; i < 128; ++i) {
    for (int j = 0; j < 256; ++j) {
      float sum = 0;
      for (int k = 0; k < 256; ++k) sum += pa[i * 256 + k] * pb[j * 256 + k];
      out[i * 256 + j] = sum;
    }
  }
  // 7 is brought to 448: a scale of 1/64, which divides every one of them exactly.
  for (const auto& [of_a, of_b] :
       {std::pair{Fp8Scaling::kTensor, Fp8Scaling::kTensor}, {Fp8Scaling::kBlocks1x128, Fp8Scaling::kBlocks128x128}}) {
    const Fp8Matrix left = to_fp8(a, Fp8Format::kE4m3, of_a, true, false).rows,
                    right = to_fp8(b, Fp8Format::kE4m3, of_b, true, false).rows;
    const at::Tensor found = gemm({.a = left, .b = right, .transpose_b = true, .out_type = at::kFloat}).out;
    EXPECT_TRUE(same_bits(found, expected)) << static_cast<int>(of_a);
  }
}

TEST(Fp8, RefusesSizesThatGpusDoNotTake) {
  EXPECT_THAT(refusal([] {
                to_fp8(at::zeros({20, 16}), Fp8Format::kE4m3, Fp8Scaling::kTensor, true, false);
              }),
              testing::HasSubstr("cannot be quantised to FP8"));
}

}  // namespace
}  // namespace trireme::kernels
