#include "trireme/train/engine/work_stealing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "trireme/comm/control.h"

namespace trireme::train {

std::int64_t stolen_at_once(std::int64_t left, bool first) {
  const double share = first ? 0.025 : 0.05;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share * static_cast<double>(left)));
}

std::string WorkStealing::key(int rank) const {
  return fmt::format("trireme/stealing/{}/{}/{}", group_.name(), round_, group_.world_rank(rank));
}

std::int64_t WorkStealing::claim(int rank, std::int64_t count) {
  return group_.control().add(key(rank), count) - count + 1;  // beside its first
}

void WorkStealing::begin(const spec::Recipe& recipe, const Fetched& fetched, const Share& share) {
  recipe_ = &recipe;
  fetched_ = &fetched;
  share_ = share;
  ++round_;
  plans_.assign(static_cast<std::size_t>(share.ranks), std::nullopt);
  taken_.clear();
  first_left_ = own_left_ = true;
  stolen_ = 0;
}

void WorkStealing::end() {
  if (rows_.leads) group_.control().erase(key(share_.rank));
}

const StepPlan& WorkStealing::plan_of(int rank) {
  std::optional<StepPlan>& plan = plans_[static_cast<std::size_t>(rank)];
  if (!plan) {
    Share share = share_;
    share.rank = rank;
    plan = plan_step(*recipe_, fetched_->plan.before, share);
  }
  return *plan;
}

/// From the rank with most left; false: none has any.
bool WorkStealing::steal() {
  for (;;) {
    int from = -1;
    std::int64_t most = 0;
    for (int i = 1; i < share_.ranks; ++i) {
      const int rank = (share_.rank + i) % share_.ranks;  // ranks begin at different places, and meet less often
      const auto claimed = group_.control().get(key(rank));
      std::int64_t begun = 0;
      if (claimed) std::from_chars(claimed->data(), claimed->data() + claimed->size(), begun);
      const std::int64_t left = static_cast<std::int64_t>(plan_of(rank).microbatches.size()) - 1 - begun;
      if (left > most) from = rank, most = left;
    }
    if (from < 0) return false;
    const std::int64_t count = stolen_at_once(most, /*first=*/stolen_ == 0), first = claim(from, count);
    const std::int64_t end = std::min(first + count, static_cast<std::int64_t>(plan_of(from).microbatches.size()));
    for (std::int64_t micro = first; micro < end; ++micro) taken_.push_back({from, micro});
    if (first < end) return true;  // else somebody was faster
  }
}

WorkStealing::Taken WorkStealing::choose() {
  const auto own = static_cast<std::int64_t>(fetched_->batches.size());
  if (std::exchange(first_left_, false) && own > 0) return {share_.rank, 0};
  if (own_left_) {
    if (const std::int64_t mine = claim(share_.rank, 1); mine < own) return {share_.rank, mine};
    own_left_ = false;
  }
  if (taken_.empty() && !steal()) return {};
  const Taken taken = taken_.front();
  taken_.pop_front();
  return taken;
}

std::optional<data::Batch> WorkStealing::next() {
  std::array<std::int64_t, 2> numbers{};
  if (rows_.leads) {
    const Taken chosen = choose();
    numbers = {chosen.rank, chosen.micro};
  }
  if (rows_.tell) rows_.tell(numbers);
  const auto [rank, micro] = numbers;
  if (rank < 0) return std::nullopt;
  if (rank == share_.rank) return fetched_->batches[static_cast<std::size_t>(micro)];
  ++stolen_;
  return samples_.read(plan_of(static_cast<int>(rank)).microbatches[static_cast<std::size_t>(micro)]);
}

}  // namespace trireme::train
