// pipeline/executor.h -- one rank of a pipeline executes its list of a schedule, on real layers.
//
//   Executor executor({.table = table, .stage = stage, .pipeline = pipeline, .replicas = &replicas});
//   const RunReport report = executor.run({
//       .micro = [&](int micro) { return ...; },                 // inputs and context of each micro
//       .update = [&](int step) { optim::update(*optimizer, {.learning_rate = rate, .across = &executor.across()});
//       }});
//
// A synchronous table holds one step (or several: schedule::repeat) and run() is one; an asynchronous one holds all
// steps until the pipeline is emptied. Every rank of the pipeline runs at once, with the same table.
// Depends on: base, schedule, comm, device, nn, optim.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/pipeline/interleaved.h"
#include "trireme/pipeline/portals.h"
#include "trireme/pipeline/reduction.h"
#include "trireme/pipeline/transfers.h"
#include "trireme/pipeline/waves.h"
#include "trireme/schedule/timeline.h"

namespace trireme::pipeline {

struct ExecutorParts {
  const schedule::Schedule& table;                  ///< complete: with updates and transfers (schedule::complete)
  Stage& stage;                                     ///< with memory for its parameters
  comm::Group& pipeline;                            ///< its rank r executes list r
  parallel::DataParallel* data_parallel = nullptr;  ///< how ranks with the same stage in other pipelines agree
  WeightPredictor* predictor = nullptr;             ///< where the table predicts weights
  WaveWeights* waves = nullptr;  ///< where virtual workers push and pull waves; null: tables of waves are just executed
  comm::Group* scatter = nullptr;   ///< ranks with the same boundary tensors, each of which sends a part (transfers.h)
  ScaleVersions* scales = nullptr;  ///< delayed FP8 scales of steps that overlap
  QueueMeter* receives = nullptr;   ///< what comes from other stages (transfers.h)
  QueueMeter* activations = nullptr;  ///< what is kept from forward to backward (passes.h)
};

/// A ConfigError where a parameter is in several stages, each of which would compute with other updates of it.
void require_own_updates(const std::string& schedule, std::span<const ParamHolders> param_holders);

struct ExecutorCall {
  MicroSource micro;
  /// The optimizer step: gradients are summed over all who hold them. `step` counts within the table.
  std::function<void(int step)> update;
  /// Where both are given, `update` only supposes that it is right (optimistic.h). `stands` is asked when something
  /// first depends on it, `redo` called where it was wrong; then the forwards of the next step run again.
  std::function<bool()> validated = {};
  std::function<void()> redo = {};
  bool keep_spans = false;
};

/// One instruction as it ran.
struct ExecutedInstruction {
  schedule::Instruction instruction;
  std::chrono::nanoseconds start, end;  ///< since run() began
};

struct RunReport {
  std::vector<PassSums> steps;             ///< by step of the table, over all ranks of the pipeline (not of replicas)
  std::vector<ExecutedInstruction> spans;  ///< of this rank; where asked for
  std::chrono::steady_clock::time_point began;
  int max_weight_copies = 0;           ///< of weights on this rank at once, the present ones not counted
  std::int64_t max_version_bytes = 0;  ///< likewise
  std::int64_t max_delayed_bytes = 0;  ///< gradients of what stages share, summed for later updates
};

class Executor {
 public:
  /// Checks the table against the stage and, where it updates weights between micros, the model against what such
  /// schedules can do: ConfigErrors. Called on all ranks of the pipeline together. All parts are borrowed.
  explicit Executor(const ExecutorParts& parts);

  /// Executes the list once. An Error that passes gains rank, instruction and micro.
  RunReport run(const ExecutorCall& run);
  /// For optim::update: gradient norms over all stages.
  const optim::AcrossRanks& across() {
    return reduction_.across(data_parallel_ != nullptr ? data_parallel_->across() : nullptr);
  }
  GradientReduction& reduction() { return reduction_; }
  /// To neighbouring stages so far, by this rank.
  std::int64_t sent_bytes() const { return transfers_.sent_bytes(); }
  const schedule::Schedule& table() const { return table_; }

 private:
  void execute(const schedule::Instruction& instruction, std::size_t position, const ExecutorCall& run);
  void forward(int chunk, int micro);
  void backward(int chunk, int micro, bool weights);
  void execute_in_context(const schedule::Instruction& instruction, std::size_t position, const ExecutorCall& run);
  std::size_t settle(std::size_t position, const ExecutorCall& run);
  void add_up(std::vector<PassSums>& steps);

  const schedule::Schedule table_;
  comm::Group& pipeline_;
  Stage& stage_;
  parallel::DataParallel* data_parallel_;
  WaveWeights* waves_;
  std::vector<bool> before_forward_;  // by position, for version instructions: the next pass is a forward
  WeightVersions versions_;
  Passes passes_;
  Transfers transfers_;
  Portals portals_;
  InterleavedPasses interleaved_;
  GradientReduction reduction_;
  nn::LossReducer loss_reducer_;
  std::vector<SpeculationWindow> windows_;  // where updates are settled after the fact
  int present_ = 0;                         // updates made in this run
  int settled_ = 0;                         // of them, those that stand
  bool again_ = false;                      // the window is executed a second time
};

/// The last executions of a table by all ranks of a pipeline, as schedule/timeline.h knows them.
class TimelineRecorder {
 public:
  /// Keeps so many; the table is borrowed.
  explicit TimelineRecorder(const schedule::Schedule& table, std::size_t most = 8) : table_(table), most_(most) {}
  /// A run with keep_spans that went back nowhere.
  void add(const RunReport& report);
  std::size_t size() const { return executions_.size(); }
  /// The executions of all ranks, oldest first, on rank 0; empty elsewhere. On all ranks of the pipeline together,
  /// which share a clock: on several machines lanes of different machines are shifted by what their clocks differ.
  std::vector<schedule::Timeline> gather(comm::Group& pipeline) const;

 private:
  const schedule::Schedule& table_;
  std::size_t most_;
  std::deque<std::vector<double>> executions_;  // begin and end of each instruction, by the machine's clock
};

}  // namespace trireme::pipeline
