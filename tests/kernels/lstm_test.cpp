// What an LSTM's time step is made of: GEMMs of few rows, and the cell's functions.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/kernels/support.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/kernels/few_rows_gemm.h"
#include "trireme/kernels/lstm_cell.h"

namespace trireme::kernels {
namespace {

at::Tensor drawn(std::vector<std::int64_t> sizes, at::ScalarType type, const char* name) {
  at::Tensor out = at::empty(sizes, at::kDouble);
  Random(5, name).fill_normal(0, std::span(out.data_ptr<double>(), static_cast<std::size_t>(out.numel())));
  return out.to(type);
}

TEST(FewRowsGemm, AddsTheProductWithEveryShapeOnEveryInstructionSet) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const auto& [m, k, n] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {8, 16, 32}, {7, 17, 31}, {20, 100, 129}, {13, 33, 64}, {32, 5, 200}, {4, 0, 3}, {0, 3, 4}}) {
      const at::Tensor x = drawn({m, k + 3}, at::kFloat, "x").narrow(1, 1, k);  // rows with a stride
      const at::Tensor w = drawn({k, n + 2}, at::kFloat, "w").narrow(1, 2, n);
      const at::Tensor before = drawn({m, n}, at::kFloat, "before");
      at::Tensor out = before.clone();
      ASSERT_TRUE(fits_few_rows_gemm(x, w));
      add_few_rows_gemm(out, x, w);
      const at::Tensor product = x.to(at::kDouble).mm(w.to(at::kDouble));
      EXPECT_TRUE(at::allclose(out.to(at::kDouble), before.to(at::kDouble) + product, 1e-5, 1e-4))
          << m << " x " << k << " x " << n;
      EXPECT_TRUE(at::equal(transposed_copy(w), w.t()));
      if (m == 0 || k == 0) continue;
      const at::Tensor back = few_rows_gemm_transposed(before, w.contiguous());
      EXPECT_TRUE(at::allclose(back.to(at::kDouble), before.to(at::kDouble).mm(w.to(at::kDouble).t()), 1e-5, 1e-4));
    }
  }
}

TEST(FewRowsGemm, ARowHasTheBitsThatItHasAloneAndWithAnyNumberOfThreads) {
  const at::Tensor x = drawn({21, 333}, at::kFloat, "x"), w = drawn({333, 517}, at::kFloat, "w");
  const auto multiply = [&](const at::Tensor& rows) {
    at::Tensor out = at::zeros({rows.size(0), w.size(1)});
    add_few_rows_gemm(out, rows, w);
    return out;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor whole = multiply(x);
  for (const std::int64_t row : {0, 5, 8, 20}) EXPECT_TRUE(at::equal(multiply(x.narrow(0, row, 1))[0], whole[row]));
  at::set_num_threads(2);
  EXPECT_TRUE(at::equal(multiply(x), whole));
  at::Tensor reversed = at::zeros({21, 517});
  add_few_rows_gemm(reversed, x, w, /*reversed=*/true);
  EXPECT_TRUE(at::equal(reversed, whole));
  at::set_num_threads(threads);
}

TEST(FewRowsGemm, RefusesWhatDoesNotFit) {
  const at::Tensor x = drawn({3, 4}, at::kFloat, "x"), w = drawn({4, 5}, at::kFloat, "w");
  at::Tensor out = at::zeros({3, 6}), wide = at::zeros({3, 5}, at::kDouble);
  EXPECT_THROW(add_few_rows_gemm(out, x, w), ConfigError);
  EXPECT_THROW(add_few_rows_gemm(wide, x, w), ConfigError);
  EXPECT_FALSE(fits_few_rows_gemm(x.to(at::kDouble), w));
  EXPECT_FALSE(fits_few_rows_gemm(at::zeros({33, 4}), w));
  EXPECT_FALSE(fits_few_rows_gemm(x, w.t().contiguous().t()));
}

/// ATen's functions and autograd's gradients.
TEST(LstmCell, IsThatOfAutogradOnEveryInstructionSet) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const std::int64_t units : {1, 16, 37, 131}) {
        const at::Tensor start = drawn({3, 4, units}, type, "sums") * 3, c_in = drawn({3, units}, type, "c");
        at::Tensor gates = start.clone();
        const LstmState state = lstm_cell(gates, c_in);
        const at::Tensor sums = start.to(at::kDouble).requires_grad_(true),
                         before = c_in.to(at::kDouble).requires_grad_(true);
        const at::Tensor input = sums.select(1, 0).sigmoid(), forget = sums.select(1, 1).sigmoid(),
                         cell = sums.select(1, 2).tanh(), output = sums.select(1, 3).sigmoid();
        const at::Tensor c = forget * before + input * cell, h = output * c.tanh();
        const double tolerance = type == at::kDouble ? 1e-14 : 4e-7;
        const auto near = [&](const at::Tensor& mine, const at::Tensor& expected, const char* what) {
          EXPECT_LE((mine.to(at::kDouble) - expected.detach()).abs().max().item<double>(), 8 * tolerance)
              << what << ", " << units << " units";
        };
        near(state.c, c, "c");
        near(state.h, h, "h");
        near(gates, at::stack({input, forget, cell, output}, 1), "gates");
        const at::Tensor dh = drawn({3, units}, type, "dh"), dc = drawn({3, units}, type, "dc");
        for (const int which : {1, 2, 3}) {
          const at::Tensor of_h = (which & 1) != 0 ? dh : at::Tensor(), of_c = (which & 2) != 0 ? dc : at::Tensor();
          at::Tensor loss = at::zeros({}, at::kDouble);
          if (of_h.defined()) loss = loss + (h * dh.to(at::kDouble)).sum();
          if (of_c.defined()) loss = loss + (c * dc.to(at::kDouble)).sum();
          if (sums.grad().defined()) sums.mutable_grad() = before.mutable_grad() = at::Tensor();
          loss.backward({}, /*retain_graph=*/true);
          const LstmCellGrad grad = lstm_cell_backward(gates, c_in, state.c, of_h, of_c);
          near(grad.gates, sums.grad(), "gradient of sums");
          near(grad.c, before.grad(), "gradient of c");
        }
      }
    }
  }
}

/// Near 0, where 1 - e^-2x cancels, and far away.
TEST(LstmCell, TanhIsRightNearZeroAndFarFromIt) {
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    at::Tensor x = at::cat({at::logspace(-30, 2, 500), -at::logspace(-30, 2, 500)}).to(at::kFloat);
    at::Tensor gates = at::zeros({1, 4, x.numel()});
    gates.select(1, 0).fill_(100);  // input gate 1: c is tanh(x)
    gates.select(1, 2).copy_(x);
    const LstmState state = lstm_cell(gates, at::zeros({1, x.numel()}));
    const at::Tensor expected = x.to(at::kDouble).tanh();
    EXPECT_LE(((state.c[0].to(at::kDouble) - expected) / expected).abs().max().item<double>(), 4e-7);
  }
}

TEST(LstmCell, RefusesWhatDoesNotFit) {
  at::Tensor gates = at::zeros({2, 3, 5}), right = at::zeros({2, 4, 5});
  EXPECT_THROW(lstm_cell(gates, at::zeros({2, 5})), ConfigError);
  EXPECT_THROW(lstm_cell(right, at::zeros({2, 6})), ConfigError);
  EXPECT_FALSE(fits_lstm_cell(at::zeros({2, 4, 5}, at::kBFloat16)));
}

}  // namespace
}  // namespace trireme::kernels
