#include "trireme/train/run/rank_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/train/run/health.h"

namespace trireme::train {

StepStatus exchange(const StepStatus& status, comm::Group& world) {
  std::array<std::int64_t, 6> numbers{status.stop,    status.memory, status.save,
                                      status.writing, status.clock,  status.edge};
  if (world.size() > 1) {
    world.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kI64}, comm::Reduce::kMax).wait();
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
}

std::int64_t broadcast_from_root(std::int64_t number, comm::Group& world) {
  if (world.size() > 1) world.broadcast(comm::Buffer{&number, 1, comm::DType::kI64}, 0).wait();
  return number;
}

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

void RankWatch::note(std::int64_t step, double compute_s) {
  for (const SlowRank& slow : stragglers_.note(compute_s)) {
    if (world_.rank() != 0) continue;
    log_warn("rank {} computes {:.1f} times as long as the median rank", slow.rank, slow.times);
    files_.event("straggler", {{"step", step}, {"rank", slow.rank}, {"times", slow.times}});
    timeline_.tell("straggler", {{"step", step}, {"rank", slow.rank}, {"times", slow.times}});
  }
}

void RankWatch::compare(std::int64_t step, Trainer& trainer) {
  const std::int64_t every = health_.compare_replicas;
  if (every <= 0 || step % every != 0 || !trainer.at_rest()) return;
  const auto odd = compare_copies(trainer.state(), world_);
  if (odd.empty()) {
    agreed_step_ = step;
    return;
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min<std::size_t>(odd.size(), 3); ++i) names.push_back(to_text(odd[i]));
  const Error error(
      fmt::format("after step {} copies of the state are no longer the same: {}{}", step, fmt::join(names, "; "),
                  odd.size() > 3 ? fmt::format("; and {} more", odd.size() - 3) : std::string()),
      fmt::format("memory or a processor has failed silently since step {}: look at that machine, remove "
                  "checkpoints of later steps and resume",
                  agreed_step_));
  files_.event("copies_differ", {{"step", step}, {"why", error.message()}, {"agreed", agreed_step_}});
  timeline_.tell("copies_differ", {{"step", step}});
  throw error;
}

}  // namespace trireme::train
