// tests/kernels/support.h -- what the tests of operators share: types and how near they must come, instruction sets,
// shapes, comparison with a reference in double.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/base/random.h"

namespace trireme::kernels {

/// While it lives, ATen and the operators run on so many threads.
class Threads {
 public:
  explicit Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// Errors of single numbers: relative to the number, plus an absolute part for those where terms cancel.
struct Precision {
  c10::ScalarType type;
  double relative, absolute;
};
inline std::vector<Precision> precisions() {
  return {{at::kDouble, 1e-12, 1e-13},
          {at::kFloat, 4e-6, 2e-6},
          {at::kBFloat16, 0.0040, 3e-6},  // half a unit in the last place is up to 1 in 256
          {at::kHalf, 0.00052, 3e-6}};
}

/// Every set that this machine has and that bodies are compiled for.
inline std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
  for (const auto set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4, InstructionSet::kV4Bf16}) {
    if (set <= machine_instruction_set()) sets.push_back(set);
  }
  return sets;
}

/// Runs `body(precision)` for every type on every instruction set, with one thread: the tensors are small, and tests
/// run beside others.
template <typename Body>
void for_every_type_and_set(Body&& body) {
  const Threads one(1);
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const Precision& precision : precisions()) {
      SCOPED_TRACE(fmt::format("{} on {}", c10::toString(precision.type), to_string(set)));
      body(precision);
    }
  }
}

struct RowsShape {
  std::int64_t rows, width;
};
inline std::vector<RowsShape> row_shapes() {
  return {{0, 16}, {1, 1}, {5, 3}, {7, 16}, {1, 17}, {3, 768}, {67, 17}, {11, 1000}};
}

/// Normal numbers of the given type; the same for the same name and shape.
inline at::Tensor normal_tensor(at::IntArrayRef shape, c10::ScalarType type, std::string_view name, double scale = 1) {
  at::Tensor values = at::empty(shape, at::kDouble);
  Random(11, name).fill_normal(0, {values.mutable_data_ptr<double>(), static_cast<std::size_t>(values.numel())});
  return values.mul(scale).to(type);
}

/// A copy in double, with a gradient to come.
inline at::Tensor wide(const at::Tensor& tensor, bool gradient = true) {
  return tensor.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(gradient);
}

/// A view of the right half of a tensor twice as wide: rows contiguous, but apart.
inline at::Tensor apart(const at::Tensor& tensor) {
  at::Tensor host = at::full({tensor.size(0), 2 * tensor.size(1)}, -77, tensor.options());
  at::Tensor half = host.slice(1, tensor.size(1));
  half.copy_(tensor);
  return half;
}

inline void expect_near(const at::Tensor& actual, const at::Tensor& expected, double relative, double absolute,
                        const char* what) {
  const at::Tensor a = actual.detach().to(at::kDouble).contiguous();
  const at::Tensor e = expected.detach().to(at::kDouble).contiguous();
  ASSERT_EQ(a.sizes(), e.sizes()) << what;
  const double *pa = a.const_data_ptr<double>(), *pe = e.const_data_ptr<double>();
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    if (std::isnan(pe[i]) ? std::isnan(pa[i]) : pa[i] == pe[i]) continue;
    ASSERT_LE(std::abs(pa[i] - pe[i]), relative * std::abs(pe[i]) + absolute)
        << what << "[" << i << "] is " << pa[i] << ", expected " << pe[i];
  }
}
inline void expect_near(const at::Tensor& actual, const at::Tensor& expected, const Precision& precision,
                        const char* what) {
  expect_near(actual, expected, precision.relative, precision.absolute, what);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

template <typename Body>
auto with_threads(int threads, Body&& body) {
  const Threads use(threads);
  return body();
}

/// The message of the ConfigError that `body` must throw.
template <typename Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "nothing was refused";
}

inline c10::ScalarType sums_type(c10::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace trireme::kernels
