#include "trireme/train/servers/downpour_driver.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/checkpoint/texts.h"
#include "trireme/comm/control.h"
#include "trireme/spec/rules.h"
#include "trireme/train/servers/server_nodes.h"
#include "trireme/train/servers/server_rule.h"

namespace trireme::train {
namespace {

using DriverClock = std::chrono::steady_clock;

class DownpourDriver final : public StepDriver {
 public:
  DownpourDriver(TrainState& state, SingleStepEngine&) : state_(state), reducer_(state.world) {
    if (counts_pushes(state.recipe.optim) && !push_filters(state.recipe).keeps_all()) count_pushes_by_key(state);
  }

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
    assigned_ = false;
  }
  std::vector<observe::NamedQueue> queues() const override {
    if (!worker_) return {};
    std::vector<observe::NamedQueue> all{{.name = "pushes", .reading = worker_->queue()},
                                         {.name = "outbox", .reading = worker_->outbox()},
                                         {.name = "mail", .reading = nodes_->mailbox().queue()}};
    if (const auto mail = nodes_->server_mail()) all.push_back({.name = "server", .reading = *mail});
    return all;
  }
  const DownpourJournal& journal() const { return journal_; }

 private:
  /// Of one step, what this rank computed of it.
  struct StepShare {
    std::vector<nn::LossTerm> losses;
    double targets = 0, samples = 0, norms = 0, parts = 0, stale = 0, flops = 0;
  };
  void connect();
  void run_until_rest();
  void note(const Replica::Gradient& gradient, double seconds);
  void take_parts(const std::vector<spec::Position>& positions);
  void come_to_rest();
  void tell(const std::vector<spec::Position>& positions, double seconds);
  std::vector<spec::Position> positions_until_rest() const;

