// train/run/rank_watch.h -- looks after the ranks of a run: slow ones are named, and copies of the state compared.
//
// All ranks call everything together.
// Depends on: health, run_files, stragglers.
#pragma once

#include <cstdint>

#include "trireme/train/run/run_files.h"
#include "trireme/train/run/stragglers.h"

namespace trireme::train {

class RankWatch {
 public:
  /// All are borrowed.
  RankWatch(const spec::HealthConfig& health, comm::Group& world, RunFiles& files, observe::Timeline& timeline)
      : health_(health), world_(world), files_(files), timeline_(timeline), stragglers_(world, health.straggler) {}

  /// After step `step`, for which this rank computed so long.
  void note(std::int64_t step, double compute_s);
  /// Where the recipe asks for it after this step and the trainer is at rest. Throws when copies differ.
  void compare(std::int64_t step, Trainer& trainer);

 private:
  const spec::HealthConfig& health_;
  comm::Group& world_;
  RunFiles& files_;
  observe::Timeline& timeline_;
  Stragglers stragglers_;
  std::int64_t agreed_step_ = 0;
};

}  // namespace trireme::train
