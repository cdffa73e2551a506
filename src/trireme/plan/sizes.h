// plan/sizes.h -- which number of devices to take, when that is open too.
//
// Depends on: search.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/plan/search.h"

namespace trireme::plan {

enum class Objective : std::uint8_t {
  kTime,      ///< the fastest step on all devices
  kPerGpu,    ///< most tokens a second for each device; cheapest, where every device costs the same
  kSmallest,  ///< fewest devices that keep a deadline
};
std::span<const Named<Objective>> enum_names(std::type_identity<Objective>);

struct Sized {
  int gpus = 0;
  SearchResult found;
  double tokens_per_second(const Job& job) const;
};

/// Days to see that many tokens.
double days_for(double tokens, double tokens_per_second);

/// What the objective asks for among `gpus` devices and halves of them. `tokens` and `days`: the deadline of
/// kSmallest. Nothing when no size fits or keeps the deadline.
std::optional<Sized> choose_size(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options,
                                 Objective objective, double tokens = 0, double days = 0);

/// The next larger number of devices on which something fits: doubled until it does.
std::optional<Sized> nearest_that_fits(const cost::Hardware& hardware, const Job& job, int gpus,
                                       const SearchOptions& options);

}  // namespace trireme::plan
