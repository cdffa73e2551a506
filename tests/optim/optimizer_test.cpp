#include "trireme/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/optim/reference.h"
#include "tests/optim/sample_model.h"
#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"

namespace trireme::optim {
namespace {

using spec::OptimConfig;
using spec::OptimizerKind;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Case {
  const char* name;
  OptimConfig optim;
};
void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"PlainSgd", {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .momentum = 0}},
      {"Momentum", {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .momentum = 0.8}},
      {"Nesterov", {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .nesterov = true}},
      {"Adagrad", {.kind = OptimizerKind::kAdagrad, .weight_decay = 0.05}},
      {"Adam", {.kind = OptimizerKind::kAdam, .weight_decay = 0.1}},
      {"Adamw", {.kind = OptimizerKind::kAdamw, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5}},
      {"Lamb", {.kind = OptimizerKind::kLamb, .weight_decay = 0.01}},
      {"LambWithBounds",
       {.kind = OptimizerKind::kLamb, .weight_decay = 0.01, .weight_norm_min = 0.5, .weight_norm_max = 2}},
      {"Lars", {.kind = OptimizerKind::kLars, .weight_decay = 0.02, .trust = 0.01}},
      {"LarsWithoutMomentum", {.kind = OptimizerKind::kLars, .weight_decay = 0.02, .momentum = 0, .trust = 0.5}},
      {"Lion", {.kind = OptimizerKind::kLion, .weight_decay = 0.1, .beta2 = 0.99}},
      {"ScheduleFree", {.kind = OptimizerKind::kScheduleFree, .weight_decay = 0.1, .beta2 = 0.95}},
      {"MuonOfVectorsAndTables", {.kind = OptimizerKind::kMuon, .weight_decay = 0.1}},
      {"Groups",
       {.kind = OptimizerKind::kAdamw,
        .weight_decay = 0.1,
        .groups = {{.pattern = "*.bias", .rate = 0.5, .weight_decay = 0.3}, {.pattern = "emb*", .rate = 3}}}},
      {"GroupsOfLamb",
       {.kind = OptimizerKind::kLamb, .weight_decay = 0.1, .groups = {{.pattern = "up.*", .rate = 0.25}}}},
  };
  return all;
}

class EveryOptimizer : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, testing::ValuesIn(cases()),
                         [](const auto& given) { return given.param.name; });

constexpr std::uint64_t kSeed = 11;
/// A rate that changes, as those of schedules do.
double rate_of(int step) { return 0.01 / step; }

std::map<std::string, PlainParam> plain_copy(nn::Params& params, const OptimConfig& optim) {
  std::map<std::string, PlainParam> plain;
  for (nn::Param& param : params) {
    const spec::ParamRule rule = spec::rule_for(optim, param.name, param.decay);
    plain[param.name] = {
        .w = to_numbers(param.master), .rate = rule.rate, .decay = rule.weight_decay, .adapts = param.decay};
  }
  return plain;
}

/// The largest difference, as a part of the largest number.
double difference(const std::vector<double>& one, const std::vector<double>& two) {
  double largest = 0, size = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    largest = std::max(largest, std::abs(one[i] - two[i]));
    size = std::max(size, std::abs(two[i]));
  }
  return one.size() == two.size() ? largest / std::max(size, 1e-3) : 1;
}

void expect_formula(const OptimConfig& optim, nn::Precision precision, double tolerance) {
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, precision, kSeed);
  auto plain = plain_copy(params, optim);
  const auto optimizer = make_optimizer(optim, params);
  for (int step = 1; step <= 6; ++step) {
    set_gradients(params, kSeed, step);
    for (nn::Param& param : params) {
      if (!param.trainable) continue;
      std::vector<double> gradient = sample_gradient(param, kSeed, step);
      for (double& number : gradient) number *= 0.25;
      plain_step(optim, plain[param.name], gradient, rate_of(step), step);
    }
    optimizer->step({.learning_rate = rate_of(step), .gradient_scale = 0.25});
    for (nn::Param& param : params) {
      EXPECT_LE(difference(to_numbers(param.master), plain[param.name].w), tolerance) << param.name << " step " << step;
    }
  }
  EXPECT_EQ(optimizer->steps(), 6);
}

TEST_P(EveryOptimizer, FollowsItsFormulaInDouble) { expect_formula(GetParam().optim, nn::Precision::kFp64, 1e-13); }
TEST_P(EveryOptimizer, FollowsItsFormulaInFloatOnEveryInstructionSet) {
  for (const InstructionSet set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4}) {
    if (set > machine_instruction_set()) continue;
    const UseInstructionSet use(set);
    expect_formula(GetParam().optim, nn::Precision::kFp32, 2e-6);
  }
}
// Gradients are summed in float whatever is computed with, so the masters follow as closely.
TEST_P(EveryOptimizer, FollowsItsFormulaWithBf16Copies) {
  expect_formula(GetParam().optim, nn::Precision::kBf16, 2e-6);
}

