#include "trireme/nn/rotary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::nn {
namespace {

/// Llama 3.1: long waves are stretched by the factor, short ones stay, those between are blended.
double llama3(double inverse, const spec::Rotary& rotary) {
  const double wavelength = 2 * std::numbers::pi / inverse;
  const double original = static_cast<double>(rotary.original_positions);
  if (wavelength < original / rotary.high_frequency) return inverse;
  if (wavelength > original / rotary.low_frequency) return inverse / rotary.factor;
  const double blend = (original / wavelength - rotary.low_frequency) / (rotary.high_frequency - rotary.low_frequency);
  return (1 - blend) * inverse / rotary.factor + blend * inverse;
}

/// YaRN (Peng et al. 2023): the pair that turns `turns` times within the original context.
double yarn_pair(double turns, const spec::Rotary& rotary, double rotated) {
  const double original = static_cast<double>(rotary.original_positions);
  return rotated * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(rotary.base));
}

void yarn(RotaryFrequencies& out, const spec::Rotary& rotary, std::int64_t rotated) {
  const auto width = static_cast<double>(rotated);
  double low = yarn_pair(rotary.beta_fast, rotary, width), high = yarn_pair(rotary.beta_slow, rotary, width);
  if (rotary.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  for (std::size_t pair = 0; pair < out.inverse.size(); ++pair) {
    const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    out.inverse[pair] = out.inverse[pair] / rotary.factor * ramp + out.inverse[pair] * (1 - ramp);
  }
  out.magnitude = spec::yarn_magnitude(rotary);
}

/// NTK-aware scaling (bloc97 2023) for sequences that are longer than the context that was trained: a base so much
/// larger that the slowest pair turns as far at the end of them as it did at the end of that.
double dynamic_base(const spec::Rotary& rotary, std::int64_t rotated, std::int64_t max_seq_len) {
  const double longer = static_cast<double>(max_seq_len) / static_cast<double>(rotary.original_positions);
  if (longer <= 1) return rotary.base;
  const auto width = static_cast<double>(rotated);
  return rotary.base * std::pow(rotary.factor * longer - (rotary.factor - 1), width / (width - 2));
}

template <typename Number>
void fill(RotaryEmbedding::Tables& tables, const RotaryFrequencies& frequencies) {
  auto* cosines = tables.cosines.data_ptr<Number>();
  auto* sines = tables.sines.data_ptr<Number>();
  for (std::int64_t position = 0; position < tables.cosines.size(0); ++position) {
    for (const double inverse : frequencies.inverse) {
      const double angle = static_cast<double>(position) * inverse;
      *cosines++ = static_cast<Number>(std::cos(angle) * frequencies.magnitude);
      *sines++ = static_cast<Number>(std::sin(angle) * frequencies.magnitude);
    }
  }
}

}  // namespace

RotaryFrequencies rotary_frequencies(const spec::Rotary& rotary, std::int64_t rotated, std::int64_t max_seq_len) {
  RotaryFrequencies out;
  const double base =
      rotary.scaling == spec::RotaryScaling::kDynamic ? dynamic_base(rotary, rotated, max_seq_len) : rotary.base;
  for (std::int64_t i = 0; i < rotated; i += 2) {
    const double inverse = 1.0 / std::pow(base, static_cast<double>(i) / static_cast<double>(rotated));
    switch (rotary.scaling) {
      case spec::RotaryScaling::kNone:
      case spec::RotaryScaling::kDynamic:
      case spec::RotaryScaling::kYarn:
        out.inverse.push_back(inverse);
        break;
      case spec::RotaryScaling::kLinear:
        out.inverse.push_back(inverse / rotary.factor);
        break;
      case spec::RotaryScaling::kLlama3:
        out.inverse.push_back(llama3(inverse, rotary));
        break;
    }
  }
  if (rotary.scaling == spec::RotaryScaling::kYarn) yarn(out, rotary, rotated);
  return out;
}

RotaryEmbedding::RotaryEmbedding(const spec::Rotary& rotary, std::int64_t rotated, std::int64_t max_seq_len)
    : frequencies_(rotary_frequencies(rotary, rotated, max_seq_len)) {}

const RotaryEmbedding::Tables& RotaryEmbedding::tables(std::int64_t positions, const at::TensorOptions& options) {
  const auto type = options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  if (tables_.cosines.defined() && tables_.cosines.size(0) >= positions && tables_.cosines.scalar_type() == type &&
      tables_.cosines.device() == options.device()) {
    return tables_;
  }
  // Doubling keeps the work of a growing cache linear.
  const std::int64_t rows = tables_.cosines.defined() ? std::max(positions, 2 * tables_.cosines.size(0)) : positions;
  const auto pairs = static_cast<std::int64_t>(frequencies_.inverse.size());
  tables_.cosines = at::empty({rows, pairs}, type);
  tables_.sines = at::empty({rows, pairs}, type);
  if (type == at::kDouble) {
    fill<double>(tables_, frequencies_);
  } else {
    fill<float>(tables_, frequencies_);
  }
  tables_.cosines = tables_.cosines.to(options.device());
  tables_.sines = tables_.sines.to(options.device());
  return tables_;
}

void RotaryEmbedding::rotate_(at::Tensor& x, const Sequence& sequence, kernels::RotaryPairs pairs, bool inverse) {
  const std::int64_t count =
      sequence.position_count > 0 ? sequence.position_count : at::max(sequence.positions).item<std::int64_t>() + 1;
  const auto& [cosines, sines] = tables(count, x.options());
  kernels::rotary_(x, cosines, sines, sequence.positions, pairs, inverse);
}

}  // namespace trireme::nn
