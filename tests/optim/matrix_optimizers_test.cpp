// Muon, Adafactor, Shampoo and SOAP beside their formulas written out; Newton-Schulz; what each keeps.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_svdvals.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/optim/matrix_reference.h"
#include "tests/optim/sample_model.h"
#include "trireme/nn/state.h"
#include "trireme/optim/newton_schulz.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

using spec::OptimConfig;
using spec::OptimizerKind;

struct MatrixCase {
  const char* name;
  OptimConfig optim;
};
void PrintTo(const MatrixCase& given, std::ostream* out) { *out << given.name; }

class MatrixOptimizers : public testing::TestWithParam<MatrixCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, MatrixOptimizers,
    testing::Values(
        MatrixCase{"Muon", {.kind = OptimizerKind::kMuon, .weight_decay = 0.1}},
        MatrixCase{"MuonSpectralWithoutNesterov",
                   {.kind = OptimizerKind::kMuon,
                    .muon_momentum = 0.8,
                    .muon_nesterov = false,
                    .muon_scale = spec::MuonScale::kSpectral,
                    .newton_schulz_steps = 3}},
        MatrixCase{"Adafactor", {.kind = OptimizerKind::kAdafactor, .weight_decay = 0.1}},
        MatrixCase{"AdafactorAbsolute",
                   {.kind = OptimizerKind::kAdafactor, .update_clip = 0.5, .parameter_scale = false}},
        MatrixCase{"Shampoo", {.kind = OptimizerKind::kShampoo, .weight_decay = 0.1, .precondition_every = 2}},
        MatrixCase{"ShampooOfSums",
                   {.kind = OptimizerKind::kShampoo, .beta1 = 0, .preconditioner_beta = 1, .precondition_every = 1}},
        MatrixCase{"Soap",
                   {.kind = OptimizerKind::kSoap, .weight_decay = 0.1, .beta2 = 0.95, .precondition_every = 2}}),
    [](const auto& given) { return given.param.name; });

constexpr std::uint64_t kMatrixSeed = 5;

void add_matrices(nn::Params& params) {
  add_sample_params(params);
  params.add("layers.0.wide.weight", {7, 13}, {nn::Init::Kind::kNormal, 0.5}, true);
  params.add("layers.0.tall.weight", {13, 7}, {nn::Init::Kind::kNormal, 0.5}, true);
  params.add("layers.1.square.weight", {6, 6}, {nn::Init::Kind::kUniform, 0.5}, true);
}

bool is_matrix(const OptimConfig& optim, const nn::Param& param) {
  return spec::treats_as_matrix(optim, param.name, param.placement.shape.size());
}
PlainMatrix shaped(const nn::Param& param, Numbers numbers) {
  const layout::Shape& shape = param.placement.shape;
  const std::size_t rows = shape.size() == 2 ? static_cast<std::size_t>(shape[0]) : 1;
  const std::size_t columns = numbers.size() / rows;
  return {rows, columns, std::move(numbers)};
}