TEST_P(EveryOptimizer, WritesTheRoundedCopyAndRaisesTheVersion) {
  for (const nn::Precision precision : {nn::Precision::kFp32, nn::Precision::kBf16, nn::Precision::kFp16}) {
    nn::Params params;
    add_sample_params(params);
    nn::initialise(params, precision, kSeed);
    const at::Tensor frozen = params.at("frozen").master.clone();
    const auto optimizer = make_optimizer(GetParam().optim, params);
    set_gradients(params, kSeed, 1);
    std::map<std::string, std::int64_t> versions;
    for (nn::Param& param : params) versions[param.name] = param.version;
    optimizer->step({.learning_rate = 0.01});
    for (nn::Param& param : params) {
      EXPECT_TRUE(at::equal(param.value, param.master.to(param.value.scalar_type()))) << param.name;
      EXPECT_EQ(param.version, versions[param.name] + (param.trainable ? 1 : 0)) << param.name;
      EXPECT_TRUE(param.gradient_empty) << param.name;
    }
    EXPECT_TRUE(at::equal(params.at("frozen").master, frozen));
  }
}

TEST_P(EveryOptimizer, ComputesTheSameBitsWithAnyNumberOfThreads) {
  const int threads_before = at::get_num_threads();
  std::vector<std::uint64_t> hashes;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    nn::Params params;
    add_sample_params(params);
    params.add("wide", {301, 777}, {nn::Init::Kind::kNormal, 1}, true);  // several threads' worth
    nn::initialise(params, nn::Precision::kBf16, kSeed);
    const auto optimizer = make_optimizer(GetParam().optim, params);
    for (int step = 1; step <= 2; ++step) {
      set_gradients(params, kSeed, step);
      optimizer->step({.learning_rate = 0.01});
    }
    nn::State state;
    nn::add_params(state, params);
    optimizer->add_state(state);
    hashes.push_back(nn::total_hash(nn::hash_shares(state, layout::Mesh(), 0)));
  }
  at::set_num_threads(threads_before);
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
}

TEST_P(EveryOptimizer, ContinuesFromItsStateToTheBit) {
  const auto start = [&](nn::Params& params, nn::State& state) {
    add_sample_params(params);
    nn::initialise(params, nn::Precision::kFp32, kSeed);
    auto optimizer = make_optimizer(GetParam().optim, params);
    nn::add_params(state, params);
    optimizer->add_state(state);
    return optimizer;
  };
  nn::Params one, two;
  nn::State state_one, state_two;
  const auto first = start(one, state_one), second = start(two, state_two);
  const auto train = [](nn::Params& params, Optimizer& optimizer, int from, int to) {
    for (int step = from; step <= to; ++step) {
      set_gradients(params, kSeed, step);
      optimizer.step({.learning_rate = rate_of(step)});
    }
  };
  train(one, *first, 1, 3);
  for (const nn::StateTensor& entry : state_one.tensors()) state_two.at(entry.name).tensor.copy_(entry.tensor);
  for (const nn::StateValue& entry : state_one.values()) state_two.value(entry.name).set(entry.get());
  train(one, *first, 4, 6);
  train(two, *second, 4, 6);
  EXPECT_EQ(nn::hash_shares(state_one, layout::Mesh(), 0), nn::hash_shares(state_two, layout::Mesh(), 0));
}

TEST_P(EveryOptimizer, KeepsWhatThePlannerCounts) {
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, nn::Precision::kBf16, kSeed);
  const auto optimizer = make_optimizer(GetParam().optim, params);
  nn::State state;
  optimizer->add_state(state);
  std::int64_t trainable = 0;
  for (const nn::Param& param : params) trainable += param.trainable ? param.elements() : 0;
  EXPECT_EQ(state.bytes(), 4 * spec::moments_of(GetParam().optim) * trainable);
  for (const nn::StateTensor& entry : state.tensors()) EXPECT_THAT(entry.name, Not(HasSubstr("frozen")));
}

TEST_P(EveryOptimizer, NamesParametersWithoutAGradientAndChangesNothing) {
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, nn::Precision::kFp32, kSeed);
  const auto optimizer = make_optimizer(GetParam().optim, params);
  set_gradients(params, kSeed, 1);
  params.at("norm").gradient_empty = true;
  const at::Tensor before = params.at("embedding").master.clone();
  try {
    optimizer->step({.learning_rate = 0.01});
    FAIL() << "stepped";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "a parameter has no gradient in this step: norm");
    EXPECT_THAT(error.hint(), HasSubstr("trainable = false"));
  }
  EXPECT_TRUE(at::equal(params.at("embedding").master, before));
  EXPECT_EQ(optimizer->steps(), 0);
  params.at("norm").gradient_empty = false;
  optimizer->step({.learning_rate = 0.01});
  EXPECT_THROW(optimizer->step({.learning_rate = 0.01}), ConfigError) << "the gradients are old now";
}

