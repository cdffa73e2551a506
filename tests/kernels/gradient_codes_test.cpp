// Codes of gradients on every instruction set: what a plain loop says, and the same bits on all of them.
#include "trireme/kernels/gradient_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/support.h"
#include "trireme/base/random.h"

namespace trireme::kernels {
namespace {

std::vector<float> code_numbers(std::size_t count, const char* stream) {
  std::vector<float> values(count);
  Random(3, stream).fill_normal(0, std::span<float>(values));
  for (std::size_t i = 0; i < count; i += 11) values[i] = i % 22 == 0 ? 0.0F : -0.0F;
  return values;
}

/// Everything that a call writes, as bytes.
struct Written {
  std::vector<std::uint8_t> bytes;
  template <typename T>
  void add(const std::vector<T>& values) {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(values.data());
    bytes.insert(bytes.end(), begin, begin + values.size() * sizeof(T));
  }
  void add(double value) { add(std::vector<double>{value}); }
};

/// body(Written&) with each set; all write what the first does.
template <typename Body>
void expect_the_same_bits(const std::string& where, Body&& body) {
  std::vector<std::uint8_t> first;
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    Written written;
    body(written);
    if (set == InstructionSet::kPlain) first = written.bytes;
    ASSERT_EQ(written.bytes, first) << where << " on " << to_string(set);
  }
}

struct RowsCase {
  std::int64_t rows, columns;
};
constexpr RowsCase kRowsCases[] = {{0, 5},  {1, 1},  {3, 7},  {2, 8},  {5, 15},
                                   {4, 16}, {3, 17}, {2, 31}, {3, 64}, {7, 131}};

/// Signs, the means of the two sides, and what is left of every element; the squares of both.
TEST(SignCodes, OfRowsAreThoseOfAPlainLoop) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const auto& [rows, columns] : kRowsCases) {
      const auto count = static_cast<std::size_t>(rows * columns);
      const std::vector<float> gradient = code_numbers(count, "gradient"), kept = code_numbers(count, "kept");
      std::vector<float> next(count), sum(count, 0.5F);
      std::vector<std::uint8_t> code(static_cast<std::size_t>(rows * (8 + (columns + 7) / 8)), 0xAA);
      const SignSquares squares = sign_codes().encode_rows({.gradient = gradient.data(),
                                                            .kept = kept.data(),
                                                            .next = next.data(),
                                                            .rows = rows,
                                                            .columns = columns,
                                                            .code = code.data()});
      sign_codes().add_rows(code.data(), rows, columns, sum.data());
      const std::uint8_t* at = code.data();
      double left = 0, whole = 0;
      for (std::int64_t row = 0; row < rows; ++row) {
        double sides[2] = {0, 0};
        std::int64_t counts[2] = {0, 0};
        for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
          const float c = gradient[static_cast<std::size_t>(i)] + kept[static_cast<std::size_t>(i)];
          sides[c >= 0 ? 1 : 0] += static_cast<double>(c);
          ++counts[c >= 0 ? 1 : 0];
        }
        float means[2];
        std::memcpy(means, at, sizeof(means));
        for (int side = 0; side < 2; ++side)
          EXPECT_NEAR(static_cast<double>(means[side]),
                      counts[side] > 0 ? sides[side] / static_cast<double>(counts[side]) : 0, 1e-6);
        for (std::int64_t column = 0; column < columns; ++column) {
          const auto i = static_cast<std::size_t>(row * columns + column);
          const float c = gradient[i] + kept[i], said = means[c >= 0 ? 1 : 0];
          ASSERT_EQ((at[8 + column / 8] >> (column % 8)) & 1, c >= 0 ? 1 : 0) << row << " " << column;
          ASSERT_EQ(next[i], c - said);
          ASSERT_EQ(sum[i], 0.5F + said);
          left += static_cast<double>(next[i]) * static_cast<double>(next[i]);
          whole += static_cast<double>(c) * static_cast<double>(c);
        }
        if (columns % 8 != 0) {
          EXPECT_EQ(at[8 + columns / 8] >> (columns % 8), 0) << "bits that stand for nothing";
        }
        at += 8 + (columns + 7) / 8;
      }
      EXPECT_NEAR(squares.left, left, 1e-5 * (1 + left));
      EXPECT_NEAR(squares.whole, whole, 1e-5 * (1 + whole));
    }
  }
}

