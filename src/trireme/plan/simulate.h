// plan/simulate.h -- a run as a sequence of events: one step over all ranks with what disturbs it, and weeks of steps
// with failures.
//
// A step replays, for every replica of the model, the very schedule that would run, with the time of each pass
// disturbed by draws for its devices and of each message by draws for its link. Ranks that split matrices or sequences
// wait for each other in every layer, so the slowest of them sets the pace of its stage; replicas wait for each other
// at the end. Replicas that drew nothing are alike and are replayed once. Every draw is a function of the seed and of
// what it is for. Faults can be named as well, in the words of `trireme train --inject`.
// Depends on: step_time, goodput, schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/estimate.h"
#include "trireme/plan/goodput.h"
#include "trireme/schedule/replay.h"
#include "trireme/spec/faults.h"

namespace trireme::plan {

/// What keeps a step from taking as long as it should.
struct Disturbances {
  double stragglers = 0;        ///< share of the devices that are slow
  double straggler_factor = 1;  ///< how much longer they take
  double slow_links = 0;        ///< share of the links between stages that are slow
  double slow_link_factor = 1;
  double network_share = 1;  ///< of its rate, what every link between nodes carries: cost::simulated_share()
  double jitter = 0;         ///< standard deviation of the time of each pass, as a share of it
  std::uint64_t seed = 0;
};

struct SimulatedStep {
  double seconds = 0;             ///< of the step
  double undisturbed = 0;         ///< the same without disturbances
  double tail = 0;                ///< of it, after the last pipeline has ended: replicas, host, optimizer
  std::vector<double> pipelines;  ///< by replica of the model: until its pipeline has ended
  int slowest = 0;                ///< the copy that all others wait for
  std::size_t slow_devices = 0, slow_links = 0;
  std::size_t events = 0;  ///< instructions that were replayed
};

class StepSimulator {
 public:
  StepSimulator(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                const Disturbances& disturbances);

  /// A slow or stalled rank, counted as runs count them: stages of replicas, ranks that split together side by side.
  /// ConfigError for one that is not there, or a fault that does not change how long a step takes.
  void inject(const spec::Fault& fault);

  SimulatedStep run() const;
  /// What the stages of one copy do when.
  schedule::Timing replay(int copy) const;
  /// The step's stages of these copies, as a Chrome trace.
  std::string trace(const SimulatedStep& step, const std::vector<int>& copies) const;

 private:
  struct Draws;
  Draws draws_of(int copy) const;
  schedule::Timing replay(const Draws& draws, bool keep_spans) const;

  ParallelConfig config_;
  Disturbances disturbances_;
  schedule::Schedule table_;
  std::vector<schedule::Times> chunks_;
  StepTime estimate_;
  double link_ = 0;     ///< seconds of a message that runs beside computing
  double message_ = 0;  ///< and of one that nothing hides
  double undisturbed_ = 0;
  std::vector<spec::Fault> faults_;
};

/// Weeks of steps with failures and checkpoints.
struct RunTask {
  double step_seconds = 1;
  double days = 14;
  Goodput reliability;  ///< mtbf, checkpoint and interval
  double restart_seconds = 0;
  std::uint64_t seed = 0;
  std::vector<spec::Fault> faults = {};  ///< that kill, hang or stall a rank, each once; others change nothing here
  double hang_seconds = 600;             ///< until somebody notices one
};

struct SimulatedRun {
  double seconds = 0;
  std::int64_t steps = 0;     ///< that are kept
  std::int64_t failures = 0;  ///< those during restarts among them
  double training = 0, checkpoints = 0, lost = 0, restarts = 0;
  double goodput() const { return seconds > 0 ? training / seconds : 0; }
};

SimulatedRun simulate_run(const RunTask& task);

}  // namespace trireme::plan