/// Every rank holds a part; sums of squares are added up over parts in order, as a group of ranks would.
TEST_P(EveryOptimizer, UpdatesPartsAsItUpdatesTheWhole) {
  const layout::Mesh mesh = layout::parse_mesh("tp=3");
  const auto add = [](nn::Params& params, int rank, const layout::Mesh& over) {
    params.add(layout::Placing(over, rank, "up.weight", {29, 16}).split(0, "tp").placement(),
               {nn::Init::Kind::kNormal, 0.5}, true);
    params.add(layout::Placing(over, rank, "embedding", {10, 7}).split(1, "tp").placement(),
               {nn::Init::Kind::kUniform, 0.5}, true);
    params.add(layout::Placing(over, rank, "up.bias", {29}).split(0, "tp").placement(), {nn::Init::Kind::kNormal, 0.5},
               false);
    nn::initialise(params, nn::Precision::kFp64, kSeed);
  };
  const auto train = [](nn::Params& params, Optimizer& optimizer, const AcrossRanks* across) {
    for (nn::Param& param : params) {  // by global index, as backward would give it
      const Random random(kSeed, "gradient/" + param.name);
      at::Tensor& gradient = nn::gradient_to_add_to(param);
      for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
        for (layout::Index i = 0; i < run.count; ++i) {
          gradient.data_ptr<double>()[run.local + i] = random.normal(static_cast<std::uint64_t>(run.global + i));
        }
      }
    }
    optimizer.step({.learning_rate = 0.01, .across = across});
  };
  nn::Params whole;
  add(whole, 0, layout::parse_mesh("tp=1"));
  const auto reference = make_optimizer(GetParam().optim, whole);
  train(whole, *reference, nullptr);

  // The first round hears what each rank has, the second gives every rank the sum.
  std::vector<std::vector<double>> heard;
  std::vector<double> sums;
  for (const bool telling : {false, true}) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      nn::Params params;
      add(params, rank, mesh);
      const auto optimizer = make_optimizer(GetParam().optim, params);
      const AcrossRanks across{.sum_parts = [&](std::span<double> squares) {
        if (!telling) {
          heard.emplace_back(squares.begin(), squares.end());
        } else {
          std::ranges::copy(sums, squares.begin());
        }
      }};
      train(params, *optimizer, &across);
      if (!telling) continue;
      for (nn::Param& param : params) {
        const at::Tensor& expected = whole.at(param.name).master;
        for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
          for (layout::Index i = 0; i < run.count; ++i) {
            ASSERT_NEAR(param.master.data_ptr<double>()[run.local + i],
                        expected.const_data_ptr<double>()[run.global + i], 1e-14)
                << param.name << " on rank " << rank;
          }
        }
      }
    }
    for (const auto& squares : heard) {
      sums.resize(squares.size());
      if (!telling) {
        for (std::size_t i = 0; i < squares.size(); ++i) sums[i] += squares[i];
      }
    }
  }
  const bool has_norms = GetParam().optim.kind == OptimizerKind::kLamb || GetParam().optim.kind == OptimizerKind::kLars;
  EXPECT_EQ(heard.size(), has_norms ? 3U : 0U);
}

TEST(Adamw, IsTorchsFusedOne) {
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, nn::Precision::kFp32, kSeed);
  const OptimConfig optim{.kind = OptimizerKind::kAdamw, .weight_decay = 0.1, .beta2 = 0.95};
  const auto optimizer = make_optimizer(optim, params);
  std::vector<at::Tensor> weights, gradients, m, v, steps;
  for (nn::Param& param : params) {
    if (!param.trainable) continue;
    weights.push_back(param.master.clone());
    gradients.push_back(at::zeros_like(param.master));
    m.push_back(at::zeros_like(param.master));
    v.push_back(at::zeros_like(param.master));
    steps.push_back(at::full({}, 0.0F));
  }
  for (int step = 1; step <= 5; ++step) {
    set_gradients(params, kSeed, step);
    std::size_t i = 0;
    for (nn::Param& param : params) {
      if (param.trainable) gradients[i++].copy_(param.gradient);
    }
    for (i = 0; i < weights.size(); ++i) {
      steps[i].add_(1);
      // Torch has one decay for a list; ours follows the parameter.
      const bool decays = weights[i].dim() == 2;
      at::_fused_adamw_({weights[i]}, {gradients[i]}, {m[i]}, {v[i]}, {}, {steps[i]}, 0.01, 0.9, 0.95,
                        decays ? 0.1 : 0.0, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    }
    optimizer->step({.learning_rate = 0.01});
  }
  std::size_t i = 0;
  for (nn::Param& param : params) {
    if (!param.trainable) continue;
    EXPECT_LE(difference(to_numbers(param.master), to_numbers(weights[i])), 1e-6) << param.name;
    ++i;
  }
}

