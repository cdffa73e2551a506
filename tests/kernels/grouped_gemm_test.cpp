// Grouped GEMMs on the CPU: every type, instruction set and shape beside the same in double.
#include "trireme/kernels/grouped_gemm.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <numeric>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

struct GroupsShape {
  std::vector<std::int64_t> rows;  // of each group
  std::int64_t n = 1, k = 1;
};

std::vector<GroupsShape> groups_shapes() {
  return {{{1}, 1, 1},         {{0, 3, 0}, 5, 7},   {{13, 1, 24}, 33, 17},     {{2, 0, 11, 12}, 31, 32},
          {{0, 0}, 16, 8},     {{7, 25}, 70, 301},  {{490, 0, 3}, 40, 20},     {{5}, 64, 1100},
          {{3, 97}, 130, 515}, {{12, 12}, 32, 512}, {{1, 2, 3, 4, 5}, 48, 513}};
}

std::vector<std::int64_t> offsets_of_rows(const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t count : rows) offsets.push_back(offsets.back() + count);
  return offsets;
}

at::Tensor in_double(const at::Tensor& x) { return x.to(at::kDouble); }

/// Rounding is in proportion to the terms, which may cancel in the sum.
void expect_near_sums(const at::Tensor& found, const at::Tensor& expected, const at::Tensor& terms, double tolerance,
                      const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  if (found.numel() == 0) return;
  EXPECT_LE(((in_double(found) - expected).abs() / (terms + 1e-30)).max().item<double>(), tolerance) << what;
}

double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-14 : type == at::kFloat ? 2e-6 : type == at::kHalf ? 2e-3 : 8e-3;
}

TEST(GroupedGemm, IsTheProductOfEachGroupInEveryTypeAndSet) {
  for_every_type_and_set([](const Precision& precision) {
    for (const GroupsShape& shape : groups_shapes()) {
      const std::vector<std::int64_t> offsets = offsets_of_rows(shape.rows);
      const std::int64_t rows = offsets.back(), groups = static_cast<std::int64_t>(shape.rows.size());
      const at::Tensor a = normal_tensor({rows, shape.k}, at::kDouble, "a").to(precision.type);
      for (const bool transpose : {true, false}) {
        const at::Tensor b = transpose ? normal_tensor({groups, shape.n, shape.k}, at::kDouble, "b").to(precision.type)
                                       : normal_tensor({groups, shape.k, shape.n}, at::kDouble, "b").to(precision.type);
        const at::Tensor out = grouped_gemm({.a = a, .b = b, .offsets = offsets, .transpose_b = transpose});
        for (std::int64_t g = 0; g < groups; ++g) {
          const std::int64_t first = offsets[static_cast<std::size_t>(g)],
                             count = shape.rows[static_cast<std::size_t>(g)];
          const at::Tensor left = in_double(a.narrow(0, first, count)),
                           right = in_double(transpose ? b.select(0, g).t() : b.select(0, g));
          expect_near_sums(out.narrow(0, first, count), left.mm(right), left.abs().mm(right.abs()),
                           tolerance_of(precision.type), fmt::format("group {} n {} k {}", g, shape.n, shape.k));
        }
      }
    }
  });
}

