#include "trireme/nn/recompute_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/units.h"

namespace trireme::nn {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Least time to run again for blocks [i, j) when `memory` units are free, by (i, j, memory).
///
/// The first part is block i, which saves, or a segment [i, k) that runs again when everything behind it is gone: then
/// all of the memory is its own. A segment that is all of [i, j) would run again at once: no plan is better for it.
class BudgetPlanner {
 public:
  BudgetPlanner(std::span<const BlockCost> blocks, double unit, int units)
      : count_(blocks.size()), units_(units), forward_(blocks.size() + 1, 0) {
    for (std::size_t i = 0; i < count_; ++i) {
      const auto counted = [&](double bytes) {
        return static_cast<int>(std::ceil(std::min(bytes / unit, 1e9) - 1e-9));
      };
      saved_.push_back(counted(blocks[i].saved));
      input_.push_back(counted(blocks[i].input));
      forward_[i + 1] = forward_[i] + blocks[i].forward;
      alike_ = alike_ && blocks[i] == blocks[0];
    }
    best_.resize((alike_ ? 1 : count_ + 1) * (count_ + 1) * (static_cast<std::size_t>(units) + 1));
    // Of blocks that are all alike only the length of a stretch counts.
    for (std::size_t i = alike_ ? 1 : count_ + 1; i-- > 0;) {
      for (std::size_t j = i; j <= count_; ++j) {
        for (int memory = 0; memory <= units; ++memory) at(i, j, memory) = first_part(i, j, memory);
      }
    }
  }

  double time() const { return best(0, count_, units_).time; }
  RecomputePlan plan() const { return plan(0, count_, units_); }

 private:
  struct Best {
    double time = 0;
    std::size_t length = 0;  // of the first part
    bool segment = false;    // or a block that saves
  };
  std::size_t cell(std::size_t i, std::size_t j, int memory) const {
    const std::size_t row = alike_ ? j - i : i * (count_ + 1) + j;
    return row * (static_cast<std::size_t>(units_) + 1) + static_cast<std::size_t>(memory);
  }
  Best& at(std::size_t i, std::size_t j, int memory) { return best_[cell(i, j, memory)]; }
  const Best& best(std::size_t i, std::size_t j, int memory) const { return best_[cell(i, j, memory)]; }

  Best first_part(std::size_t i, std::size_t j, int memory) const {
    if (i == j) return {};
    Best found{kInfinite, 1, false};
    if (saved_[i] <= memory) found.time = best(i + 1, j, memory - saved_[i]).time;
    if (input_[i] > memory) return found;
    const int rest = memory - input_[i];
    for (std::size_t k = i + 1; k < j; ++k) {
      const double time = forward_[k] - forward_[i] + best(i, k, memory).time + best(k, j, rest).time;
      if (time < found.time) found = {time, k - i, true};
    }
    return found;
  }

  RecomputePlan plan(std::size_t i, std::size_t j, int memory) const {
    RecomputePlan parts;
    while (i < j) {
      const Best& first = best(i, j, memory);
      const std::size_t k = i + first.length;
      RecomputePart& part =
          parts.emplace_back(RecomputePart{.begin = static_cast<std::int64_t>(i), .end = static_cast<std::int64_t>(k)});
      if (first.segment) part.inside = plan(i, k, memory);
      memory -= first.segment ? input_[i] : saved_[i];
      i = k;
    }
    return parts;
  }

  std::size_t count_;
  int units_;
  bool alike_ = true;
  std::vector<int> saved_, input_;  // in units
  std::vector<double> forward_;     // of the first so many blocks
  std::vector<Best> best_;
};

RecomputePlan halves(std::int64_t begin, std::int64_t end) {
  RecomputePlan parts;
  while (end - begin > 1) {
    const std::int64_t middle = begin + (end - begin) / 2;
    parts.push_back({.begin = begin, .end = middle, .inside = halves(begin, middle)});
    begin = middle;
  }
  parts.push_back({.begin = begin, .end = end});
  return parts;
}

}  // namespace

double peak_bytes(const RecomputePlan& plan, std::span<const BlockCost> blocks) {
  double before = 0, peak = 0;  // saved by the parts so far
  for (const RecomputePart& part : plan) {
    const BlockCost& first = blocks[static_cast<std::size_t>(part.begin)];
    if (part.recomputed()) peak = std::max(peak, before + peak_bytes(part.inside, blocks));
    before += part.recomputed() ? first.input : first.saved;
  }
  return std::max(peak, before);
}

double recomputed_time(const RecomputePlan& plan, std::span<const BlockCost> blocks) {
  double time = 0;
  for (const RecomputePart& part : plan) {
    if (!part.recomputed()) continue;
    for (std::int64_t block = part.begin; block < part.end; ++block)
      time += blocks[static_cast<std::size_t>(block)].forward;
    time += recomputed_time(part.inside, blocks);
  }
  return time;
}

RecomputePlan recursive_plan(std::int64_t blocks) { return blocks > 0 ? halves(0, blocks) : RecomputePlan{}; }

RecomputePlan plan_within(std::span<const BlockCost> blocks, double budget, int units) {
  TRIREME_CHECK(budget > 0 && units > 0, "a budget of {} in {} units is none", budget, units);
  const BudgetPlanner planner(blocks, budget / units, units);
  if (std::isfinite(planner.time())) return planner.plan();
  // Bisection: more memory never hurts.
  double low = budget, high = 0;
  for (const BlockCost& block : blocks) high += block.saved;
  high = std::max(high, budget) * (1 + 2.0 / units);
  while (high - low > 0.01 * high) {
    const double middle = (low + high) / 2;
    (std::isfinite(BudgetPlanner(blocks, middle / units, units).time()) ? high : low) = middle;
  }
  throw ConfigError(fmt::format("{} of saved activations are too little for {} blocks, however much is recomputed",
                                short_bytes(budget), blocks.size()),
                    fmt::format("allow {}", short_bytes(high)));
}

}  // namespace trireme::nn
