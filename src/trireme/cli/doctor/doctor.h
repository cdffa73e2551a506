// cli/doctor/doctor.h -- what `trireme doctor` finds out, as values: checks of what is there, and a test of what it
// does.
//
// Depends on: observe, comm, device/runtime.h.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/device/runtime.h"
#include "trireme/observe/machine.h"

namespace trireme::cli {

struct Finding {
  enum class State : std::uint8_t {
    kFine,
    kNote,     ///< works, could be better
    kMissing,  ///< something optional is not there
    kFatal,    ///< no training without it
  };
  std::string topic;
  State state = State::kFine;
  std::string text;
  std::string remedy{};  // what to do about it
};

/// The library with tensors, or why there is none.
struct LoadedRuntime {
  const device::Runtime* runtime = nullptr;
  std::string path, error, hint;
};
LoadedRuntime load_runtime();

/// Everything that can be said without computing.
std::vector<Finding> check_machine(const observe::Machine& machine, const std::string& run_folder);
std::vector<Finding> check_libraries(const observe::Machine& machine, const LoadedRuntime& runtime);
std::vector<Finding> check_environment();

/// How fast the machine is; nothing where that was not measured.
struct SelfTest {
  int threads = 0;
  double memory_bytes_per_second = 0;
  int ranks = 0;
  std::size_t all_reduce_bytes = 0;
  double all_reduce_seconds = 0;
  bool all_reduce_right = false;
  std::optional<double> gemm_error, fp32_flops, bf16_flops;
  std::string not_stored;  // why the rates of matrices could not be stored for the trainer; empty: they are
  double share = 1;        // of its threads' time that the process really ran while it multiplied
  /// Whether other programs left it alone: only then is the rate of matrices that of the machine.
  bool quiet() const { return share > 0.8; }
};
/// About five seconds. Keeps the matrix rates for the trainer (observe/peak_file.h) if the machine was quiet.
SelfTest test_machine(int threads, const LoadedRuntime& runtime);
std::vector<Finding> check_test(const SelfTest& test);

/// The processors that computing may use: those of the process, or fewer where a container gives less.
int usable_threads(const observe::Machine& machine);

}  // namespace trireme::cli