TEST(GroupedGemm, WeightGradientsAreSumsOverTheRowsOfEachGroup) {
  for_every_type_and_set([](const Precision& precision) {
    for (const GroupsShape& shape : groups_shapes()) {
      const std::vector<std::int64_t> offsets = offsets_of_rows(shape.rows);
      const std::int64_t rows = offsets.back(), groups = static_cast<std::int64_t>(shape.rows.size());
      const at::Tensor a = normal_tensor({rows, shape.n}, at::kDouble, "a").to(precision.type),
                       b = normal_tensor({rows, shape.k}, at::kDouble, "b").to(precision.type);
      std::vector<at::ScalarType> types{precision.type};
      if (precision.type == at::kBFloat16) types.push_back(at::kFloat);
      for (const at::ScalarType type : types) {
        for (const bool accumulate : {false, true}) {
          const at::Tensor before = normal_tensor({groups, shape.n, shape.k}, at::kDouble, "out").to(type);
          at::Tensor out = before.clone();
          grouped_weight_grad({.a = a, .b = b, .offsets = offsets, .out = out, .accumulate = accumulate});
          for (std::int64_t g = 0; g < groups; ++g) {
            const std::int64_t first = offsets[static_cast<std::size_t>(g)],
                               count = shape.rows[static_cast<std::size_t>(g)];
            const at::Tensor left = in_double(a.narrow(0, first, count)).t(),
                             right = in_double(b.narrow(0, first, count));
            const at::Tensor was = accumulate ? in_double(before.select(0, g)) : at::zeros_like(left.mm(right));
            expect_near_sums(out.select(0, g), left.mm(right) + was, left.abs().mm(right.abs()) + was.abs(),
                             tolerance_of(precision.type),
                             fmt::format("group {} of {} rows, {} x {}", g, count, shape.n, shape.k));
          }
        }
      }
    }
  });
}

/// A sum too long for what is packed at once, and a gradient whose rows are a part of a wider tensor.
TEST(GroupedGemm, TakesManyRowsAndStrides) {
  const Threads one(1);
  const std::int64_t rows = 16'500;
  const std::vector<std::int64_t> offsets{0, rows};
  const at::Tensor wide = normal_tensor({rows, 12}, at::kDouble, "wide").to(at::kFloat);
  const at::Tensor a = wide.narrow(1, 2, 5), b = wide.narrow(1, 7, 4);
  at::Tensor out = at::zeros({1, 5, 4}, at::kFloat);
  grouped_weight_grad({.a = a, .b = b, .offsets = offsets, .out = out});
  expect_near_sums(out[0], in_double(a).t().mm(in_double(b)), in_double(a).abs().t().mm(in_double(b).abs()), 2e-6,
                   "many rows");
  const at::Tensor matrices = normal_tensor({1, 4, 5}, at::kDouble, "matrices").to(at::kFloat);
  const at::Tensor product = grouped_gemm({.a = a, .b = matrices.transpose(1, 2), .offsets = offsets});
  expect_near_sums(product, in_double(a).mm(in_double(matrices[0]).t()),
                   in_double(a).abs().mm(in_double(matrices[0]).abs().t()), 2e-6, "strides");
}

/// What a row becomes depends on it and its expert, not on the rows beside it, so on no layout; nor on threads.
TEST(GroupedGemm, ARowHasTheBitsThatItHasAlone) {
  if (machine_instruction_set() < InstructionSet::kV4) GTEST_SKIP() << "by ATen, which does not promise it";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<std::int64_t> offsets{0, 3, 60, 601};
    const at::Tensor a = normal_tensor({601, 533}, at::kDouble, "a").to(type),
                     b = normal_tensor({3, 77, 533}, at::kDouble, "b").to(type);
    const auto multiply = [&](const at::Tensor& rows, const std::vector<std::int64_t>& of) {
      return grouped_gemm({.a = rows, .b = b, .offsets = of, .transpose_b = true});
    };
    at::Tensor whole;
    {
      const Threads one(1);
      whole = multiply(a, offsets);
    }
    const Threads three(3);
    EXPECT_TRUE(at::equal(multiply(a, offsets), whole));
    for (const std::int64_t row : {0, 3, 59, 60, 333, 600}) {
      std::vector<std::int64_t> alone(4, 0);
      for (std::size_t g = 1; g < 4; ++g) alone[g] = row < offsets[g] ? 1 : 0;
      EXPECT_TRUE(at::equal(multiply(a.narrow(0, row, 1), alone)[0], whole[row])) << row;
    }
  }
}

}  // namespace
}  // namespace trireme::kernels
