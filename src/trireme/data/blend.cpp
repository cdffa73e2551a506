#include "trireme/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/spec/data.h"

namespace trireme::data {
namespace {

constexpr std::size_t kMostSources = 1024;  // products of the rule below then stay within 63 bits

/// Weights as whole parts of `whole`, when they are that up to rounding of the weights themselves.
bool exact_parts(std::span<const double> shares, std::int64_t whole, std::vector<std::int64_t>& parts) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double part = shares[i] * static_cast<double>(whole), rounded = std::round(part);
    if (rounded < 1 || std::abs(part - rounded) > 1e-9 * static_cast<double>(whole) / 65536) return false;
    parts[i] = static_cast<std::int64_t>(rounded);
  }
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0}) == whole;
}

/// The nearest parts of kMostBlendParts, none of them zero: largest remainders are rounded up.
void nearest_parts(std::span<const double> shares, std::vector<std::int64_t>& parts) {
  std::vector<double> left(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double part = shares[i] * static_cast<double>(spec::kMostBlendParts);
    parts[i] = std::max<std::int64_t>(1, static_cast<std::int64_t>(part));
    left[i] = part - static_cast<double>(parts[i]);
  }
  std::int64_t missing = spec::kMostBlendParts - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  for (; missing > 0; --missing) {
    const auto most = static_cast<std::size_t>(std::ranges::max_element(left) - left.begin());
    ++parts[most];
    left[most] -= 1;
  }
  for (; missing < 0; ++missing) --*std::ranges::max_element(parts);  // tiny shares were rounded up to one part
}

std::vector<std::int64_t> parts_of(std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) share /= total;
  std::vector<std::int64_t> parts(weights.size());
  for (std::int64_t whole = static_cast<std::int64_t>(weights.size()); whole <= spec::kMostBlendParts; ++whole) {
    if (exact_parts(shares, whole, parts)) return parts;
  }
  nearest_parts(shares, parts);
  return parts;
}

}  // namespace

Blend::Blend(std::span<const double> weights) {
  TRIREME_CHECK(!weights.empty(), "a blend of nothing");
  if (weights.size() > kMostSources)
    throw ConfigError(fmt::format("{} sources are to be blended, more than {}", weights.size(), kMostSources),
                      "put files of one kind into one folder and name that");
  parts_ = parts_of(weights);
  const std::int64_t whole = std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0});
  const std::int64_t slack = weights.size() == 1 ? 1 : 2 * static_cast<std::int64_t>(weights.size()) - 2;
  std::vector<std::int64_t> counts(parts_.size());
  for (std::int64_t n = 1; n <= whole; ++n) {
    // A source may be taken once it is owed 1 / slack of a sample; of those the one whose turn must come soonest:
    // before it is owed 1 - 1 / slack more than a sample. All in units of 1 / (whole slack).
    std::size_t best = parts_.size();
    std::int64_t best_room = 0;
    for (std::size_t s = 0; s < parts_.size(); ++s) {
      const std::int64_t owed = slack * (parts_[s] * n - whole * counts[s]);
      if (parts_.size() > 1 && owed < whole) continue;
      const std::int64_t room = whole * slack - whole - owed;
      if (best == parts_.size() || room * parts_[best] < best_room * parts_[s]) best = s, best_room = room;
    }
    TRIREME_CHECK(best < parts_.size(), "no source is owed a sample at {} of {}", n, whole);
    sources_.push_back(static_cast<std::uint16_t>(best));
    before_.push_back(static_cast<std::uint32_t>(counts[best]++));
  }
}

Blend::Place Blend::at(std::int64_t sample) const {
  const std::int64_t period = sample / whole();
  const auto place = static_cast<std::size_t>(sample % whole());
  const std::size_t source = sources_[place];
  return {source, period * parts_[source] + before_[place]};
}

std::int64_t Blend::samples_until(std::size_t source, std::int64_t count) const {
  if (count == 0) return 0;
  const std::int64_t period = (count - 1) / parts_[source];
  const auto before = static_cast<std::uint32_t>((count - 1) % parts_[source]);
  for (std::size_t place = 0; place < sources_.size(); ++place) {
    if (sources_[place] == source && before_[place] == before)
      return period * whole() + static_cast<std::int64_t>(place) + 1;
  }
  TRIREME_CHECK(false, "source {} has no sample {} in a period", source, before);
  return 0;
}

}  // namespace trireme::data
