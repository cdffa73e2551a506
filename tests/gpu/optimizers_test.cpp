// Optimizers through ATen on a GPU beside the same steps on the CPU.
#include "trireme/optim/optimizer.h"

#include "tests/gpu/support.h"
#include "tests/optim/sample_model.h"
#include "trireme/optim/newton_schulz.h"

namespace trireme::gpu {
namespace {

using spec::OptimizerKind;

void add_optimizer_params(nn::Params& params, bool square) {
  optim::add_sample_params(params);
  if (square) {
    params.add("layers.0.square.weight", {24, 24}, {nn::Init::Kind::kNormal, 0.5}, true);
    return;
  }
  params.add("layers.0.wide.weight", {96, 256}, {nn::Init::Kind::kNormal, 0.5}, true);
  params.add("layers.0.tall.weight", {256, 96}, {nn::Init::Kind::kNormal, 0.5}, true);
  params.add("layers.1.wide.weight", {96, 256}, {nn::Init::Kind::kNormal, 0.5}, true);
}

/// The largest difference of any weight after a few steps on both.
double farthest_after_steps(const spec::OptimConfig& optim, nn::Precision precision) {
  nn::Params here, there;
  for (nn::Params* params : {&here, &there}) {
    // Products of rank below their size have no one eigenbasis, and SOAP's steps depend on it.
    add_optimizer_params(*params, optim.kind == OptimizerKind::kSoap);
    nn::initialise(*params, precision, 3, params == &here ? at::Device(at::kCPU) : gpu());
  }
  const auto one = optim::make_optimizer(optim, here), two = optim::make_optimizer(optim, there);
  for (int step = 1; step <= 4; ++step) {
    optim::set_gradients(here, 3, step);
    for (nn::Param& param : there) {
      std::vector<double> numbers = optim::sample_gradient(param, 3, step);
      nn::add_gradient(param, optim::to_tensor(numbers).to(param.master.device()));
    }
    one->step({.learning_rate = 0.01, .gradient_scale = 0.5});
    two->step({.learning_rate = 0.01, .gradient_scale = 0.5});
  }
  double farthest = 0;
  for (nn::Param& param : here) {
    const at::Tensor other = there.at(param.name).master.cpu();
    if (param.master.numel() > 0) farthest = std::max(farthest, (other - param.master).abs().max().item<double>());
    EXPECT_TRUE(at::equal(there.at(param.name).value.cpu(), other.to(param.value.scalar_type()))) << param.name;
  }
  return farthest;
}

TEST(GpuOptimizers, EqualTheCpu) {
  for (const OptimizerKind kind : {OptimizerKind::kLion, OptimizerKind::kScheduleFree, OptimizerKind::kMuon,
                                   OptimizerKind::kAdafactor, OptimizerKind::kShampoo, OptimizerKind::kSoap}) {
    spec::OptimConfig optim{.kind = kind, .weight_decay = 0.1};
    if (kind == OptimizerKind::kMuon) optim.newton_schulz_dtype = spec::NewtonSchulzDtype::kFp32;
    if (kind == OptimizerKind::kShampoo || kind == OptimizerKind::kSoap) optim.precondition_every = 2;
    const std::string name(name_in(spec::enum_names(std::type_identity<OptimizerKind>()), kind));
    // Eigenvalues near 0 of Shampoo and SOAP magnify the last digits.
    const bool roots = kind == OptimizerKind::kShampoo || kind == OptimizerKind::kSoap;
    EXPECT_LE(farthest_after_steps(optim, nn::Precision::kFp64), roots ? 1e-5 : 1e-8) << name;
    // A sign of Lion's that rounding turns moves a weight by two rates; decompositions of fp32 differ in their last
    // digits.
    if (kind == OptimizerKind::kLion || roots) continue;
    EXPECT_LE(farthest_after_steps(optim, nn::Precision::kBf16), 2e-4) << name;
  }
}

TEST(GpuOptimizers, OrthogonaliseInBf16AsWellAsTheyNeed) {
  const at::Tensor numbers = normal_tensor({64, 256}, at::kDouble, "muon");
  const at::Tensor exact = optim::newton_schulz(numbers, 5);
  at::Tensor made = numbers.to(at::kFloat).to(gpu());
  optim::orthogonalise({&made, 1}, 5, at::kBFloat16);
  const double error = (made.cpu().to(at::kDouble) - exact).norm().item<double>() / exact.norm().item<double>();
  EXPECT_LE(error, 0.05);
}

}  // namespace
}  // namespace trireme::gpu
