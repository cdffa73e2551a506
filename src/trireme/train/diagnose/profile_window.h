// train/diagnose/profile_window.h -- which steps of a run are profiled: a few, once the first are over, on rank 0.
//
// Depends on: profile, trainer.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "trireme/train/diagnose/profile.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {

class ProfileWindow {
 public:
  /// `count` steps; 0: none. The trainer stands before the run's first step of this life and is borrowed; `trace` is
  /// the file that Perfetto reads. ConfigError where there is nothing to profile, or not before step `last`.
  ProfileWindow(std::int64_t count, std::int64_t last, Trainer& trainer, std::filesystem::path trace);

  /// On rank 0 alone, around each step.
  void before_step();
  void after_step();

 private:
  std::int64_t count_;
  std::int64_t first_ = -1;  // -1: it is over
  Trainer& trainer_;
  std::filesystem::path trace_;
  std::unique_ptr<StepProfile> profile_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace trireme::train
