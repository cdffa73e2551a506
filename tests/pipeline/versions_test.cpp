// Asynchronous schedules beside their mathematics: one step after the other on one rank, with every version of the
// weights kept, and for each pass the version that the paper says.
#include "trireme/pipeline/versions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/pipeline/support.h"
#include "trireme/nn/state.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/replicated.h"

namespace trireme::pipeline {
namespace {

using spec::Family;
using Numbers = std::map<std::string, at::Tensor>;

/// All parameters and moments after each update.
struct History {
  std::vector<Numbers> weights, moments;
};

/// What a pass of a micro through a chunk computes with.
using Law = std::function<Numbers(const History& history, int chunk, int micro, bool forward)>;

class Given final : public nn::WeightSource {
 public:
  explicit Given(Numbers numbers) : numbers_(std::move(numbers)) {}
  const at::Tensor& value(const nn::Param& param) override { return numbers_.at(param.name); }

 private:
  Numbers numbers_;
};

/// Gradients of micros one by one; each pass with the weights that `law` gives it.
Outcome train_delayed(const Problem& problem, int chunks, const Law& law) {
  Outcome outcome;
  auto model = models::build(problem.shape, problem.build);
  nn::initialise(model->params, nn::Precision::kFp64, problem.seed);
  auto optimizer = optim::make_optimizer(problem.optim, model->params);
  nn::State state;
  optimizer->add_state(state);
  History history;
  const auto remember = [&] {
    Numbers weights, moments;
    for (const nn::Param& param : model->params) weights[param.name] = param.master.clone();
    for (const nn::StateTensor& tensor : state.tensors()) moments[tensor.name] = tensor.tensor.clone();
    history.weights.push_back(std::move(weights));
    history.moments.push_back(std::move(moments));
  };
  remember();
  const Split split = split_by_count(chain_names(problem.shape, problem.build), chunks);
  for (int step = 0; step < problem.steps; ++step) {
    nn::zero_grad(model->params);
    const double targets = targets_of(problem, step);
    double loss = 0;
    for (int micro = step * problem.micros; micro < (step + 1) * problem.micros; ++micro) {
      Micro data = make_micro(problem, micro);
      data.context.gradient_scale = 1 / targets;
      nn::Tape tape;
      nn::Tensors tensors = data.inputs;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        Given weights(law(history, chunk, micro, true));
        data.context.weights = &weights;
        const auto [begin, end] = split[static_cast<std::size_t>(chunk)];
        for (std::size_t i = begin; i < end; ++i) {
          tensors = model->layers[i].layer->forward(std::move(tensors), data.context, &tape);
        }
      }
      tensors.assign(1, at::Tensor());
      for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        Given weights(law(history, chunk, micro, false));
        data.context.weights = &weights;
        const auto [begin, end] = split[static_cast<std::size_t>(chunk)];
        for (std::size_t i = end; i > begin; --i) {
          tensors = model->layers[i - 1].layer->backward(std::move(tensors), data.context, tape);
        }
      }
      for (const nn::LossTerm& term : data.context.losses) loss += term.sum;
    }
    outcome.losses.push_back(loss / targets);
    optimizer->step({.learning_rate = problem.optim.learning_rate});
    remember();
  }
  outcome.params = history.weights.back();
  return outcome;
}

Problem async_problem(int micros, int steps) {
  Problem problem = small_problem(Family::kLlama, 5, micros);
  problem.shape.tied = false;
  problem.optim.kind = spec::OptimizerKind::kSgd;
  problem.optim.momentum = 0.9;
  problem.optim.learning_rate = 0.05;
  problem.optim.grad_clip_norm = 0;
  problem.steps = steps;
  return problem;
}

Outcome run_async(const Problem& problem, const char* kind, int ranks) {
  const bool one = schedule::build(kind, {.ranks = ranks, .micros = problem.micros, .steps = 2}).update_every == 1;
  Outcome outcome = train_as_pipeline(
      problem, {.table = table_of(kind, {.ranks = ranks, .micros = one ? 1 : problem.micros, .steps = problem.steps}),
                .ranks = ranks});
  outcome.norms.clear();  // of rank 0's stage alone
  return outcome;
}

