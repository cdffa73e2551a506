#include "trireme/train/run/stragglers.h"

#include <algorithm>

namespace trireme::train {

std::vector<SlowRank> slow_ranks(const std::vector<double>& seconds, double factor) {
  std::vector<SlowRank> slow;
  if (seconds.size() < 2) return slow;
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2];  // of two, the faster
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    if (median > 0 && seconds[rank] >= factor * median)
      slow.push_back({static_cast<int>(rank), seconds[rank] / median});
  }
  return slow;
}

std::vector<SlowRank> Stragglers::note(double seconds) {
  if (factor_ <= 0 || world_.size() == 1) return {};
  sum_s_ += seconds;
  if (++steps_ < window_) return {};
  std::vector<double> all(static_cast<std::size_t>(world_.size()));
  world_
      .all_gather(comm::ConstBuffer{&sum_s_, 1, comm::DType::kF64},
                  comm::Buffer{all.data(), all.size(), comm::DType::kF64})
      .wait();
  steps_ = 0;
  sum_s_ = 0;
  return slow_ranks(all, factor_);
}

}  // namespace trireme::train
