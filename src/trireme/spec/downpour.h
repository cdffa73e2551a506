// spec/downpour.h -- training without barriers on parameter servers: [downpour], read where train.mode = "downpour".
//
//   [train]              [downpour]
//   mode = "downpour"    servers = 2
//                        n_push = 4
//
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/base/text.h"

namespace trireme::spec {

/// How pushed values travel.
enum class PushEncoding : std::uint8_t {
  kNone,
  kZstd,     ///< the same bits come back
  kFixed16,  ///< rounded to a step that is a power of two; weights are pulled as they are
};
std::span<const Named<PushEncoding>> enum_names(std::type_identity<PushEncoding>);

/// [downpour]: every data-parallel rank is a replica of Downpour SGD (Dean et al. 2012), some are servers as well.
struct DownpourConfig {
  int servers = 1;              ///< the first ranks
  int copies = 1;               ///< servers that have each range of keys
  int n_fetch = 1, n_push = 1;  ///< parts of a step between two fetches, two pushes
  int tau = 0;                  ///< pushes of a replica that may be on their way when it begins its next part
  std::int64_t warm_start = 0;  ///< steps that the first replica takes alone
  // Filters of Li et al. 2014, section 5.1.
  PushEncoding encoding = PushEncoding::kNone;
  double significant = 0;  ///< of a gradient: what is not above waits for the next push; 0: nothing does
  double skip = 0;         ///< probability that a block of keys waits for the next push
  bool operator==(const DownpourConfig&) const = default;
};
void describe(config::Section<DownpourConfig>& section);
std::vector<config::Problem> find_problems(const DownpourConfig& downpour);

}  // namespace trireme::spec