/// Updates that chunk c of p has made when micro m comes in, with an update after each micro.
int present(int micro, int chunk, int ranks) { return std::max(0, micro - (ranks - 1 - chunk)); }

TEST(Asynchronous, StashingComputesBothPassesWithTheVersionOfTheForward) {
  for (const int ranks : {2, 3, 4}) {
    const Problem problem = async_problem(1, 9);
    const Law law = [&](const History& history, int chunk, int micro, bool) {
      return history.weights[static_cast<std::size_t>(present(micro, chunk, ranks))];
    };
    expect_same_bits(train_delayed(problem, ranks, law), run_async(problem, "pipedream", ranks));
  }
}

/// Stages on several ranks, which take micros in turn and reduce their gradients for every update.
TEST(Asynchronous, StashingOnReplicatedStagesEqualsOneRankWithTheVersionsThatForwardsMet) {
  for (const std::vector<int>& ranks : {std::vector<int>{2, 1}, {1, 2}, {3, 1}, {2, 2}, {1, 2, 1}}) {
    const schedule::StageRanks stages = schedule::stage_ranks(ranks);
    const Problem problem = async_problem(6, 6);
    const auto table = schedule::add_transfers(schedule::replicated_pipedream(stages, problem.micros, problem.steps));
    const schedule::VersionUses uses = schedule::check(table).uses;
    int late = 0;
    const Law law = [&](const History& history, int chunk, int micro, bool) {
      const int version = uses.forward(chunk, micro);
      late += version < micro / problem.micros;
      return history.weights[static_cast<std::size_t>(version)];
    };
    Outcome outcome = train_as_pipeline(problem, {.table = table, .ranks = static_cast<int>(table.ranks.size())});
    outcome.norms.clear();
    expect_equal(train_delayed(problem, static_cast<int>(ranks.size()), law), outcome, 1e-11);
    EXPECT_GT(late, 0) << "no pass met older weights: this would be 1F1B with a flush";
  }
}

TEST(Asynchronous, VerticalSyncComputesEveryPassWithTheVersionOfTheFirstChunk) {
  for (const int ranks : {2, 3, 4}) {
    const Problem problem = async_problem(1, 9);
    const Law law = [&](const History& history, int, int micro, bool) {
      return history.weights[static_cast<std::size_t>(present(micro, 0, ranks))];
    };
    expect_same_bits(train_delayed(problem, ranks, law), run_async(problem, "pipedream-vsync", ranks));
  }
}

TEST(Asynchronous, StalePassesComputeWithWhateverIsThere) {
  for (const int ranks : {2, 4}) {
    const Problem problem = async_problem(1, 9);
    const Law law = [&](const History& history, int chunk, int micro, bool forward) {
      return history.weights[static_cast<std::size_t>(forward ? present(micro, chunk, ranks) : micro)];
    };
    expect_same_bits(train_delayed(problem, ranks, law), run_async(problem, "stale", ranks));
  }
}

/// W(t+1) = W(t) - rate x gradient at W(t-1), with SGD and with momentum and Adam on that gradient.
TEST(Asynchronous, DoubleBufferingIsOneUpdateLateEverywhere) {
  for (const auto kind : {spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdamw}) {
    for (const double momentum : {0.0, 0.9}) {
      if (kind == spec::OptimizerKind::kAdamw && momentum > 0) continue;  // has its own
      for (const int ranks : {2, 4}) {
        Problem problem = async_problem(4, 5);
        problem.optim.kind = kind;
        problem.optim.momentum = kind == spec::OptimizerKind::kSgd ? momentum : spec::OptimConfig{}.momentum;
        const Law law = [&](const History& history, int, int micro, bool) {
          return history.weights[static_cast<std::size_t>(std::max(0, micro / problem.micros - 1))];
        };
        const Outcome reference = train_delayed(problem, ranks, law),
                      outcome = run_async(problem, "pipedream-2bw", ranks);
        expect_equal(reference, outcome, 1e-12);
      }
    }
  }
}

