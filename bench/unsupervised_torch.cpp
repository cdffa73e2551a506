// bench/unsupervised_torch.cpp -- belief networks and sparse coding on a GPU beside one core of this machine (Raina
// 2009: 72.6x and 5 to 15x over a dual-core CPU).
//
//   build/release/bench/unsupervised_torch --cuda
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/arguments.h"
#include "trireme/device/cuda.h"
#include "trireme/unsupervised/rbm.h"
#include "trireme/unsupervised/sparse_coding.h"

namespace {

using namespace trireme::unsupervised;

/// The fastest of three, in seconds a call; what is read at the end waits for a GPU.
template <typename Call>
double seconds_of(int calls, const Call& call) {
  double best = 1e300;
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    call().template item<double>();
    best =
        std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / (calls + 1));
  }
  return best;
}

double rbm_step(at::Device device, std::int64_t visible, std::int64_t hidden, int calls) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor examples = at::rand({192, visible}, options);
  Rbm rbm{at::randn({visible, hidden}, options) * 0.01, at::zeros({visible}, options), at::zeros({hidden}, options)};
  CdState state;
  return seconds_of(calls, [&] {
    return cd_step(rbm, state, examples, at::rand({192, hidden}, options), {.rate = 0.01});
  });
}

double coding_step(at::Device device, std::int64_t rows, std::int64_t bases, std::int64_t values, int calls) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor examples = at::rand({rows, values}, options);
  const SparseCoding coding = make_sparse_coding(bases, values, 0.2, 1, examples);
  const at::Tensor gram = at::matmul(coding.bases, coding.bases.t()), products = at::matmul(examples, coding.bases.t());
  at::Tensor a = at::zeros({rows, bases}, options);
  return seconds_of(calls, [&] {
    descend(a, gram, products, coding.beta);
    return a.sum(at::kDouble);
  });
}

}  // namespace

int main(int count, char** words) {
  bool cuda = false;
  trireme::bench::Arguments app("Belief networks and sparse coding on one core, and beside it on a GPU");
  app.add_flag("--cuda", cuda, "on a GPU too");
  if (const auto status = app.parse(count, words)) return *status;
  at::set_num_threads(1);
  const at::Device cpu(at::kCPU), gpu = cuda ? trireme::device::use_cuda(0) : cpu;
  const auto show = [&](const char* what, double core, double card) {
    fmt::print("{:<44}  one core {:>9.3f} ms", what, 1e3 * core);
    if (cuda) fmt::print("   GPU {:>8.3f} ms   {:.1f}x", 1e3 * card, core / card);
    fmt::print("\n");
  };
  // The paper's batch of 192 examples, and its sizes of an RBM: 1.1 and 45 million parameters.
  show("RBM 1024 x 1024, a step of CD-1", rbm_step(cpu, 1024, 1024, 3), cuda ? rbm_step(gpu, 1024, 1024, 200) : 0);
  show("RBM 4096 x 11008, a step of CD-1", rbm_step(cpu, 4096, 11008, 1), cuda ? rbm_step(gpu, 4096, 11008, 50) : 0);
  show("sparse coding, 1024 bases of 1024, 1000 rows", coding_step(cpu, 1000, 1024, 1024, 1),
       cuda ? coding_step(gpu, 1000, 1024, 1024, 50) : 0);
}
