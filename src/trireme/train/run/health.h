// train/run/health.h -- looks at a run's numbers: is this loss a spike, are the copies of the state still the same?
//
// Depends on: base, comm, layout, nn, spec.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/group.h"
#include "trireme/nn/state.h"
#include "trireme/spec/health.h"

namespace trireme::train {

/// A loss far above those before it, where the recipe stops or rewinds for that. The weights are as before the step.
class LossSpike : public Error {
 public:
  using Error::Error;
  const char* kind() const noexcept override { return "loss spike"; }
};

/// The losses of the last steps, and whether the next belongs to them. The same on every rank.
class LossWatch {
 public:
  explicit LossWatch(const spec::HealthConfig& config) : config_(config) {}
  /// "health/losses": a resumed run judges as it would have.
  void add_state(nn::State& state);

  /// Empty: nothing is wrong with it, and it counts from now on. Otherwise why it is a spike.
  std::string judge(double loss);

 private:
  const spec::HealthConfig& config_;
  std::deque<double> losses_;
};

/// A tensor whose copies differ.
struct OddCopy {
  std::string tensor;
  std::vector<int> odd;   ///< ranks that differ from most; all of them when there is no majority
  std::vector<int> most;  ///< ranks that agree; empty when there is no majority
};
std::string to_text(const OddCopy& copy);

/// Compares what ranks hold of the same stretches of tensors, by hashes. The same on every rank; on all together.
std::vector<OddCopy> compare_copies(const nn::State& state, comm::Group& world);

}  // namespace trireme::train
