// observe/mfu.h -- which part of the machine's matrix rate a run's steps reach (model FLOPs utilization, PaLM 2022).
//
// Depends on: base, peak_file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trireme/observe/peak_file.h"

namespace trireme::observe {

/// What the ranks of a run compute with, on one of its machines and in all.
struct MfuRun {
  std::string precision = "fp32";  ///< as peak_file.h says it
  int threads = 1;                 ///< of a rank
  int local_ranks = 1;             ///< on this machine
  int ranks = 1;                   ///< on all, which are taken to be alike
};

class Mfu {
 public:
  /// Reads the peak that was kept for as many threads as the machine's ranks have together.
  explicit Mfu(MfuRun run, std::filesystem::path file = peak_path());
  /// Of GPUs: what is stated of one, where anything is, and how many the run has. Nothing raises it.
  Mfu(std::optional<Peak> stated, int gpus) : run_{.ranks = gpus}, peak_(std::move(stated)), stated_(true) {}

  /// Of one machine; nothing when it was never measured.
  const std::optional<Peak>& peak() const { return peak_; }
  /// Of a step of so many operations on all ranks. Never above 1: a step that is faster than the peak shows that the
  /// peak was measured too low. The step's rate takes its place, in the file as well, and a warning says so. (Above 1
  /// are only steps with FP8 GEMMs beside what is stated of 16-bit ones.)
  std::optional<double> of(double flops, double seconds);

 private:
  void raise(double flops);

  MfuRun run_;
  std::filesystem::path file_;
  std::optional<Peak> peak_;
  double kept_flops_ = 0;  // what the file has
  bool warned_ = false;
  bool stated_ = false;
};

}  // namespace trireme::observe
