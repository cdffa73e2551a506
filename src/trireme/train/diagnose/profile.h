// train/diagnose/profile.h -- where a step's time goes on a GPU: a trace of some steps for Perfetto, and a table beside
// limits.
//
// Every kernel and copy comes from the GPU's own record (CUPTI, through the tensor library's profiler). The limit of a
// kind of kernel is what it must compute at the rate of a large GEMM, or move at the rate of a plain copy, both
// measured when the profile ends.
// Depends on: models, spec.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/spec/model_shape.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {

/// What the profiled steps were, on this rank.
struct ProfiledSteps {
  std::int64_t steps = 0;
  double tokens = 0;                 ///< of each step
  std::int64_t sequence = 0;         ///< tokens of a row
  double seconds = 0;                ///< of all of them, by the clock
  std::int64_t parameter_bytes = 0;  ///< read and written by an update, all streams
};

/// A kernel, or several of one kind.
struct KernelTime {
  std::string name, kind;
  std::int64_t calls = 0;
  double seconds = 0;
};

class StepProfile {
 public:
  explicit StepProfile(c10::Device device) : device_(device) {}
  /// Begins to record on this thread.
  void start();
  /// Ends it, writes the trace, and gives the table for people.
  std::string stop(const ProfiledSteps& steps, const spec::ModelShape& shape, const std::filesystem::path& trace);

 private:
  c10::Device device_;
};

/// "GEMMs" of "nvjet_sm90_..." and so on: what a kernel is for, by its name.
std::string kind_of_kernel(const std::string& name);
/// Without namespaces and template arguments.
std::string short_kernel_name(const std::string& name);

/// Which steps of a run are profiled: a few, once the first are over, on rank 0.
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
