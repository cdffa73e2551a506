// train.mode = "sandblaster": L-BFGS on parameter shards (Dean et al. 2012), an iteration a step.
//
// Rank 0 has the coordinator on a thread, and every rank a shard, and computes portions of the batch. The vectors of
// L-BFGS never leave their shards, and lie in the run's state, so that a checkpoint has each part from where it is.
// From one rest to the next the coordinator goes on by itself; at a rest every rank reads the weights.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/spec/rules.h"
#include "trireme/spec/server_updates.h"
#include "trireme/train/engine/step_driver.h"
#include "trireme/train/servers/batch_portions.h"
#include "trireme/train/servers/rank_mailboxes.h"
#include "trireme/train/servers/sandblaster_driver.h"

namespace trireme::train {
namespace {

const ps::LbfgsOptions kOptions;  // ten pairs, as in the paper
static_assert(ps::lbfgs_slots(ps::LbfgsOptions().history) == spec::kSandblasterVectors &&
              ps::kPortionsPerReplica == spec::kSandblasterPortions);  // which trireme check prices

class SandblasterDriver final : public StepDriver {
 public:
  SandblasterDriver(TrainState& state, SingleStepEngine&)
      : state_(state),
        batch_(state, portion_rows(state.recipe, BatchPortions::batch_rows(state), state.world.size()), &state.world),
        shards_(ps::even_shards(batch_.keys(), state.world.size())),
        lbfgs_(kOptions) {
    place_shard();
    state_.registry.add_value(
        "lbfgs/progress", [this] { return write_progress(lbfgs_.progress); },
        [this](const nlohmann::ordered_json& value) { lbfgs_.progress = read_progress(value); });
  }
  ~SandblasterDriver() override { end_threads(); }

  StepReport next() override {
    if (told_later_.empty()) run_until_rest();
    StepReport report = std::move(told_later_.front());
    told_later_.pop_front();
    state_.position = report.position;
    return report;
  }
  bool at_rest() const override { return told_later_.empty(); }
  bool looks_before_update() const override { return false; }
  void restart() override {
    told_later_.clear();
    coordinator_.reset();
    batch_.forget_weights();
  }
  std::vector<observe::NamedQueue> queues() const override {
    std::vector<observe::NamedQueue> all;
    if (mailbox_) all.push_back({.name = "mail", .reading = mailbox_->queue()});
    if (shard_mailbox_) all.push_back({.name = "server", .reading = shard_mailbox_->queue()});
    if (coordinator_mailbox_) all.push_back({.name = "coordinator", .reading = coordinator_mailbox_->queue()});
    return all;
  }

 private:
  /// What the coordinator tells of an iteration.
  struct Iteration {
    double loss = 0, norm = 0, seconds = 0, evaluations = 0, moved = 0;
  };
  void place_shard();
  void connect();
  std::vector<spec::Position> positions_until_rest() const;
  void run_until_rest();
  std::vector<Iteration> coordinate(std::size_t steps);
  void compute_beside(const std::function<void()>& coordinator);
  void share(std::vector<Iteration>& iterations);
  void read_weights();
  void tell(const std::vector<spec::Position>& positions, const std::vector<Iteration>& iterations);
  void end_threads();
  static nlohmann::ordered_json write_progress(const ps::Lbfgs::Progress& progress);
  static ps::Lbfgs::Progress read_progress(const nlohmann::ordered_json& value);