/// The recurrence itself, in plain arithmetic on the weights: no optimizer, no version store.
TEST(Asynchronous, DoubleBufferingIsTheRecurrence) {
  Problem problem = async_problem(4, 4);
  problem.optim.momentum = 0;
  problem.optim.weight_decay = 0;
  const double rate = problem.optim.learning_rate;
  auto model = models::build(problem.shape);
  nn::initialise(model->params, nn::Precision::kFp64, problem.seed);
  Numbers now, before;
  for (const nn::Param& param : model->params) now[param.name] = before[param.name] = param.master.clone();
  for (int step = 0; step < problem.steps; ++step) {
    nn::zero_grad(model->params);
    for (nn::Param& param : model->params) param.master.copy_(before[param.name]);
    for (int i = 0; i < problem.micros; ++i) {
      Micro micro = make_micro(problem, step * problem.micros + i);
      micro.context.gradient_scale = 1 / targets_of(problem, step);
      nn::Tape tape;
      model->forward(micro.inputs, micro.context, &tape);
      model->backward(micro.context, tape);
    }
    before = now;
    for (const nn::Param& param : model->params) now[param.name] = now[param.name] - rate * param.gradient;
  }
  const Outcome outcome = run_async(problem, "pipedream-2bw", 3);
  for (const auto& [name, tensor] : now)
    EXPECT_TRUE(at::allclose(tensor, outcome.params.at(name), 1e-12, 1e-14)) << name;
}

/// The version that passes of the table aim at, and the one that is present when they do.
struct Aims {
  schedule::VersionUses aimed, present;
};
Aims aims(const char* kind, int ranks, int micros, int steps) {
  const auto table = schedule::build(kind, {.ranks = ranks, .micros = micros, .steps = steps});
  return {schedule::check(table).uses, schedule::present_versions(table)};
}

TEST(Asynchronous, SpecTrainPredictsFromTheVelocity) {
  for (const int ranks : {2, 4}) {
    const Problem problem = async_problem(1, 10);
    const Aims table = aims("spectrain", ranks, 1, problem.steps);
    const Law law = [&](const History& history, int chunk, int micro, bool forward) {
      const int at = forward ? table.present.forward(chunk, micro) : table.present.backward(chunk, micro);
      const int ahead = (forward ? table.aimed.forward(chunk, micro) : table.aimed.backward(chunk, micro)) - at;
      Numbers weights = history.weights[static_cast<std::size_t>(at)];
      for (auto& [name, tensor] : weights) {
        tensor = tensor - ahead * problem.optim.learning_rate *
                              history.moments[static_cast<std::size_t>(at)].at("optim/velocity/" + name);
      }
      return weights;
    };
    expect_equal(train_delayed(problem, ranks, law), run_async(problem, "spectrain", ranks), 1e-11);
  }
}

TEST(Asynchronous, XPipePredictsFromAdamsMomentsOnceForAStep) {
  for (const int ranks : {2, 4}) {
    Problem problem = async_problem(4, 5);
    problem.optim.kind = spec::OptimizerKind::kAdam;
    problem.optim.learning_rate = 1e-3;
    const Aims table = aims("xpipe", ranks, problem.micros, problem.steps);
    const Law law = [&](const History& history, int chunk, int micro, bool forward) {
      const int first = micro / problem.micros * problem.micros;  // who predicts for the others of its step
      const int at = forward ? table.present.forward(chunk, first) : table.present.backward(chunk, first);
      const int ahead = (forward ? table.aimed.forward(chunk, first) : table.aimed.backward(chunk, first)) - at;
      Numbers weights = history.weights[static_cast<std::size_t>(at)];
      if (at == 0) return weights;
      const Numbers& moments = history.moments[static_cast<std::size_t>(at)];
      const spec::OptimConfig& adam = problem.optim;
      for (auto& [name, tensor] : weights) {
        const at::Tensor m = moments.at("optim/m/" + name) / (1 - std::pow(adam.beta1, at));
        const at::Tensor v = moments.at("optim/v/" + name) / (1 - std::pow(adam.beta2, at));
        tensor = tensor - ahead * adam.learning_rate * m / (v.sqrt() + spec::epsilon_of(adam));
      }
      return weights;
    };
    expect_equal(train_delayed(problem, ranks, law), run_async(problem, "xpipe", ranks), 1e-11);
  }
}

/// A parameter whose gradient never changes.
struct Constant {
  nn::Params params;
  std::unique_ptr<optim::Optimizer> optimizer;
  double rate;