TEST(Lamb, MovesEveryMatrixByItsRateTimesItsLength) {  // algorithm 2: |w' - w| = rate |w|
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, nn::Precision::kFp64, kSeed);
  const auto optimizer = make_optimizer({.kind = OptimizerKind::kLamb, .weight_decay = 0.01}, params);
  std::map<std::string, Numbers> before;
  for (nn::Param& param : params) before[param.name] = to_numbers(param.master);
  set_gradients(params, kSeed, 1);
  optimizer->step({.learning_rate = 0.02});
  for (const char* name : {"embedding", "up.weight"}) {
    Numbers change = to_numbers(params.at(name).master);
    for (std::size_t i = 0; i < change.size(); ++i) change[i] -= before[name][i];
    EXPECT_NEAR(norm(change), 0.02 * norm(before[name]), 1e-12) << name;
  }
}

/// phi(|w|) is |w| inside its bounds and the bound outside, from all zeros, too.
TEST(Lamb, ClipsTheWeightNorm) {
  const auto moved = [](double value, double low, std::optional<double> high) {
    nn::Params params;
    nn::Param& param = params.add("w", {4, 4}, {}, true);
    nn::initialise(params, nn::Precision::kFp64, kSeed);
    param.master.fill_(value);  // of norm 4 times that
    const auto optimizer =
        make_optimizer({.kind = OptimizerKind::kLamb, .weight_norm_min = low, .weight_norm_max = high}, params);
    set_gradients(params, kSeed, 1);
    const Numbers before = to_numbers(param.master);
    optimizer->step({.learning_rate = 0.02});
    Numbers change = to_numbers(param.master);
    for (std::size_t i = 0; i < change.size(); ++i) change[i] -= before[i];
    return norm(change) / 0.02;
  };
  EXPECT_NEAR(moved(0.5, 0, {}), 2, 1e-12);
  EXPECT_NEAR(moved(0.5, 1, 3), 2, 1e-12) << "inside";
  EXPECT_NEAR(moved(0.5, 3, {}), 3, 1e-12);
  EXPECT_NEAR(moved(0.5, 0, 1.5), 1.5, 1e-12);
  EXPECT_NEAR(moved(0, 0.25, {}), 0.25, 1e-12) << "zeros have the lower bound";
  EXPECT_NEAR(moved(0, 0, {}), std::sqrt(15), 1e-3) << "and without one the ratio 1: Adam's first step is 1 for each "
                                                       "of the 15 whose gradient is not 0";
}

TEST(Lars, DoesNotDependOnTheGradientsLength) {
  const auto trained = [](double scale) {
    nn::Params params;
    params.add("w", {40, 8}, {nn::Init::Kind::kNormal, 1}, true);
    nn::initialise(params, nn::Precision::kFp64, kSeed);
    const auto optimizer = make_optimizer({.kind = OptimizerKind::kLars, .trust = 0.1}, params);
    for (int step = 1; step <= 3; ++step) {
      set_gradients(params, kSeed, step);
      optimizer->step({.learning_rate = 0.1, .gradient_scale = scale});
    }
    return to_numbers(params.at("w").master);
  };
  EXPECT_LE(difference(trained(1000), trained(1)), 1e-14);
}

TEST(Optimizer, RefusesARecipeThatContradictsItself) {
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, nn::Precision::kFp32, kSeed);
  EXPECT_THROW((void)make_optimizer({.kind = OptimizerKind::kAdamw, .nesterov = true}, params), ConfigError);
}

TEST(Optimizer, RegistersMomentsUnderTheNamesOfParameters) {
  nn::Params params;
  add_sample_params(params);
  nn::initialise(params, nn::Precision::kFp64, kSeed);
  const auto optimizer = make_optimizer({.kind = OptimizerKind::kAdamw}, params);
  nn::State state;
  nn::add_params(state, params);
  optimizer->add_state(state);
  EXPECT_EQ(state.at("optim/m/up.weight").tensor.scalar_type(), at::kDouble) << "as the master";
  EXPECT_EQ(state.at("optim/v/up.weight").placement.shape, (layout::Shape{24, 129}));
  EXPECT_EQ(state.find("optim/m/frozen"), nullptr);
  EXPECT_NE(state.find("param/frozen"), nullptr);
  EXPECT_EQ(state.value("optim/steps").get(), 0);
}

}  // namespace
}  // namespace trireme::optim
