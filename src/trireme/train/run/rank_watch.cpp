#include "trireme/train/run/rank_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trireme/train/run/health.h"

namespace trireme::train {

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
