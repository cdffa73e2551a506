// spec/health.h -- what a run does at NaN/Inf, loss spikes, diverged replicas and stragglers: [health].
//
//   [health]
//   non_finite = "rewind"   # the loss or the gradient norm is NaN or Inf
//   spike = "skip"          # a loss far above those before it
//   rewind = 100            # steps to go back
//
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

enum class AnomalyPolicy : std::uint8_t {
  kIgnore,  ///< go on; not for NaN or Inf
  kStop,    ///< end the run, with a checkpoint of the state before the step
  kSkip,    ///< skip the optimizer update and go on with the next batch
  kRewind,  ///< load an earlier checkpoint and go on from there with the data after the bad batch
};
std::span<const Named<AnomalyPolicy>> enum_names(std::type_identity<AnomalyPolicy>);

/// [health]
struct HealthConfig {
  AnomalyPolicy non_finite = AnomalyPolicy::kStop;
  AnomalyPolicy spike = AnomalyPolicy::kIgnore;
  double spike_deviations = 6;
  std::int64_t spike_window = 50;
  std::int64_t rewind = 20;
  std::int64_t max_skips = 10;
  std::int64_t compare_replicas = 0;
  double straggler = 2;
  bool operator==(const HealthConfig&) const = default;
};

void describe(config::Section<HealthConfig>& section);
std::vector<config::Problem> find_problems(const HealthConfig& health);

}  // namespace trireme::spec
