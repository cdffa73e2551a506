// What SpecTrain promises (Chen et al. 2018, 1809.02839, section 4): weights that are predicted for a pass are closer
// to the weights that its micro will update than those that a pipeline without prediction would take.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/pipeline/support.h"

namespace trireme::pipeline {
namespace {

/// Predicts as the one it wraps, and keeps what it gave for which version.
class Recording final : public WeightPredictor {
 public:
  struct Prediction {
    std::string param;
    int present, ahead;
    at::Tensor predicted, stale;
  };
  explicit Recording(std::unique_ptr<WeightPredictor> predictor) : predictor_(std::move(predictor)) {}
  at::Tensor after(const nn::Param& param, int updates) override {
    at::Tensor predicted = predictor_->after(param, updates);
    if (updates > 0) made.push_back({param.name, present, updates, predicted.clone(), param.master.clone()});
    return predicted;
  }
  std::vector<Prediction> made;
  int present = 0;  ///< updates so far

 private:
  std::unique_ptr<WeightPredictor> predictor_;
};

/// Sums of squared distances from the true later weights, over all predictions of a run by how far they reach.
struct Distances {
  std::map<int, double> predicted, stale;  // by updates ahead
  std::vector<double> losses;
};

Distances train_and_compare(int ranks, int steps) {
  Problem problem = small_problem(spec::Family::kLlama, 5, 1);
  problem.shape.tied = false;
  problem.steps = steps;
  problem.optim = {};
  problem.optim.kind = spec::OptimizerKind::kSgd;
  problem.optim.momentum = 0.9;
  problem.optim.learning_rate = 0.02;
  const auto table = table_of("spectrain", {.ranks = ranks, .micros = 1, .steps = steps});
  Distances distances;
  std::mutex mutex;
  comm::run_ranks(
      ranks,
      [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const Split split = split_by_count(chain_names(problem.shape), ranks);
        Stage stage = build_stage({.shape = problem.shape,
                                   .table = table,
                                   .split = split,
                                   .precision = nn::Precision::kFp64,
                                   .rank = rank.rank()});
        nn::initialise(stage.model->params, nn::Precision::kFp64, problem.seed);
        auto optimizer = optim::make_optimizer(problem.optim, stage.model->params);
        Recording predictor(predict_by_momentum(*optimizer, [&] { return problem.optim.learning_rate; }));
        std::vector<std::map<std::string, at::Tensor>> versions;
        const auto remember = [&] {
          auto& now = versions.emplace_back();
          for (const nn::Param& param : stage.model->params) now[param.name] = param.master.clone();
        };
        remember();
        Executor executor({.table = table, .stage = stage, .pipeline = rank.world(), .predictor = &predictor});
        const RunReport report =
            executor.run({.micro =
                              [&](int micro) {
                                // Four micro-batches again and again: something that can be learned.
                                Micro made = make_micro(problem, micro % 4);
                                made.context.gradient_scale = 1 / made.context.targets.ne(-100).sum().item<double>();
                                return made;
                              },
                          .update =
                              [&](int) {
                                optim::update(*optimizer, {.learning_rate = problem.optim.learning_rate});
                                ++predictor.present;
                                remember();
                              }});
        const std::lock_guard lock(mutex);
        for (const auto& [param, present, ahead, predicted, stale] : predictor.made) {
          const auto target = static_cast<std::size_t>(present + ahead);
          if (target >= versions.size()) continue;  // aimed beyond the last update of the run
          const at::Tensor& truth = versions[target].at(param);
          distances.predicted[ahead] += (predicted - truth).square().sum().item<double>();
          distances.stale[ahead] += (stale - truth).square().sum().item<double>();
        }
        if (rank.rank() != 0) return;
        for (const PassSums& step : report.steps) distances.losses.push_back(nn::sum_of(step.losses));
      },
      quiet());
  return distances;
}

TEST(SpecTrain, PredictsWeightsCloserToTheLaterOnesThanStaleWeightsAre) {
  for (const int ranks : {2, 4}) {
    const Distances distances = train_and_compare(ranks, 120);
    ASSERT_FALSE(distances.predicted.empty());
    // From floor(k/2) on the last rank's backward to N-1 on the first rank's forward.
    EXPECT_EQ(distances.predicted.rbegin()->first, ranks - 1);
    for (const auto& [ahead, squares] : distances.predicted) {
      const double rmse_ratio = std::sqrt(squares / distances.stale.at(ahead));
      EXPECT_LT(rmse_ratio, 0.85) << ahead << " updates ahead, " << ranks << " ranks";
      RecordProperty(fmt::format("rmse_ratio_{}_ranks_{}_ahead", ranks, ahead), std::to_string(rmse_ratio));
    }
    double first = 0, last = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      first += distances.losses[i];
      last += distances.losses[distances.losses.size() - 4 + i];
    }
    EXPECT_LT(last, 0.95 * first) << "nothing was learned: the distances say nothing about training";
  }
}

}  // namespace
}  // namespace trireme::pipeline
