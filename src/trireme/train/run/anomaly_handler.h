// train/run/anomaly_handler.h -- what a run does about a step whose numbers are anomalous: it stops, leaves the step
// out, or goes back and passes over the data.
//
// All ranks call everything together. Which numbers are anomalous: health.h, trainer.h.
// Depends on: checkpoint, health, run_writer, saving, trainer.
#pragma once

#include <cstdint>
#include <memory>

#include "trireme/train/run/health.h"
#include "trireme/train/run/run_writer.h"

namespace trireme::train {

class AnomalyHandler {
 public:
  struct Parts {
    const spec::Recipe& recipe;
    checkpoint::RunFolder folder;
    comm::Group& world;
    Trainer& trainer;
    Saving& saving;
    RunWriter& files;
    observe::Timeline& timeline;
  };
  /// From now on every loss is judged, where the recipe asks for it; before a checkpoint is loaded, which knows the
  /// losses before. The recipe's schedule can leave a step out (spec/rules.h).
  explicit AnomalyHandler(const Parts& parts);

  enum class Course : std::uint8_t {
    kPassed,   ///< the step is over and its update was left out; it is still to be recorded
    kRewound,  ///< the run stands at an older step
  };
  /// Of step `step`, while `error` is being handled; throws it on where the recipe, or what is left to do, says stop.
  Course handle(spec::AnomalyPolicy policy, Error& error, std::int64_t step);

 private:
  bool judge(double loss);
  void rewind(Error& error, std::int64_t step);
  void count_skip(const Error& error);
  [[noreturn]] void stop_for(Error& error, std::int64_t step);

  Parts parts_;
  std::unique_ptr<LossWatch> watch_;
  std::int64_t skips_ = 0;
};

}  // namespace trireme::train
