// train/diagnose/profile.h -- where a step's time goes on a GPU: a trace of some steps for Perfetto, and a table beside
// limits.
//
// Every kernel and copy comes from the GPU's own record (CUPTI, through the tensor library's profiler). The limit of a
// kind of kernel is what it must compute at the rate of a large GEMM, or move at the rate of a plain copy, both
// measured when the profile ends.
// Depends on: models, spec.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/spec/model_shape.h"

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

}  // namespace trireme::train