  TrainState& state_;
  nn::LossReducer reducer_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<ServerNodes> nodes_;
  std::unique_ptr<DownpourWorker> worker_;  // goes before its mailbox
  bool assigned_ = false;                   // servers have this state
  std::vector<double> before_;              // weights at the last rest
  std::uint64_t window_ = 0;
  std::vector<StepShare> shares_;
  std::size_t step_ = 0;  // of the window, that is computed
  double computed_s_ = 0;
  std::deque<StepReport> told_later_;
  DownpourJournal journal_;
};

void DownpourDriver::connect() {
  const spec::Recipe& recipe = state_.recipe;
  const spec::DownpourConfig& downpour = recipe.downpour;
  const auto type = recipe.precision.compute == spec::Precision::kFp64 ? ps::ValueType::kF64 : ps::ValueType::kF32;
  if (state_.world.rank() == 0) warn_of_staleness(recipe.optim, static_cast<std::uint64_t>(downpour.tau));
  replica_ = std::make_unique<Replica>(state_, state_.world.size());
  nodes_ = std::make_unique<ServerNodes>(
      state_.world,
      ServerNodesOptions{.servers = downpour.servers,
                         .copies = downpour.copies,
                         .keys = replica_->keys(),
                         .type = type,
                         .rule = [&recipe, this] { return make_server_rule(recipe.optim, replica_->groups()); },
                         .interface = recipe.comm.interface,
                         .deadline = std::chrono::duration_cast<std::chrono::milliseconds>(recipe.comm.deadline)});
  worker_ = std::make_unique<DownpourWorker>(
      nodes_->mailbox(), *replica_,
      DownpourPace{.n_fetch = downpour.n_fetch,
                   .n_push = downpour.n_push,
                   .tau = static_cast<std::uint64_t>(downpour.tau),
                   .type = type,
                   .filters = push_filters(recipe)},
      [this](const Replica::Gradient& gradient, double seconds) { note(gradient, seconds); });
}

/// Rests are where the recipe looks at weights, and where others join the first replica.
std::vector<spec::Position> DownpourDriver::positions_until_rest() const {
  const std::int64_t every = spec::steps_between_drains(state_.recipe, /*asynchronous=*/true),
                     last = last_step(state_.recipe), warm = state_.recipe.downpour.warm_start;
  std::vector<spec::Position> positions;
  spec::Position at = state_.position;
  do {
    positions.push_back(at);
    at = replica_->after(at);
  } while (at.step % every != 0 && at.step < last && at.step != warm);
  return positions;
}

void DownpourDriver::note(const Replica::Gradient& gradient, double seconds) {
  StepShare& share = shares_[step_];
  for (const nn::LossTerm& term : gradient.losses) nn::add_term(share.losses, term);
  share.targets += gradient.counts.targets;
  share.samples += gradient.counts.samples;
  share.norms += gradient.norm;
  share.flops += gradient.flops;
  ++share.parts;
  computed_s_ += seconds;
  if (state_.micro) state_.micro(static_cast<std::int64_t>(step_) + state_.position.step + 1, seconds);
}

void DownpourDriver::take_parts(const std::vector<spec::Position>& positions) {
  comm::ControlPlane& control = state_.world.control();
  const std::string key = fmt::format("trireme/downpour/{}", window_);
  const int parts = state_.world.size();
  const bool alone = state_.position.step < state_.recipe.downpour.warm_start;
  while (!alone || state_.world.rank() == 0) {
    const std::int64_t ticket = control.add(key, 1) - 1;
    step_ = static_cast<std::size_t>(ticket / parts);
    if (step_ >= positions.size()) break;
    worker_->take(positions[step_], static_cast<int>(ticket % parts));
  }
  worker_->settle();
  if (parts > 1) state_.world.barrier().wait();  // all pushes are applied
  if (state_.world.rank() == 0) control.erase(key);
}

void DownpourDriver::come_to_rest() {
  replica_->set_weights(worker_->fetch());
  const int kept = make_server_rule(state_.recipe.optim, {})->state_planes();
  std::vector<std::vector<double>> planes;
  for (int plane = 1; plane <= kept; ++plane) planes.push_back(worker_->fetch(plane));
  if (kept > 0) replica_->set_planes(planes);
  if (state_.world.size() > 1) state_.world.barrier().wait();  // before somebody pushes again
}

void DownpourDriver::run_until_rest() {
  if (!worker_) connect();
  const std::vector<spec::Position> positions = positions_until_rest();
  before_ = replica_->weights();
  if (!assigned_ && state_.world.rank() == 0) worker_->assign(before_, replica_->planes());
  if (!assigned_ && state_.world.size() > 1) state_.world.barrier().wait();
  if (state_.keep_journal && journal_.first_weights.empty()) journal_.first_weights = before_;
  assigned_ = true;
  ++window_;
  shares_.assign(positions.size(), {});
  computed_s_ = 0;
  const auto begin = DriverClock::now();
  take_parts(positions);
  tell(positions, seconds_since(begin));
  come_to_rest();
}

/// What the window's steps were, summed over ranks; a loss that is NaN or Inf ends them all, with the weights of
/// before.
void DownpourDriver::tell(const std::vector<spec::Position>& positions, double seconds) {
  for (const JournalEntry& entry : worker_->journal())
    shares_[static_cast<std::size_t>(entry.at.step - positions.front().step)].stale += static_cast<double>(entry.stale);
  std::vector<JournalEntry> entries = worker_->take_journal();
  if (state_.keep_journal) journal_.entries.insert(journal_.entries.end(), entries.begin(), entries.end());
  constexpr std::size_t kNumbers = 6;
  std::vector<std::vector<nn::LossTerm>> losses;
  std::vector<double> numbers;
  for (StepShare& share : shares_) {
    losses.push_back(std::move(share.losses));
    numbers.insert(numbers.end(), {share.targets, share.samples, share.norms, share.parts, share.stale, share.flops});
  }
  reducer_.reduce(losses, numbers);
  const auto steps = static_cast<double>(positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const double* sums = numbers.data() + i * kNumbers;
    StepReport& report = told_later_.emplace_back();
    report.position = replica_->after(positions[i]);
    const spec::Hyperparameters step =
        spec::hyperparameters_at(state_.recipe.optim, state_.recipe.lr_schedule, state_.recipe.batch, positions[i]);
    report.learning_rate = step.learning_rate;
    report.batch = step.batch;
    tell_losses(report, losses[i], {.targets = sums[0], .samples = sums[1]});
    report.gradient_norm = sums[2] / sums[3];  // the mean of the parts'
    report.staleness = sums[4] / sums[3];
    report.flops = sums[5];
    report.seconds = seconds / steps;
    report.compute_s = computed_s_ / steps;
    report.comm_s = std::max(0.0, seconds - computed_s_) / steps;
  }
  for (const StepReport& report : told_later_) {
    if (std::isfinite(report.loss)) continue;
    const std::int64_t step = report.position.step;
    const std::string what = describe_loss(report);
    told_later_.clear();
    assigned_ = false;
    replica_->set_weights(before_);
    throw NonFiniteError(
        fmt::format("at step {} {}: replicas computed with weights of no single step, so no layer is named", step,
                    what),
        fmt::format("a lower optim.learning_rate often helps: {} pushes lay between a fetch and its push in this step",
                    report.staleness.value_or(0)),
        step);
  }
}

}  // namespace

std::unique_ptr<StepDriver> make_downpour_driver(TrainState& state, SingleStepEngine& engine) {
  return std::make_unique<DownpourDriver>(state, engine);
}

const DownpourJournal* downpour_journal(const StepDriver& driver) {
  const auto* downpour = dynamic_cast<const DownpourDriver*>(&driver);
  return downpour != nullptr ? &downpour->journal() : nullptr;
}

std::vector<std::vector<JournalEntry>> gather_journals(const std::vector<JournalEntry>& mine, comm::Group& world) {
  auto lines = nlohmann::ordered_json::array();
  for (const JournalEntry& entry : mine) {
    lines.push_back({entry.at.step, entry.at.tokens, entry.at.skipped, entry.at.batch, entry.part, entry.fetched,
                     entry.pushes, entry.pushed, entry.flushes, entry.flushed, entry.learning_rate, entry.stale});
  }
  std::vector<std::vector<JournalEntry>> journals;
  for (const std::string& text : checkpoint::all_texts(lines.dump(), world)) {
    std::vector<JournalEntry>& journal = journals.emplace_back();
    for (const auto& line : nlohmann::ordered_json::parse(text)) {
      journal.push_back({.at = {.step = line[0], .tokens = line[1], .skipped = line[2], .batch = line[3]},
                         .part = line[4],
                         .fetched = line[5].get<std::map<int, std::uint64_t>>(),
                         .pushes = line[6],
                         .pushed = line[7].get<std::map<int, std::uint64_t>>(),
                         .flushes = line[8],
                         .flushed = line[9].get<std::map<int, std::uint64_t>>(),
                         .learning_rate = line[10],
                         .stale = line[11]});
    }
  }
  return journals;
}

}  // namespace trireme::train
