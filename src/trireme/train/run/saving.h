// train/run/saving.h -- a run's checkpoints: when they are due, how they are told of, which stay.
//
// All ranks call everything together, but for what says otherwise.
// Depends on: checkpoint, observe, spec.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/observe/run_log.h"
#include "trireme/observe/timeline.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/run/fault_injector.h"

namespace trireme::train {

class Trainer;

class Saving {
 public:
  struct Parts {
    const spec::Recipe& recipe;
    checkpoint::RunFolder folder;
    comm::Group& world;
    const nn::State& state;
    FaultInjector& faults;
    observe::Timeline& timeline;
  };
  explicit Saving(const Parts& parts);

  /// Rank 0's log, from when there is one.
  void log_to(observe::RunLog& log) { log_ = &log; }
  /// The newest step that was saved, or is being saved; -1: none.
  std::int64_t saved_step() const { return saved_step_; }
  /// The run goes on from a checkpoint of this step.
  void came_from(std::int64_t step) { saved_step_ = step; }
  void note_metric(double metric) { metric_ = metric; }

  /// On rank 0: whether time says that one is due. The others are told by the caller.
  bool is_time() const;
  /// Whether steps say so.
  bool is_due(std::int64_t step) const;
  /// Begins one, in the background where the recipe says so.
  void begin(const spec::Position& position);
  /// Before the state changes.
  void before_update() { saver_.wait_copied(); }
  /// Whether this rank has nothing to write any more.
  bool written() const { return saver_.written(); }
  /// After a step: hands on what `all_written`, and tells what has become of it.
  void after_step(bool all_written);
  /// Saves now and waits. IoError on rank 0 when it fails.
  void now(const spec::Position& position);
  /// The same under another name, beside the checkpoints; gives its path.
  std::filesystem::path aside(const spec::Position& position, const std::string& name);
  /// Waits for what is under way.
  void settle();

  /// On rank 0: how many there were and what they cost, for people; empty when there were none.
  std::string summary() const;

  std::vector<nn::HashShare> hashes() { return saver_.hashes(); }
  QueueReading queue() const { return saver_.queue(); }

 private:
  using Clock = std::chrono::steady_clock;
  checkpoint::SaveRequest request(const spec::Position& position) const;
  void tell(const checkpoint::SaveOutcome& outcome);
  double interval_s() const;

  Parts parts_;
  checkpoint::Saver saver_;
  observe::RunLog* log_ = nullptr;
  std::int64_t saved_step_ = -1;
  std::optional<double> metric_;
  Clock::time_point last_ = Clock::now();
  std::optional<double> cost_s_;  // what one costs the run, smoothed
  std::int64_t saves_ = 0;
  double blocked_s_ = 0;  // of all of them
  double failures_s_ = 0;
};

/// Mean time between failures as RUN/events.jsonl tells it: time trained over lives that did not end with "stop". 24 h
/// when there was none.
double observed_failures_s(const std::filesystem::path& run);

/// The trainer then stands where the run's checkpoint of this step was taken. On all ranks together.
void load_step(const checkpoint::RunFolder& folder, std::int64_t step, Trainer& trainer);

}  // namespace trireme::train
