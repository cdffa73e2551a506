// train/run/fault_injector.h -- makes a run's faults happen, each once in the life of its directory.
//
// What has happened is written to RUN/injected.jsonl before it does, so that a run that goes on after its own death
// does not die at the same step again.
// Depends on: base, checkpoint, nn, spec.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <vector>

#include "trireme/checkpoint/saver.h"
#include "trireme/nn/state.h"
#include "trireme/spec/faults.h"

namespace trireme::train {

class FaultInjector {
 public:
  /// ConfigError for a rank that is not there. Faults of other ranks are left to them.
  FaultInjector(std::vector<spec::Fault> faults, int rank, int ranks, std::filesystem::path folder);

  /// Whether any rank has a fault to come or behind it; the same on all ranks.
  bool drill() const { return drill_; }
  /// Before step `step` is computed: bits flip, ranks die or stop.
  void before_step(std::int64_t step, nn::State& state);
  /// When gradients of `step` are there, `computed_s` after it began: the slow are slow.
  void after_compute(std::int64_t step, double computed_s);
  /// For how long ranks were made slow; once.
  double take_slowed_s() { return std::exchange(slowed_s_, 0); }

  // For checkpoint::SaverOptions.
  void on_phase(checkpoint::SavePhase phase, std::int64_t step);
  void before_write();
  void published(const std::filesystem::path& checkpoint, std::int64_t step);

 private:
  struct Armed {
    spec::Fault fault;
    bool done = false;
  };
  /// Whether it is time; from then on it has happened.
  bool happens(Armed& armed, spec::Fault::Kind kind, std::int64_t step,
               spec::Fault::Moment moment = spec::Fault::Moment::kStep);
  void remember(const spec::Fault& fault) const;

  bool drill_;
  std::mutex mutex_;  // phases come from several threads
  std::vector<Armed> faults_;
  std::filesystem::path folder_;
  std::atomic<std::int64_t> saving_step_{-1};
  double slowed_s_ = 0;
};

}  // namespace trireme::train
