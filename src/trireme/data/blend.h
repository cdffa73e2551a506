// data/blend.h -- which source the i-th sample comes from, so that every source has its share at all times.
//
// Weights become parts of a whole of at most 65536: exactly, where they are fractions of such a whole (0.3 and 0.7 are
// 3 and 7 of 10), otherwise rounded. A table of one period is made by Tijdeman's rule for the chairman assignment
// problem (1980): after any number of samples no source has more or less than its share by a whole sample.
// Depends on: base.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

class Blend {
 public:
  /// Weights are above zero, their sum at most 65536 times the smallest; at most 1024 of them.
  explicit Blend(std::span<const double> weights);

  struct Place {
    std::size_t source = 0;
    std::int64_t number = 0;  ///< how many samples of that source came before
    bool operator==(const Place&) const = default;
  };
  Place at(std::int64_t sample) const;

  /// A source's parts of the whole, and the whole.
  std::span<const std::int64_t> parts() const { return parts_; }
  std::int64_t whole() const { return static_cast<std::int64_t>(sources_.size()); }
  /// After how many samples a source has given `count`.
  std::int64_t samples_until(std::size_t source, std::int64_t count) const;

 private:
  std::vector<std::int64_t> parts_;
  std::vector<std::uint16_t> sources_;  // [whole]
  std::vector<std::uint32_t> before_;   // [whole]: samples of the same source before, in this period
};

}  // namespace trireme::data