/// In place too, where the residual is read and written; with NaN and Inf.
TEST(SignCodes, OfRowsHaveTheSameBitsOnAllSets) {
  for (const auto& [rows, columns] : kRowsCases) {
    for (const float odd : {1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      expect_the_same_bits(fmt::format("{} x {}, {}", rows, columns, odd), [&](Written& written) {
        const auto count = static_cast<std::size_t>(rows * columns);
        std::vector<float> gradient = code_numbers(count, "gradient"), residual = code_numbers(count, "kept");
        if (count > 0) gradient[count / 2] = odd;
        std::vector<std::uint8_t> code(static_cast<std::size_t>(rows * (8 + (columns + 7) / 8)));
        const SignSquares squares = sign_codes().encode_rows({.gradient = gradient.data(),
                                                              .kept = residual.data(),
                                                              .next = residual.data(),
                                                              .rows = rows,
                                                              .columns = columns,
                                                              .code = code.data()});
        std::vector<float> sum(count, 0.25F);
        sign_codes().add_rows(code.data(), rows, columns, sum.data());
        if (odd == 1.0F) {  // the sign of a NaN may be either
          written.add(code), written.add(residual), written.add(sum);
          written.add(squares.left), written.add(squares.whole);
        }
        for (const std::vector<float>* values : {&residual, &sum}) {
          std::vector<std::uint8_t> finite;
          for (const float value : *values) finite.push_back(std::isfinite(value) ? 1 : 0);
          written.add(finite);
        }
        if (count > 0 && odd != 1.0F) {
          EXPECT_FALSE(std::isfinite(sum[count / 2])) << "what is not finite is passed on";
        }
      });
    }
  }
}

TEST(SignCodes, OfAScaleAreThoseOfAPlainLoopOnAllSets) {
  for (const std::int64_t count : {0, 1, 7, 8, 15, 16, 17, 40, 1000}) {
    expect_the_same_bits(std::to_string(count), [&](Written& written) {
      const auto size = static_cast<std::size_t>(count);
      const std::vector<float> values = code_numbers(size, "values"), kept = code_numbers(size, "kept");
      std::vector<float> variance(size), next(size), sum(size, -0.0F);
      for (std::size_t i = 0; i < size; ++i) variance[i] = i % 3 == 1 ? 0.0F : 1e-30F;
      std::vector<std::uint8_t> signs((size + 7) / 8), moves((size + 7) / 8);
      const ScaledSignsLoop loop{.values = values.data(),
                                 .kept = kept.data(),
                                 .variance = variance.data(),
                                 .next = next.data(),
                                 .count = count,
                                 .signs = signs.data(),
                                 .moves = moves.data()};
      std::int64_t moving = -1;
      const double whole = sign_codes().begin_scaled(loop, moving);
      const std::vector<float> c = next;
      constexpr float kScale = 0.75F;
      const double left = sign_codes().leave_scaled(loop, kScale);
      sign_codes().add_scaled(signs.data(), variance.data(), count, 0.25F * kScale, -0.25F * kScale, sum.data());
      double squares = 0, rest = 0;
      std::int64_t expected = 0;
      for (std::size_t i = 0; i < size; ++i) {
        const bool still = variance[i] == 0;
        ASSERT_EQ(c[i], still ? 0.0F : values[i] + kept[i]) << i;
        ASSERT_EQ((signs[i / 8] >> (i % 8)) & 1, c[i] >= 0 ? 1 : 0) << i;
        ASSERT_EQ((moves[i / 8] >> (i % 8)) & 1, still ? 0 : 1) << i;
        ASSERT_EQ(next[i], still ? 0.0F : c[i] - (c[i] >= 0 ? kScale : -kScale)) << i;
        if (still) {
          ASSERT_TRUE(sum[i] == 0 && std::signbit(sum[i])) << "not even 0 is added: " << i;
        } else {
          ASSERT_EQ(sum[i], c[i] >= 0 ? 0.25F * kScale : -0.25F * kScale) << i;
        }
        expected += still ? 0 : 1;
        squares += static_cast<double>(c[i]) * static_cast<double>(c[i]);
        rest += static_cast<double>(next[i]) * static_cast<double>(next[i]);
      }
      EXPECT_EQ(moving, expected);
      EXPECT_NEAR(whole, squares, 1e-12 * (1 + squares));
      EXPECT_NEAR(left, rest, 1e-12 * (1 + rest));
      written.add(signs), written.add(next), written.add(sum), written.add(whole), written.add(left);
    });
  }
}

TEST(SignCodes, SumSquaresInDouble) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1000}) {
    expect_the_same_bits(std::to_string(count), [&](Written& written) {
      const std::vector<float> values = code_numbers(static_cast<std::size_t>(count), "squares");
      const double found = sign_codes().squares(values.data(), count);
      double expected = 0;
      for (const float value : values) expected += static_cast<double>(value) * static_cast<double>(value);
      EXPECT_NEAR(found, expected, 1e-12 * expected);
      written.add(found);
    });
  }
}

/// Blocks of Philox one by one, at the border of the lower word of their numbers too.
TEST(LevelCodes, DrawsAreThoseOfPhilox) {
  const std::uint32_t words[4] = {0x12345678, 0x9abcdef0, 0xdeadbeef, 7};
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{5}, (std::uint64_t{1} << 32) - 3}) {
      for (const std::int64_t blocks : {0, 1, 3, 4, 8, 9, 23, 256}) {
        std::vector<double> drawn(static_cast<std::size_t>(2 * blocks));
        level_codes().draws(words, first, blocks, drawn.data());
        for (std::int64_t i = 0; i < blocks; ++i) {
          const std::uint64_t number = first + static_cast<std::uint64_t>(i);
          const PhiloxCounter block =
              philox({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), words[2], words[3]},
                     {words[0], words[1]});
          for (std::size_t half = 0; half < 2; ++half) {
            const double expected = static_cast<double>(block[2 * half + 1]) * 0x1p-32 +
                                    static_cast<double>(block[2 * half] >> 11) * 0x1p-53;
            ASSERT_EQ(drawn[2 * static_cast<std::size_t>(i) + half], expected) << number << " on " << to_string(set);
          }
        }
      }
    }
  }
}

