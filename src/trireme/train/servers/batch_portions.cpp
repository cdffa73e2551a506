#include "trireme/train/servers/batch_portions.h"

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/train/engine/feed.h"

namespace trireme::train {

std::int64_t portion_rows(const spec::Recipe& recipe, std::int64_t batch_rows, int ranks) {
  if (recipe.train.micro_batch_size) return *recipe.train.micro_batch_size;
  const std::int64_t each = recipe.train.gradient_accumulation_steps.value_or(std::int64_t{ps::kPortionsPerReplica});
  return std::max<std::int64_t>(1, batch_rows / (each * ranks));
}

namespace {

/// The first step's, as one rank has it all.
StepPlan whole_batch(const TrainState& state, std::int64_t rows) {
  Share share = state.engine.share();
  share.rank = 0;
  share.ranks = 1;
  if (rows > 0) share.micro_batch_size = rows;
  return plan_step(state.recipe, {}, share);
}

}  // namespace

std::int64_t BatchPortions::batch_rows(const TrainState& state) { return whole_batch(state, 0).samples; }

BatchPortions::BatchPortions(TrainState& state, std::int64_t rows, comm::Group* world)
    : state_(state), replica_(state, /*parts=*/1) {
  const StepPlan plan = whole_batch(state, rows);
  portions_ = plan.microbatches;
  const auto ranks = static_cast<std::size_t>(world != nullptr ? world->size() : 1),
             rank = static_cast<std::size_t>(world != nullptr ? world->rank() : 0);
  double targets = 0;
  for (std::size_t i = rank; i < portions_.size(); i += ranks)
    targets += count_targets(state_.samples.read(portions_[i]));
  if (ranks > 1) world->all_reduce(comm::Buffer{&targets, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  if (targets <= 0) throw ConfigError("no token of the batch has a loss", "look at the loss mask of the data");
  counts_ = {.targets = targets, .samples = static_cast<double>(plan.samples)};
}

void BatchPortions::set_weights(std::span<const double> weights) {
  if (std::ranges::equal(weights, weights_)) return;
  weights_.assign(weights.begin(), weights.end());
  replica_.set_weights(weights_);
}

double BatchPortions::compute(int portion, std::span<const double> weights, std::span<double> gradient) {
  const auto begin = std::chrono::steady_clock::now();
  set_weights(weights);
  const Replica::Gradient part =
      replica_.compute_rows(portions_.at(static_cast<std::size_t>(portion)), /*step=*/0, counts_);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += part.values[i];
  done_.flops += part.flops;
  const double seconds = seconds_since(begin);
  done_.seconds += seconds;
  if (state_.micro) state_.micro(state_.position.step + 1, seconds);
  return part.loss();
}

SandblasterTwin run_sandblaster_twin(TrainState& state, std::int64_t rows, std::int64_t steps) {
  BatchPortions batch(state, rows, nullptr);
  const ps::LbfgsOptions options;
  ps::LocalVectors space(batch.keys(), ps::lbfgs_slots(options.history), batch.portions(),
                         [&batch](int portion, std::span<const double> weights, std::span<double> gradient) {
                           return batch.compute(portion, weights, gradient);
                         });
  std::ranges::copy(batch.replica().weights(), space.slot(ps::kWeightSlot).begin());
  ps::Lbfgs lbfgs(options);
  SandblasterTwin twin;
  for (std::int64_t step = 0; step < steps; ++step) {
    lbfgs.iterate(space);
    twin.losses.push_back(lbfgs.progress.loss);
    twin.norms.push_back(lbfgs.progress.gradient_norm);
  }
  const std::span<double> weights = space.slot(ps::kWeightSlot);
  twin.weights.assign(weights.begin(), weights.end());
  return twin;
}

}  // namespace trireme::train