  TrainState& state_;
  BatchPortions batch_;
  const ps::Shards shards_;
  ps::Lbfgs lbfgs_;                // rank 0 iterates; at rests all ranks know its progress
  std::vector<at::Tensor> slots_;  // of this rank's shard
  std::unique_ptr<ps::LocalVectors> shard_;
  std::unique_ptr<RankMailboxes> mailboxes_;
  std::unique_ptr<comm::Mailbox> mailbox_, coordinator_mailbox_;
  std::shared_ptr<comm::Mailbox> shard_mailbox_;             // with the thread that serves
  std::unique_ptr<ps::SandblasterCoordinator> coordinator_;  // on rank 0
  std::deque<StepReport> told_later_;
};

/// Slots of this rank's keys: as ZeRO's, parts of one tensor along dp.
void SandblasterDriver::place_shard() {
  const auto keys = static_cast<layout::Index>(batch_.keys());
  const std::vector<ps::Segment>& mine = shards_[static_cast<std::size_t>(state_.world.rank())];
  const auto begin = mine.empty() ? keys : static_cast<layout::Index>(mine.front().begin),
             end = mine.empty() ? keys : static_cast<layout::Index>(mine.front().end);
  std::vector<std::span<double>> spans;
  for (int slot = 0; slot < ps::lbfgs_slots(kOptions.history); ++slot) {
    const at::Tensor& tensor = slots_.emplace_back(at::zeros({end - begin}, at::kDouble));
    spans.emplace_back(tensor.data_ptr<double>(), static_cast<std::size_t>(end - begin));
    if (ps::is_scratch_slot(slot)) continue;
    layout::Placement placement{.name = fmt::format("lbfgs/{}", slot),
                                .shape = {keys},
                                .pieces = {{.box = {.begin = {0}, .end = {keys}}}},
                                .partition = {}};
    if (state_.world.size() > 1)
      placement.partition = layout::Partition{.begin = begin, .end = end, .axes = {nn::kDataAxis}};
    state_.registry.add(placement.name, tensor, placement);
  }
  shard_ = std::make_unique<ps::LocalVectors>(spans);
  const std::vector<double> weights = batch_.replica().weights();
  std::copy(weights.begin() + begin, weights.begin() + end, spans[ps::kWeightSlot].begin());
}

void SandblasterDriver::connect() {
  const int ranks = state_.world.size(), rank = state_.world.rank();
  mailboxes_ = std::make_unique<RankMailboxes>(
      state_.world, 1 + 2 * ranks, state_.recipe.comm.interface,
      std::chrono::duration_cast<std::chrono::milliseconds>(state_.recipe.comm.deadline));
  mailbox_ = mailboxes_->open(1 + ranks + rank);
  if (rank == 0) coordinator_mailbox_ = mailboxes_->open(0);
  shard_mailbox_ = mailboxes_->start(1 + rank, [this](comm::Mailbox& mailbox) { ps::run_shard(mailbox, *shard_); });
}

void SandblasterDriver::end_threads() {
  if (mailboxes_) mailboxes_->stop();
  coordinator_.reset();
  shard_mailbox_.reset();
  mailbox_.reset();
  coordinator_mailbox_.reset();
  mailboxes_.reset();
}

/// Rests are where the recipe looks at weights.
std::vector<spec::Position> SandblasterDriver::positions_until_rest() const {
  const std::int64_t every = spec::steps_between_drains(state_.recipe, /*asynchronous=*/true),
                     last = last_step(state_.recipe);
  std::vector<spec::Position> positions;
  spec::Position at = state_.position;
  do {
    positions.push_back(at);
    at = batch_.after(at);
  } while (at.step % every != 0 && at.step < last);
  return positions;
}

void SandblasterDriver::run_until_rest() {
  if (!mailboxes_) connect();
  const std::vector<spec::Position> positions = positions_until_rest();
  std::vector<Iteration> iterations(positions.size());
  std::function<void()> coordinator;
  if (state_.world.rank() == 0) {
    if (!coordinator_)
      coordinator_ = std::make_unique<ps::SandblasterCoordinator>(*coordinator_mailbox_, shards_, state_.world.size(),
                                                                  batch_.portions(), /*backup=*/true);
    coordinator = [&] { iterations = coordinate(positions.size()); };
  }
  compute_beside(coordinator);
  share(iterations);
  read_weights();
  tell(positions, iterations);
}

std::vector<SandblasterDriver::Iteration> SandblasterDriver::coordinate(std::size_t steps) {
  std::vector<Iteration> iterations;
  for (std::size_t i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const int before = lbfgs_.progress.evaluations;
    const bool moved = lbfgs_.iterate(*coordinator_);
    iterations.push_back({.loss = lbfgs_.progress.loss,
                          .norm = lbfgs_.progress.gradient_norm,
                          .seconds = seconds_since(begin),
                          .evaluations = static_cast<double>(lbfgs_.progress.evaluations - before),
                          .moved = moved ? 1.0 : 0.0});
  }
  coordinator_->release_replicas();
  return iterations;
}

/// This rank's portions, on rank 0 beside the coordinator.
void SandblasterDriver::compute_beside(const std::function<void()>& coordinator) {
  std::thread thread;
  if (coordinator) {
    thread = std::thread([&] {
      try {
        coordinator();
      } catch (const ServingEnds&) {
      } catch (...) {
        mailboxes_->fail(std::current_exception());
      }
    });
  }
  try {
    ps::run_replica(*mailbox_, shards_, batch_.keys(),
                    [this](int portion, std::span<const double> weights, std::span<double> gradient) {
                      return batch_.compute(portion, weights, gradient);
                    });
  } catch (...) {
    mailboxes_->stop();  // the coordinator waits for this rank in vain
    if (thread.joinable()) thread.join();
    throw;
  }
  if (thread.joinable()) thread.join();
}

/// What rank 0 knows, on every rank.
void SandblasterDriver::share(std::vector<Iteration>& iterations) {
  if (state_.world.size() == 1) return;
  std::vector<double> numbers;
  const ps::Lbfgs::Progress& progress = lbfgs_.progress;
  for (const Iteration& each : iterations)
    numbers.insert(numbers.end(), {each.loss, each.norm, each.seconds, each.evaluations, each.moved});
  numbers.insert(numbers.end(), {progress.loss, progress.gradient_norm, static_cast<double>(progress.used),
                                 static_cast<double>(progress.evaluations), progress.begun ? 1.0 : 0.0,
                                 static_cast<double>(progress.pairs.size())});
  for (const ps::Lbfgs::Pair& pair : progress.pairs)
    numbers.insert(numbers.end(), {static_cast<double>(pair.s), static_cast<double>(pair.y), pair.rho});
  numbers.resize(5 * iterations.size() + 6 + 3 * static_cast<std::size_t>(kOptions.history));
  state_.world.broadcast(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, 0).wait();
  const double* at = numbers.data();
  for (Iteration& each : iterations) {
    each = {.loss = at[0], .norm = at[1], .seconds = at[2], .evaluations = at[3], .moved = at[4]};
    at += 5;
  }
  ps::Lbfgs::Progress known{.begun = at[4] != 0,
                            .used = static_cast<int>(at[2]),
                            .loss = at[0],
                            .gradient_norm = at[1],
                            .evaluations = static_cast<int>(at[3])};
  const auto pairs = static_cast<int>(at[5]);
  at += 6;
  for (int i = 0; i < pairs; ++i, at += 3)
    known.pairs.push_back({.s = static_cast<int>(at[0]), .y = static_cast<int>(at[1]), .rho = at[2]});
  lbfgs_.progress = std::move(known);
}

void SandblasterDriver::read_weights() {
  std::vector<double> weights(batch_.keys());
  ps::read_slot(*mailbox_, shards_, ps::kWeightSlot, weights);
  batch_.set_weights(weights);
  if (state_.world.size() > 1) state_.world.barrier().wait();  // before shards change again
}

void SandblasterDriver::tell(const std::vector<spec::Position>& positions, const std::vector<Iteration>& iterations) {
  const BatchPortions::Done done = batch_.take_done();
  double flops = done.flops, evaluations = 0;
  if (state_.world.size() > 1)
    state_.world.all_reduce(comm::Buffer{&flops, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  for (const Iteration& each : iterations) evaluations += each.evaluations;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const Iteration& iteration = iterations[i];
    StepReport& report = told_later_.emplace_back();
    report.position = batch_.after(positions[i]);
    report.batch =
        spec::hyperparameters_at(state_.recipe.optim, state_.recipe.lr_schedule, state_.recipe.batch, positions[i])
            .batch;
    report.loss = iteration.loss;
    report.losses = {{.name = std::string(nn::kMainLoss), .mean = iteration.loss, .weight = 1}};
    report.gradient_norm = iteration.norm;
    report.taken = iteration.moved != 0;
    const double share = evaluations > 0 ? iteration.evaluations / evaluations : 0;
    report.flops = flops * share;
    report.seconds = iteration.seconds;
    report.compute_s = std::min(iteration.seconds, done.seconds * share);
    report.comm_s = iteration.seconds - report.compute_s;
  }
  for (const StepReport& report : told_later_) {
    if (std::isfinite(report.loss)) continue;
    const std::int64_t step = report.position.step;
    const std::string what = describe_loss(report);
    told_later_.clear();
    throw NonFiniteError(fmt::format("at step {} {}, where L-BFGS begins", step, what),
                         "begin with weights of some synchronous steps: model.init_from", step);
  }
}

nlohmann::ordered_json SandblasterDriver::write_progress(const ps::Lbfgs::Progress& progress) {
  auto pairs = nlohmann::ordered_json::array();
  for (const ps::Lbfgs::Pair& pair : progress.pairs) pairs.push_back({pair.s, pair.y, pair.rho});
  return {{"begun", progress.begun},
          {"pairs", pairs},
          {"used", progress.used},
          {"loss", progress.loss},
          {"gradient_norm", progress.gradient_norm},
          {"evaluations", progress.evaluations}};
}

ps::Lbfgs::Progress SandblasterDriver::read_progress(const nlohmann::ordered_json& value) {
  ps::Lbfgs::Progress progress{.begun = value.at("begun").get<bool>(),
                               .used = value.at("used").get<int>(),
                               .loss = value.at("loss").get<double>(),
                               .gradient_norm = value.at("gradient_norm").get<double>(),
                               .evaluations = value.at("evaluations").get<int>()};
  for (const auto& pair : value.at("pairs"))
    progress.pairs.push_back({pair.at(0).get<int>(), pair.at(1).get<int>(), pair.at(2).get<double>()});
  return progress;
}

}  // namespace

std::unique_ptr<StepDriver> make_sandblaster_driver(TrainState& state, SingleStepEngine& engine) {
  return std::make_unique<SandblasterDriver>(state, engine);
}

}  // namespace trireme::train
