// spec/elastic.h -- a run whose ranks come and go: [elastic], and the layout for another number of ranks.
//
//   [elastic]
//   min_ranks = 4           # with fewer the run waits
//   snapshot_every = 10     # steps
//
// Depends on: base (config), parallel_config.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/spec/parallel_config.h"

namespace trireme::spec {

/// [elastic]: what `trireme elastic` does when ranks die and come.
struct ElasticConfig {
  int min_ranks = 1, max_ranks = 4095;
  std::int64_t snapshot_every = 10;  // steps
  std::chrono::nanoseconds wait = std::chrono::minutes(10);
  std::chrono::nanoseconds heartbeat = std::chrono::seconds(10);
  std::chrono::nanoseconds cooldown = std::chrono::seconds(10), cooldown_max = std::chrono::seconds(100);
  int reset_limit = 10;
  std::string discovery_script;
  std::chrono::nanoseconds discovery_interval = std::chrono::seconds(1);
  bool operator==(const ElasticConfig&) const = default;
};
void describe(config::Section<ElasticConfig>& section);
std::vector<config::Problem> find_problems(const ElasticConfig& elastic);

/// The same layout on `ranks`: as it is where it fits, otherwise with another dp, then smaller cp, pp and tp, in this
/// order: tensor parallelism needs the fastest links and frees most memory. The batch, the data and the mathematics are
/// the recipe's and stay.
ParallelConfig fit_ranks(const ParallelConfig& config, int ranks);

/// The world of an elastic run.
struct FittedWorld {
  int ranks = 0;
  ParallelConfig config;
};
/// The largest world of at most `available` ranks that `allowed` takes. Worlds that keep tp, pp and cp come first,
/// however many ranks they leave over: what a rank holds then stays what the recipe's author knew to fit. Nothing when
/// no number of ranks is allowed.
std::optional<FittedWorld> fit_world(const ParallelConfig& config, int available,
                                     const std::function<bool(const ParallelConfig& config, int ranks)>& allowed);

}  // namespace trireme::spec