  Constant(spec::OptimConfig config, double learning_rate) : rate(learning_rate) {
    params.add("w", {4}, {nn::Init::Kind::kOnes, 0}, false);
    nn::initialise(params, nn::Precision::kFp64, 1);
    config.learning_rate = rate;
    config.weight_decay = 0;
    optimizer = optim::make_optimizer(config, params);
  }
  nn::Param& w() { return params.at("w"); }
  void step() {
    nn::add_gradient(w(), at::tensor({1.0, -2.0, 0.5, 4.0}, at::kDouble));
    optimizer->step({.learning_rate = rate});
  }
};

TEST(WeightPredictor, EqualsTheLaterWeightsExactlyWhereTheVelocityIsConstant) {
  spec::OptimConfig config;
  config.kind = spec::OptimizerKind::kSgd;
  config.momentum = 0.5;
  Constant problem(config, 1.0 / 64);  // powers of two: nothing is rounded
  nn::State state;
  problem.optimizer->add_state(state);
  problem.step();
  state.at("optim/velocity/w").tensor.copy_(at::tensor({2.0, -4.0, 1.0, 8.0}, at::kDouble));  // g / (1 - momentum)
  const auto predictor = predict_by_momentum(*problem.optimizer, [&] { return problem.rate; });
  for (int ahead = 0; ahead <= 5; ++ahead) {
    const at::Tensor predicted = predictor->after(problem.w(), ahead).clone();
    Constant later(config, problem.rate);
    nn::State later_state;
    later.optimizer->add_state(later_state);
    later.step();
    later.w().master.copy_(problem.w().master);
    later_state.at("optim/velocity/w").tensor.copy_(state.at("optim/velocity/w").tensor);
    for (int i = 0; i < ahead; ++i) later.step();
    EXPECT_TRUE(at::equal(predicted, later.w().master)) << ahead << " updates ahead";
  }
}

TEST(WeightPredictor, EqualsTheLaterWeightsWhereAdamsDirectionIsConstant) {
  spec::OptimConfig config;
  config.kind = spec::OptimizerKind::kAdam;
  for (int ahead = 0; ahead <= 5; ++ahead) {
    Constant problem(config, 1e-3);
    const auto predictor = predict_by_adam(*problem.optimizer, [&] { return problem.rate; });
    EXPECT_TRUE(at::equal(predictor->after(problem.w(), ahead), problem.w().master)) << "no step taken yet";
    problem.step();
    const at::Tensor predicted = predictor->after(problem.w(), ahead).clone();
    for (int i = 0; i < ahead; ++i) problem.step();
    EXPECT_LT((predicted - problem.w().master).abs().max().item<double>(), 1e-14) << ahead << " updates ahead";
  }
}

TEST(WeightPredictor, NamesTheOptimizerThatItNeeds) {
  spec::OptimConfig config;
  config.kind = spec::OptimizerKind::kSgd;
  config.momentum = 0;
  Constant problem(config, 1e-3);
  const auto rate = [] { return 1e-3; };
  EXPECT_THROW(predict_by_momentum(*problem.optimizer, rate), ConfigError);
  EXPECT_THROW(predict_by_adam(*problem.optimizer, rate), ConfigError);
}

TEST(WeightVersions, HoldAsManyCopiesAsTheTableSays) {
  const Problem problem = async_problem(4, 4);
  for (const char* kind : {"pipedream", "pipedream-vsync", "pipedream-2bw", "stale"}) {
    SCOPED_TRACE(kind);
    const int ranks = 3;
    const auto table = table_of(kind, {.ranks = ranks, .micros = 4, .steps = 4});
    const schedule::Report report = schedule::check(table);
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      const Split split = split_by_count(chain_names(problem.shape), ranks);
      Stage stage = build_stage({.shape = problem.shape, .table = table, .split = split, .rank = rank.rank()});
      nn::initialise(stage.model->params, nn::Precision::kFp32, 1);
      Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
      const RunReport run = executor.run({.micro = [&](int micro) { return make_micro(problem, micro); },
                                          .update = [&](int) { nn::zero_grad(stage.model->params); }});
      EXPECT_EQ(run.max_weight_copies + 1, report.peak_versions[static_cast<std::size_t>(rank.rank())]);
    });
  }
}

}  // namespace
}  // namespace trireme::pipeline