void expect_matrix_formula(const OptimConfig& optim, nn::Precision precision, double tolerance) {
  nn::Params params;
  add_matrices(params);
  nn::initialise(params, precision, kMatrixSeed);
  std::map<std::string, PlainState> matrices;
  std::map<std::string, PlainParam> others;
  for (nn::Param& param : params) {
    const spec::ParamRule rule = spec::rule_for(optim, param.name, param.decay);
    matrices[param.name].w = shaped(param, to_numbers(param.master));
    matrices[param.name].decay = rule.weight_decay;
    others[param.name] = {.w = to_numbers(param.master), .decay = rule.weight_decay};
  }
  const auto optimizer = make_optimizer(optim, params);
  for (int step = 1; step <= 5; ++step) {
    const double rate = 0.02 / step;
    set_gradients(params, kMatrixSeed, step);
    for (nn::Param& param : params) {
      if (!param.trainable) continue;
      Numbers gradient = sample_gradient(param, kMatrixSeed, step);
      for (double& number : gradient) number *= 0.25;
      if (is_matrix(optim, param)) {
        plain_matrix_step(optim, matrices[param.name], shaped(param, gradient), rate, step);
      } else if (optim.kind == OptimizerKind::kAdafactor) {
        plain_adafactor(optim, matrices[param.name], shaped(param, gradient), rate, step, false);
      } else {
        plain_step(optim, others[param.name], gradient, rate, step);
        matrices[param.name].w.numbers = others[param.name].w;
      }
    }
    optimizer->step({.learning_rate = rate, .gradient_scale = 0.25});
    for (nn::Param& param : params) {
      // A product of rank below its size has no one eigenbasis, and Adam's steps depend on it.
      const layout::Shape& shape = param.placement.shape;
      if (optim.kind == OptimizerKind::kSoap && is_matrix(optim, param) && shape[0] != shape[1]) continue;
      const Numbers now = to_numbers(param.master);
      const Numbers& expected = matrices[param.name].w.numbers;
      double farthest = 0;
      for (std::size_t i = 0; i < now.size(); ++i) farthest = std::max(farthest, std::abs(now[i] - expected[i]));
      EXPECT_LE(farthest, tolerance) << param.name << " step " << step;
      EXPECT_TRUE(at::equal(param.value, param.master.to(param.value.scalar_type()))) << param.name;
    }
  }
}
TEST_P(MatrixOptimizers, FollowTheirFormulaInDouble) {
  expect_matrix_formula(GetParam().optim, nn::Precision::kFp64, 1e-9);
}
TEST_P(MatrixOptimizers, FollowTheirFormulaInFloat) {
  // Where a preconditioner is nearly singular, the last digits of a float are worth as much as an update.
  if (GetParam().optim.kind == OptimizerKind::kShampoo || GetParam().optim.kind == OptimizerKind::kSoap) return;
  expect_matrix_formula(GetParam().optim, nn::Precision::kBf16, 1e-5);
}

/// What has no gradient in a step (Param::unused) keeps its numbers and its state; the others' steps are those without
/// it.
TEST_P(MatrixOptimizers, LeaveOutWhatNobodyUsed) {
  const std::vector<std::string> unused{"layers.0.wide.weight", "layers.1.square.weight"};
  nn::Params all, others;
  add_matrices(all);
  for (const nn::Param& param : all) {
    if (std::ranges::find(unused, param.name) == unused.end())
      others.add(param.placement, param.init, param.decay).trainable = param.trainable;
  }
  for (nn::Params* params : {&all, &others}) nn::initialise(*params, nn::Precision::kFp64, kMatrixSeed);
  const auto optimizer = make_optimizer(GetParam().optim, all), without = make_optimizer(GetParam().optim, others);
  nn::State state;
  optimizer->add_state(state);
  for (int step = 1; step <= 3; ++step) {
    for (nn::Params* params : {&all, &others}) set_gradients(*params, kMatrixSeed, step);
    for (const std::string& name : unused) all.at(name).unused = true;
    std::map<std::string, at::Tensor> before;
    for (const nn::StateTensor& entry : state.tensors()) before[entry.name] = entry.tensor.clone();
    for (const std::string& name : unused) before[name] = all.at(name).master.clone();
    optimizer->step({.learning_rate = 0.01});
    without->step({.learning_rate = 0.01});
    for (const std::string& name : unused) {
      EXPECT_TRUE(at::equal(all.at(name).master, before[name])) << name;
      for (const nn::StateTensor& entry : state.tensors()) {
        if (!entry.name.ends_with("/" + name)) continue;
        EXPECT_TRUE(at::equal(entry.tensor, before[entry.name])) << entry.name;
      }
    }
    for (const nn::Param& param : others) {
      EXPECT_TRUE(at::allclose(param.master, all.at(param.name).master, 1e-12, 1e-12))
          << param.name << " step " << step;
    }
  }
}

TEST_P(MatrixOptimizers, KeepWhatThePlannerCounts) {
  nn::Params params;
  add_matrices(params);
  nn::initialise(params, nn::Precision::kFp32, kMatrixSeed);
  const auto optimizer = make_optimizer(GetParam().optim, params);
  nn::State state;
  optimizer->add_state(state);
  std::int64_t expected = 0;
  for (const nn::Param& param : params) {
    if (param.trainable) expected += spec::state_elements(GetParam().optim, param.name, param.placement.shape);
  }
  EXPECT_EQ(state.bytes(), 4 * expected);
  EXPECT_EQ(optimizer->bytes(), 4 * expected);
}