TEST(LevelCodes, AreThoseOfAPlainLoopOnAllSets) {
  for (const std::int64_t count : {0, 1, 2, 7, 16, 33, 100, 512}) {
    expect_the_same_bits(std::to_string(count), [&](Written& written) {
      const auto size = static_cast<std::size_t>(count);
      const std::vector<float> values = code_numbers(size, "levels");
      std::vector<double> uniform(size);
      Random(4, "uniform").fill_uniform(0, std::span<double>(uniform));
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(level_codes().largest(values.data(), count), std::bit_cast<std::uint32_t>(largest));
      constexpr std::int32_t kMost = 7;
      const double scale = largest > 0 ? kMost / static_cast<double>(largest) : 0;
      std::vector<std::int32_t> levels(size, 99);
      level_codes().quantise(values.data(), uniform.data(), count, scale, kMost, levels.data());
      std::vector<std::uint8_t> code((size + 1) / 2, 0xFF);
      level_codes().put_nibbles(levels.data(), count, kMost, code.data());
      float said[16];
      for (int i = 0; i < 16; ++i) said[i] = 0.125F * static_cast<float>(i - kMost);
      std::vector<float> sum(size, 1.0F);
      level_codes().add_nibbles(code.data(), count, said, sum.data());
      for (std::size_t i = 0; i < size; ++i) {
        const double a = std::abs(static_cast<double>(values[i])) * scale, whole = std::floor(a);
        const int size_of = std::min(kMost, static_cast<int>(whole) + (uniform[i] < a - whole ? 1 : 0));
        ASSERT_EQ(levels[i], values[i] < 0 ? -size_of : size_of) << i;
        ASSERT_EQ(i % 2 == 0 ? code[i / 2] & 15 : code[i / 2] >> 4, levels[i] + kMost) << i;
        ASSERT_EQ(sum[i], 1.0F + 0.125F * static_cast<float>(levels[i])) << i;
      }
      written.add(levels), written.add(code), written.add(sum);
    });
  }
}

/// A NaN among sizes is the largest, wherever it stands.
TEST(LevelCodes, PutNaNAboveInfinity) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const std::size_t place : {0U, 5U, 36U}) {
      std::vector<float> values = code_numbers(37, "none");
      values[(place + 1) % 37] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(level_codes().largest(values.data(), 37), 0x7f800000U);
      values[place] = -std::numeric_limits<float>::quiet_NaN();
      EXPECT_GT(level_codes().largest(values.data(), 37), 0x7f800000U) << to_string(set);
    }
  }
}

TEST(LevelCodes, OfBytesAndHalvesHaveTheSameBitsOnAllSets) {
  for (const std::int64_t count : {0, 1, 3, 8, 17, 100, 512}) {
    for (const float scale : {0.0F, 0.01F, 3e-45F, std::numeric_limits<float>::quiet_NaN()}) {
      expect_the_same_bits(fmt::format("{} x {}", count, scale), [&](Written& written) {
        const auto size = static_cast<std::size_t>(count);
        std::vector<float> exact = code_numbers(size, "bytes");
        for (float& value : exact) value *= scale == 3e-45F ? 1e-42F : 0.3F;
        std::vector<float> values = exact, sum(size, 2.0F), halves = exact, half_sum(size, -1.0F);
        std::vector<std::int8_t> code(size, 55);
        level_codes().encode_bytes(values.data(), count, scale, code.data());
        level_codes().add_bytes(code.data(), count, scale, sum.data());
        std::vector<std::uint16_t> half_code(size);
        level_codes().encode_halves(halves.data(), count, half_code.data());
        level_codes().add_halves(half_code.data(), count, half_sum.data());
        for (std::size_t i = 0; i < size; ++i) {
          const float steps = scale > 0 ? std::clamp(std::nearbyint(exact[i] / scale), -127.0F, 127.0F) : 0.0F;
          ASSERT_EQ(static_cast<float>(code[i]), steps) << i;
          if (std::isnan(scale)) {
            ASSERT_TRUE(std::isnan(values[i]) && std::isnan(sum[i]));
          } else {
            ASSERT_EQ(values[i], scale * steps) << i;
            ASSERT_EQ(sum[i], 2.0F + scale * steps) << i;
          }
          ASSERT_NEAR(halves[i], exact[i], 6e-4F * std::abs(exact[i]) + 1e-7F);
          ASSERT_EQ(half_sum[i], -1.0F + halves[i]);
        }
        written.add(code), written.add(halves), written.add(half_code), written.add(half_sum);
        if (!std::isnan(scale)) written.add(values), written.add(sum);
      });
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
