#include "trireme/kernels/sum_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"

namespace trireme::kernels {
namespace {

TEST(AddRowSum, EqualsTheSumInDouble) {
  for (int set = 0; set <= static_cast<int>(machine_instruction_set()); ++set) {
    const UseInstructionSet use(static_cast<InstructionSet>(set));
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t rows : {0, 1, 3, 4, 61, 500}) {
        for (const std::int64_t width : {1, 16, 17, 100}) {
          const at::Tensor whole = at::randn({rows, width + 3}).to(type), x = whole.narrow(1, 1, width);
          at::Tensor totals = at::ones({width}, type == at::kDouble ? at::kDouble : at::kFloat);
          add_row_sum(totals, x);
          const at::Tensor expected = x.to(at::kDouble).sum(0) + 1;
          EXPECT_TRUE(at::allclose(totals.to(at::kDouble), expected, 1e-5, 1e-4)) << rows << " x " << width;
          add_row_sum(totals, x, /*overwrite=*/true);
          EXPECT_TRUE(at::allclose(totals.to(at::kDouble), expected - 1, 1e-5, 1e-4)) << rows << " x " << width;
        }
      }
    }
  }
}

TEST(AddRowSum, GivesTheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = at::randn({1111, 77}).to(at::kBFloat16);
  at::Tensor one = at::zeros({77}), two = at::zeros({77});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  add_row_sum(one, x);
  at::set_num_threads(2);
  add_row_sum(two, x);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, two));
}

TEST(AddRowSum, RefusesTotalsOfAnotherSize) {
  at::Tensor totals = at::zeros({3});
  EXPECT_THROW(add_row_sum(totals, at::zeros({2, 4})), ConfigError);
}

}  // namespace
}  // namespace trireme::kernels