TEST_P(MatrixOptimizers, ContinueFromTheirStateToTheBit) {
  nn::Params one, two;
  nn::State state_one, state_two;
  const auto start = [&](nn::Params& params, nn::State& state) {
    add_matrices(params);
    nn::initialise(params, nn::Precision::kFp32, kMatrixSeed);
    auto optimizer = make_optimizer(GetParam().optim, params);
    nn::add_params(state, params);
    optimizer->add_state(state);
    return optimizer;
  };
  const auto first = start(one, state_one), second = start(two, state_two);
  const auto train = [](nn::Params& params, Optimizer& optimizer, int from, int to) {
    for (int step = from; step <= to; ++step) {
      set_gradients(params, kMatrixSeed, step);
      optimizer.step({.learning_rate = 0.01});
    }
  };
  train(one, *first, 1, 3);
  for (const nn::StateTensor& entry : state_one.tensors()) state_two.at(entry.name).tensor.copy_(entry.tensor);
  for (const nn::StateValue& entry : state_one.values()) state_two.value(entry.name).set(entry.get());
  train(one, *first, 4, 5);
  train(two, *second, 4, 5);
  EXPECT_EQ(nn::hash_shares(state_one, layout::Mesh(), 0), nn::hash_shares(state_two, layout::Mesh(), 0));
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  for (const auto& [rows, columns] : {std::pair{24, 24}, {16, 48}, {48, 16}, {1, 9}}) {
    std::vector<double> numbers(static_cast<std::size_t>(rows * columns));
    const Random random(3, "matrix");
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random.normal(i);
    const at::Tensor values = at::linalg_svdvals(newton_schulz(to_tensor(numbers).view({rows, columns}), 5));
    EXPECT_LE(values.max().item<double>(), 1.25) << rows << " x " << columns;
    // The smallest values of a square random matrix are near 0, which five iterations do not bring up.
    if (rows == columns) continue;
    EXPECT_GE(values.min().item<double>(), 0.6) << rows << " x " << columns;
  }
}

TEST(NewtonSchulz, IsTheSameInABatchOfEqualAndTurnedShapes) {
  std::vector<double> numbers(4 * 6 * 10);
  const Random random(7, "matrices");
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random.normal(i);
  const at::Tensor all = to_tensor(numbers);
  std::vector<at::Tensor> together = {all.narrow(0, 0, 60).view({6, 10}).clone(), at::Tensor(),
                                      all.narrow(0, 60, 60).view({10, 6}).clone(),
                                      all.narrow(0, 120, 120).view({2, 6, 10}).clone()};
  const std::vector<at::Tensor> before = {together[0].clone(), at::Tensor(), together[2].clone(), together[3].clone()};
  orthogonalise(together, 5, at::kDouble);
  for (const std::size_t i : {0, 2, 3}) {
    const at::Tensor alone = newton_schulz(before[i], 5);
    EXPECT_LE((alone - together[i]).abs().max().item<double>(), 1e-12) << i;
  }
  const PlainMatrix plain = plain_newton_schulz({10, 6, to_numbers(before[2])}, 5);
  const Numbers made = to_numbers(together[2]);
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i], plain.numbers[i], 1e-11);
}

/// x, which is evaluated, is the average of z by squared rates; y, which is trained, lies between them.
TEST(ScheduleFree, EvaluatesTheAverageOfItsSteps) {
  nn::Params params;
  nn::Param& param = params.add("w", {4}, {nn::Init::Kind::kNormal, 1}, false);
  nn::initialise(params, nn::Precision::kFp64, kMatrixSeed);
  const auto optimizer = make_optimizer({.kind = OptimizerKind::kScheduleFree}, params);
  EXPECT_FALSE(optimizer->evaluation_weights(param).defined()) << "before the first step they are the same";
  nn::State state;
  optimizer->add_state(state);
  at::Tensor sum = param.master * 0;
  double weights = 0;
  for (int step = 1; step <= 6; ++step) {
    const double rate = 0.01 * step;
    set_gradients(params, kMatrixSeed, step);
    optimizer->step({.learning_rate = rate});
    sum = sum + state.at("optim/z/w").tensor * (rate * rate);
    weights += rate * rate;
    const at::Tensor x = optimizer->evaluation_weights(param);
    EXPECT_LE((x - sum / weights).abs().max().item<double>(), 1e-13) << step;
    const at::Tensor y = state.at("optim/z/w").tensor * 0.1 + x * 0.9;
    EXPECT_LE((param.master - y).abs().max().item<double>(), 1e-13) << step;
  }
}

}  // namespace
}  // namespace trireme::optim
