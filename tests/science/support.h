// tests/science/support.h -- samples without a file.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/science/hme.h"

namespace trireme::science {

inline Columns gaussian_columns(std::size_t inputs, std::size_t targets = 1) {
  Columns columns;
  for (std::size_t i = 0; i < inputs; ++i) columns.inputs.push_back(fmt::format("x{}", i));
  for (std::size_t k = 0; k < targets; ++k) columns.targets.push_back(fmt::format("y{}", k));
  columns.means.assign(inputs, 0);
  columns.scales.assign(inputs, 1);
  return columns;
}

inline Columns class_columns(std::size_t inputs, std::size_t classes) {
  Columns columns = gaussian_columns(inputs);
  columns.family = Family::kMultinomial;
  for (std::size_t k = 0; k < classes; ++k) columns.classes.push_back(fmt::format("c{}", k));
  return columns;
}

/// Inputs uniform in [-2, 2], with a constant; targets by `target(row, input)`.
inline Samples draw_samples(std::size_t count, std::size_t inputs, std::size_t outputs, std::uint64_t seed,
                            const std::function<std::vector<double>(std::size_t, std::span<const double>)>& target) {
  Samples samples{.inputs = Matrix(count, inputs + 1), .targets = Matrix(count, outputs)};
  const Random random(seed, "samples");
  for (std::size_t t = 0; t < count; ++t) {
    for (std::size_t i = 0; i < inputs; ++i) samples.inputs(t, i) = 4 * random.uniform(t * inputs + i) - 2;
    samples.inputs(t, inputs) = 1;
    const std::vector<double> values = target(t, samples.inputs.row(t));
    std::ranges::copy(values, samples.targets.row(t).begin());
  }
  return samples;
}

inline std::vector<double> one_hot(std::size_t which, std::size_t of) {
  std::vector<double> out(of);
  out[which] = 1;
  return out;
}

/// Which class a uniform draw falls on.
inline std::size_t class_by(std::span<const double> probabilities, double uniform) {
  std::size_t k = 0;
  while (k + 1 < probabilities.size() && uniform >= probabilities[k]) uniform -= probabilities[k++];
  return k;
}

}  // namespace trireme::science
