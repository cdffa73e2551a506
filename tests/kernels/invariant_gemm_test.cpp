// GEMMs whose rows do not depend on each other, and weights in fewer bits.
#include "trireme/kernels/invariant_gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/base/random.h"
#include "trireme/kernels/gemm.h"

namespace trireme::kernels {
namespace {

at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, at::ScalarType type, const char* name) {
  at::Tensor out = at::empty({rows, columns}, at::kDouble);
  Random(3, name).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out.to(type);
}

TEST(InvariantGemm, IsTheProductWithEveryShapeAndType) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-6 : type == at::kHalf ? 6e-4 : 5e-3;
    for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                          {1, 7, 33},
                                                                          {1, 29, 75},
                                                                          {2, 4, 16},
                                                                          {3, 5, 8},
                                                                          {4, 9, 100},
                                                                          {13, 6, 17},
                                                                          {50, 31, 129},
                                                                          {0, 3, 4}}) {
      const at::Tensor x = random_matrix(m, k, type, "x"), w = random_matrix(n, k, type, "w");
      const at::Tensor bias = random_matrix(1, n, type, "bias").view({n});
      at::Tensor out = at::empty({m, n}, x.options());
      invariant_gemm(out, x, w, bias);
      const at::Tensor expected = x.to(at::kDouble).mm(w.to(at::kDouble).t()) + bias.to(at::kDouble);
      if (m == 0) continue;
      // Rounding is in proportion to the terms, which may cancel in the sum.
      const at::Tensor terms = x.to(at::kDouble).abs().mm(w.to(at::kDouble).abs().t()) + bias.to(at::kDouble).abs();
      EXPECT_LE(((out.to(at::kDouble) - expected).abs() / terms).max().item<double>(), tolerance)
          << m << " x " << n << " x " << k << " " << c10::toString(type);
    }
  }
}

TEST(InvariantGemm, ARowHasTheBitsThatItHasAlone) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random_matrix(64, 203, type, "x"), w = random_matrix(37, 203, type, "w");
    const auto multiply = [&](const at::Tensor& rows) {
      return gemm({.a = rows, .b = w, .transpose_b = true, .batch_invariant = true}).out;
    };
    const at::Tensor whole = multiply(x);
    for (std::int64_t row = 0; row < 64; ++row) EXPECT_TRUE(at::equal(multiply(x.narrow(0, row, 1))[0], whole[row]));
    for (const std::int64_t count : {2, 3, 4, 5, 6, 7, 31}) {
      EXPECT_TRUE(at::equal(multiply(x.narrow(0, 5, count)), whole.narrow(0, 5, count))) << count;
    }
    // Columns that fall into other tiles, too.
    at::Tensor some = at::empty({64, 5}, x.options());
    invariant_gemm(some, x, w.narrow(0, 2, 5), at::Tensor());
    EXPECT_TRUE(at::equal(some, whole.narrow(1, 2, 5)));
  }
}

std::vector<InstructionSet> sets_of_this_machine() {
  std::vector<InstructionSet> sets;
  for (const auto set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4, InstructionSet::kV4Bf16}) {
    if (set <= machine_instruction_set()) sets.push_back(set);
  }
  return sets;
}

/// With every instruction set, and groups that are parts of a register of codes, several of them, or do not fit it.
TEST(InvariantGemm, OfFewBitsIsTheProductWithTheDequantisedWeightAndRowByRow) {
  for (const InstructionSet set : sets_of_this_machine()) {
    const UseInstructionSet use(set);
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-6 : 5e-3;
      for (const auto& [k, group] : std::vector<std::array<std::int64_t, 2>>{
               {256, 0}, {203, 0}, {512, 256}, {256, 128}, {384, 64}, {256, 32}, {384, 16}, {96, 96}, {120, 24}}) {
        const QuantiseWeight how{.format = group == 0 ? WeightFormat::kInt8 : WeightFormat::kInt4, .group = group};
        const QuantisedWeight q = quantise_weight(random_matrix(13, k, at::kFloat, "w"), how);
        // One rounding less than dequantise_weight() has, as the sums of int8 do.
        const at::Tensor w =
            group == 0 ? q.values.to(at::kDouble) * q.scales.to(at::kDouble) : dequantise_weight(q).to(at::kDouble);
        const at::Tensor x = random_matrix(17, k, type, "x");
        const at::Tensor bias = random_matrix(1, 13, type, "bias").view({13});
        at::Tensor out = at::empty({17, 13}, x.options());
        invariant_gemm(out, x, q, bias);
        const at::Tensor expected = x.to(at::kDouble).mm(w.t()) + bias.to(at::kDouble);
        const at::Tensor terms = x.to(at::kDouble).abs().mm(w.abs().t()) + bias.to(at::kDouble).abs();
        EXPECT_LE(((out.to(at::kDouble) - expected).abs() / terms).max().item<double>(), tolerance)
            << to_string(set) << " " << k << ", groups of " << group << " " << c10::toString(type);
        for (const std::int64_t rows : {1, 2, 3, 4, 7}) {
          at::Tensor some = at::empty({rows, 13}, x.options());
          // Rows of a wider matrix, too: what they stand in changes nothing.
          invariant_gemm(some, at::cat({x, x}, 1).narrow(1, 0, k).narrow(0, 5, rows), q, bias);
          EXPECT_TRUE(at::equal(some, out.narrow(0, 5, rows)))
              << to_string(set) << " " << k << ", groups of " << group << ", " << rows << " rows";
        }
      }
    }
  }
}

