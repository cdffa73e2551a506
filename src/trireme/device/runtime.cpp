#include "trireme/device/runtime.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "trireme/base/stopwatch.h"

namespace trireme::device {
namespace {

const char* torch_version() { return TORCH_VERSION; }

const char* cpu_capability() {
  static const std::string name = at::get_cpu_capability();
  return name.c_str();
}

int intra_op_threads() { return at::get_num_threads(); }
void set_intra_op_threads(int threads) { at::set_num_threads(std::max(threads, 1)); }

/// Entries in [-1, 1) that look arbitrary and are the same on every machine.
at::Tensor test_matrix(int size, std::uint32_t seed) {
  at::Tensor matrix = at::empty({size, size}, at::kFloat);
  float* entries = matrix.mutable_data_ptr<float>();
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < matrix.numel(); ++i) {
    state = state * 1664525U + 1013904223U;
    entries[i] = static_cast<float>(state >> 8) / static_cast<float>(1U << 23) - 1.0F;
  }
  return matrix;
}

double gemm_error(int size) try {
  const at::Tensor left = test_matrix(size, 1), right = test_matrix(size, 2), product = at::mm(left, right);
  const auto* a = left.const_data_ptr<float>();
  const auto* b = right.const_data_ptr<float>();
  const auto* c = product.const_data_ptr<float>();
  double worst = 0;
  for (int row = 0; row < size; ++row) {
    for (int column = 0; column < size; ++column) {
      double exact = 0;
      for (int k = 0; k < size; ++k) exact += static_cast<double>(a[row * size + k]) * b[k * size + column];
      worst = std::max(worst, std::abs(exact - c[row * size + column]));
    }
  }
  return worst;
} catch (...) {  // nothing may be thrown through the C interface
  return std::numeric_limits<double>::quiet_NaN();
}

double gemm_flops(int size, GemmType type, double seconds) try {
  using Clock = std::chrono::steady_clock;
  const auto as = type == kGemmBf16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor left = test_matrix(size, 1).to(as), right = test_matrix(size, 2).to(as);
  at::Tensor product = at::empty({size, size}, left.options());
  at::mm_out(product, left, right);  // packs, chooses and compiles what later calls reuse
  const double flops = 2.0 * size * size * size;
  double best = 0;
  const auto begin = Clock::now();
  for (int call = 0; call < 3 || seconds_since(begin) < seconds; ++call) {
    const auto start = Clock::now();
    at::mm_out(product, left, right);
    best = std::max(best, flops / seconds_since(start));
  }
  return best;
} catch (...) {
  return std::numeric_limits<double>::quiet_NaN();
}

double gemm_seconds(int rows, int columns, int inner, GemmType type, double seconds) try {
  using Clock = std::chrono::steady_clock;
  const auto as = type == kGemmBf16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor left = at::ones({rows, inner}, as), right = at::ones({inner, columns}, as);
  at::Tensor product = at::empty({rows, columns}, as);
  at::mm_out(product, left, right);  // packs, chooses and compiles what later calls reuse
  std::vector<double> taken;
  const auto begin = Clock::now();
  while (taken.size() < 3 || seconds_since(begin) < seconds) {
    const auto start = Clock::now();
    at::mm_out(product, left, right);
    taken.push_back(seconds_since(start));
  }
  std::nth_element(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(taken.size() / 2), taken.end());
  return taken[taken.size() / 2];
} catch (...) {
  return std::numeric_limits<double>::quiet_NaN();
}

constexpr Runtime kRuntime = {.version = kRuntimeVersion,
                              .torch_version = &torch_version,
                              .cpu_capability = &cpu_capability,
                              .intra_op_threads = &intra_op_threads,
                              .set_intra_op_threads = &set_intra_op_threads,
                              .gemm_error = &gemm_error,
                              .gemm_flops = &gemm_flops,
                              .gemm_seconds = &gemm_seconds};

}  // namespace

const Runtime* trireme_runtime() { return &kRuntime; }

}  // namespace trireme::device
