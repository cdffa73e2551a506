#include "trireme/parallel/compress/top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"

// Loops over elements: this room is compiled without vectors otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace trireme::parallel {
namespace {

template <typename T>
T magnitude(T value) {
  const T size = std::abs(value);
  return size == size ? size : std::numeric_limits<T>::infinity();
}

template <typename T>
T sampled_threshold(const T* values, std::int64_t count, std::int64_t k, double sample) {
  const auto [stride, place] = sampled_place(count, k, sample);
  if (stride == 0) return T(0);
  std::vector<T> drawn;
  for (std::int64_t i = stride / 2; i < count; i += stride) drawn.push_back(magnitude(values[i]));
  std::nth_element(drawn.begin(), drawn.begin() + place, drawn.end(), std::greater<>());
  return drawn[static_cast<std::size_t>(place)];
}

}  // namespace

SampledPlace sampled_place(std::int64_t count, std::int64_t k, double sample) {
  const auto samples = std::max<std::int64_t>(static_cast<std::int64_t>(sample * static_cast<double>(count)), 64);
  if (samples >= count) return {};
  const std::int64_t stride = count / samples, drawn = (count - stride / 2 + stride - 1) / stride;
  const double expected = static_cast<double>(k) / static_cast<double>(count) * static_cast<double>(drawn);
  const auto place = static_cast<std::int64_t>(std::ceil(expected * 1.25 + 2 * std::sqrt(expected) + 2));
  return place >= drawn ? SampledPlace{} : SampledPlace{stride, place};
}

template <typename T>
std::vector<std::uint32_t> top_k(const T* values, std::int64_t count, std::int64_t k, double sample) {
  TRIREME_CHECK(count < (std::int64_t{1} << 32), "{} numbers have no places of 32 bits", count);
  std::vector<std::uint32_t> places;
  if (k >= count) {
    places.resize(static_cast<std::size_t>(count));
    std::iota(places.begin(), places.end(), 0U);
    return places;
  }
  if (k <= 0) return places;
  for (T threshold = sampled_threshold(values, count, k, sample);; threshold = 0) {
    places.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      if (!(std::abs(values[i]) < threshold)) places.push_back(static_cast<std::uint32_t>(i));
    }
    if (static_cast<std::int64_t>(places.size()) >= k) break;
  }
  const auto larger = [values](std::uint32_t a, std::uint32_t b) {
    const T left = magnitude(values[a]), right = magnitude(values[b]);
    return left != right ? left > right : a < b;
  };
  std::nth_element(places.begin(), places.begin() + (k - 1), places.end(), larger);
  places.resize(static_cast<std::size_t>(k));
  std::ranges::sort(places);
  return places;
}

std::int64_t kept_elements(std::int64_t count, double sparsity) {
  return std::clamp<std::int64_t>(std::llround(static_cast<double>(count) * (1 - sparsity)), 1, count);
}

double warmup_sparsity(double final, std::int64_t step, std::int64_t warmup) {
  if (step >= warmup) return final;
  return std::min(final, 1 - std::pow(0.25, 1.0 + static_cast<double>(4 * step / warmup)));
}

template std::vector<std::uint32_t> top_k(const float*, std::int64_t, std::int64_t, double);
template std::vector<std::uint32_t> top_k(const double*, std::int64_t, std::int64_t, double);

}  // namespace trireme::parallel

#pragma GCC pop_options
