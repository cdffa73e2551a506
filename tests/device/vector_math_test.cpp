#include "trireme/device/vector_math.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trireme::device {
namespace {

/// Each test is a process of its own where ctest runs them, so this is the process's first use by several threads.
TEST(VectorMath, IsExactWhenItIsFirstUsed) {
  EXPECT_TRUE(is_vector_math_settled());
  const at::Tensor x = at::randn({4, 37, 37}, at::kDouble);
  const at::Tensor sums = at::logsumexp(x, {-1}).flatten(), rows = x.flatten(0, 1);
  for (std::int64_t row = 0; row < rows.size(0); ++row) {
    double right = 0;
    for (std::int64_t i = 0; i < rows.size(1); ++i) right += std::exp(rows.const_data_ptr<double>()[row * 37 + i]);
    EXPECT_NEAR(sums.const_data_ptr<double>()[row], std::log(right), 1e-13);
  }
}

}  // namespace
}  // namespace trireme::device