TEST(InvariantGemm, ARowHasTheBitsThatItHasAloneWithEveryInstructionSet) {
  for (const InstructionSet set : sets_of_this_machine()) {
    const UseInstructionSet use(set);
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor x = random_matrix(23, 77, type, "x"), w = random_matrix(9, 77, type, "w");
      at::Tensor whole = at::empty({23, 9}, x.options());
      invariant_gemm(whole, x, w, at::Tensor());
      for (const std::int64_t rows : {1, 2, 3, 5, 6, 13}) {
        at::Tensor some = at::empty({rows, 9}, x.options());
        invariant_gemm(some, x.narrow(0, 4, rows), w, at::Tensor());
        EXPECT_TRUE(at::equal(some, whole.narrow(0, 4, rows))) << to_string(set) << ", " << rows << " rows";
      }
    }
  }
}

TEST(InvariantGemm, TheLibrarysOwnDoesNotPromiseThat) {
  // Not a test of the library: it says why this kernel is there. Where the library happens to agree, nothing is shown.
  const at::Tensor x = random_matrix(64, 1031, at::kFloat, "x"), w = random_matrix(64, 1031, at::kFloat, "w");
  const at::Tensor whole = x.mm(w.t());
  std::int64_t differ = 0;
  for (std::int64_t row = 0; row < 64; ++row) differ += !at::equal(x.narrow(0, row, 1).mm(w.t())[0], whole[row]);
  if (differ == 0) GTEST_SKIP() << "this library's rows agree on this machine";
  EXPECT_GT(differ, 0);
}

TEST(QuantisedWeight, NoWeightIsFurtherThanHalfItsScale) {
  const at::Tensor w = random_matrix(19, 256, at::kFloat, "w");
  for (const QuantiseWeight& how : {QuantiseWeight{}, QuantiseWeight{.format = WeightFormat::kInt4, .group = 32},
                                    QuantiseWeight{.format = WeightFormat::kInt4, .group = 128, .symmetric = true}}) {
    const QuantisedWeight q = quantise_weight(w, how);
    const at::Tensor error = (dequantise_weight(q) - w).abs().view({19, 256 / q.group, q.group});
    EXPECT_LE((error / q.scales.unsqueeze(2)).max().item<float>(), 0.5 + 1e-4);
    EXPECT_LT(q.bytes(), w.nbytes() / (how.format == WeightFormat::kInt8 ? 3 : 5));
    // The GEMM is that of the weights as they are read back.
    const at::Tensor x = random_matrix(11, 256, at::kFloat, "x");
    const at::Tensor out = gemm({.a = x, .b = q, .transpose_b = true}).out;
    EXPECT_LE((out - x.mm(dequantise_weight(q).t())).abs().max().item<float>(), 1e-3);
    for (std::int64_t row = 0; row < 11; ++row) {
      EXPECT_TRUE(at::equal(gemm({.a = x.narrow(0, row, 1), .b = q, .transpose_b = true}).out[0], out[row]));
    }
  }
  EXPECT_THROW(quantise_weight(w, {.format = WeightFormat::kInt4, .group = 48}), ConfigError);
  const QuantisedWeight zeros = quantise_weight(at::zeros({3, 64}), {.format = WeightFormat::kInt4, .group = 32});
  EXPECT_EQ(dequantise_weight(zeros).abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace trireme::kernels
