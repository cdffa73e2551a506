#include "trireme/unsupervised/commands.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/device/cuda.h"
#include "trireme/unsupervised/rbm.h"
#include "trireme/unsupervised/sparse_coding.h"

namespace trireme::unsupervised {
namespace {

using Clock = std::chrono::steady_clock;

at::Tensor on_device(const Examples& examples, bool cuda, at::ScalarType type) {
  const at::Device device = cuda ? device::use_cuda(0) : at::Device(at::kCPU);
  return at::from_blob(const_cast<float*>(examples.values.data()), {examples.rows, examples.columns},
                       at::TensorOptions(at::kFloat))
      .to(at::TensorOptions(type).device(device), /*non_blocking=*/false, /*copy=*/true);
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

DbnResult train_dbn(const DbnRequest& request) {
  at::Tensor examples = on_device(request.examples, request.cuda, at::kFloat);
  at::manual_seed(request.seed);  // behind the line above: it looks for CUDA, and would remember that there is none
  DbnResult result;
  const auto begin = Clock::now();
  for (std::size_t layer = 0; layer < request.hidden.size(); ++layer) {
    Rbm rbm = make_rbm({.visible = examples.size(1), .hidden = request.hidden[layer], .seed = request.seed + layer},
                       examples);
    if (layer == 0 && request.patch > 0) {
      const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(examples.size(1)))));
      Patches patches{.side = side, .size = request.patch, .stride = request.stride, .per_patch = 1};
      const bool fits =
          side * side == examples.size(1) && request.patch <= side && request.hidden[0] % patches.count() == 0;
      if (!fits)
        throw ConfigError(
            fmt::format("{} hidden units cannot be shared out over the patches of {} in images of {} values",
                        request.hidden[0], request.patch, examples.size(1)),
            "give square images, and a multiple of the number of patches as --hidden");
      patches.per_patch = request.hidden[0] / patches.count();
      rbm.mask = overlapping_patches(patches, examples);
      rbm.weight.mul_(rbm.mask);
    }
    CdState state;
    result.before.push_back(reconstruction_error(rbm, examples));
    for (int epoch = 0; epoch < request.epochs; ++epoch) {
      const double error = train_epoch(rbm, state, examples,
                                       {.rate = request.rate, .momentum = request.momentum, .batch = request.batch});
      if (request.each) request.each(static_cast<int>(layer), epoch, error, reconstruction_error(rbm, examples));
    }
    result.after.push_back(reconstruction_error(rbm, examples));
    result.parameters += rbm.weight.numel() + rbm.visible.numel() + rbm.hidden.numel();
    examples = hidden_of(rbm, examples);
  }
  result.seconds = seconds_since(begin);
  return result;
}

SparseCodeResult code_sparsely(const SparseCodeRequest& request) {
  const at::Tensor examples = on_device(request.examples, request.cuda, request.fp64 ? at::kDouble : at::kFloat);
  SparseCoding coding = make_sparse_coding(request.bases, examples.size(1), request.beta, request.seed, examples);
  SparseCodeResult result;
  const auto begin = Clock::now();
  at::Tensor activations;
  const DescentOptions descent{.most = request.iterations, .tolerance = request.tolerance};
  const auto active_share = [&] {
    return activations.ne(0).sum(at::kDouble).item<double>() / static_cast<double>(activations.numel());
  };
  for (int round = 0; round < request.rounds; ++round) {
    std::int64_t iterations = 0;
    activations = find_activations(coding, examples, activations, descent, &iterations);
    result.iterations += iterations;
    const double behind = objective(coding, examples, activations);
    if (round + 1 < request.rounds) improve_bases(coding, examples, activations, 20);
    if (request.each) request.each(round, behind, objective(coding, examples, activations), active_share());
  }
  result.objective = objective(coding, examples, activations);
  result.residual = kkt_residual(coding, examples, activations);
  result.active = active_share();
  result.seconds = seconds_since(begin);
  return result;
}

constexpr Commands kUnsupervisedCommands{.version = kVersion, .dbn = &train_dbn, .sparse_code = &code_sparsely};

}  // namespace

extern "C" const Commands* trireme_unsupervised() { return &kUnsupervisedCommands; }

}  // namespace trireme::unsupervised
