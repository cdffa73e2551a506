// parallel/compress/top_k.h -- the k largest of many numbers, by absolute value.
//
// Depends on: base.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// Their places, ascending; of equal ones those that come first. A threshold from a `sample` of the numbers leaves few
/// candidates, among which the choice is exact: one pass over all, a second where the sample misled. NaN counts as
/// larger than everything, so that it is sent and seen.
template <typename T>
std::vector<std::uint32_t> top_k(const T* values, std::int64_t count, std::int64_t k, double sample);

/// What is looked at for a threshold: every stride-th number, of which the one at `place`, from the largest down. Below
/// it no more than about half as many again as wanted lie, and seldom fewer. stride 0: a sample would not pay.
struct SampledPlace {
  std::int64_t stride = 0, place = 0;
};
SampledPlace sampled_place(std::int64_t count, std::int64_t k, double sample);

/// Elements that a step sends of `count`: all but the sparsity, at least one.
std::int64_t kept_elements(std::int64_t count, double sparsity);
/// DGC's warm-up: 75, 93.75, 98.4375, 99.6 % for a quarter of `warmup` steps each, never above `final`.
double warmup_sparsity(double final, std::int64_t step, std::int64_t warmup);

}  // namespace trireme::parallel
