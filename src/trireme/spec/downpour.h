// spec/downpour.h -- training without barriers on parameter servers: [downpour], read where train.mode = "downpour".
//
//   [train]              [downpour]
//   mode = "downpour"    servers = 2
//                        n_push = 4
//
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

/// [downpour]: every data-parallel rank is a replica of Downpour SGD (Dean et al. 2012), some are servers as well.
struct DownpourConfig {
  int servers = 1;              ///< the first ranks
  int copies = 1;               ///< servers that have each range of keys
  int n_fetch = 1, n_push = 1;  ///< parts of a step between two fetches, two pushes
  int tau = 0;                  ///< pushes of a replica that may be on their way when it begins its next part
  std::int64_t warm_start = 0;  ///< steps that the first replica takes alone
  bool operator==(const DownpourConfig&) const = default;
};
void describe(config::Section<DownpourConfig>& section);
std::vector<config::Problem> find_problems(const DownpourConfig& downpour);

}  // namespace trireme::spec
