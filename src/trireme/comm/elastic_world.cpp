#include "trireme/comm/elastic_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace trireme::comm {

std::string_view name_of(WorldPhase phase) {
  constexpr std::string_view kNames[] = {"waiting", "agreeing", "replanning", "moving", "running", "ended"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::vector<int> ElasticWorld::by_age() const {
  std::vector<int> members;
  for (const auto& [member, seat] : seats_) members.push_back(member);
  std::ranges::sort(members, {}, [&](int member) { return seats_.at(member).order; });
  return members;
}

int ElasticWorld::available() const {
  const auto staying = std::ranges::count_if(seats_, [](const auto& entry) { return !entry.second.leaves; });
  return std::min(static_cast<int>(staying), rules_.max_ranks);
}

// Forms the next epoch once nobody is in the last one.
void ElasticWorld::settle() {
  if (phase_ != WorldPhase::kWaiting && phase_ != WorldPhase::kAgreeing) return;
  if (std::ranges::any_of(seats_, [](const auto& entry) { return entry.second.in_epoch; })) return;
  const int ranks = available() > 0 ? rules_.fit(available()) : 0;
  const int least = std::max(rules_.min_ranks, 1);
  if (ranks < least || (epoch_ == 0 && available() < std::min(first_ranks_, rules_.max_ranks))) {
    phase_ = WorldPhase::kWaiting;
    members_.clear();
    return;
  }
  ++epoch_;
  members_ = by_age();
  std::erase_if(members_, [&](int member) { return seats_.at(member).leaves; });
  members_.resize(static_cast<std::size_t>(ranks));
  for (const int member : members_) {
    seats_.at(member).in_epoch = true;
    seats_.at(member).has_moved = false;
  }
  meeting_.clear();
  phase_ = WorldPhase::kReplanning;
}

WorldAnswer ElasticWorld::rests(int member, std::int64_t epoch) {
  if (phase_ == WorldPhase::kEnded) return {.kind = WorldAnswer::Kind::kEnd, .why = why_, .good_end = good_end_};
  if (!seats_.contains(member)) seats_[member] = {.order = orders_++};
  Seat& seat = seats_.at(member);
  if (seat.in_epoch && epoch == epoch_) {  // it was told of this one, and is out of it again
    seat.in_epoch = false;
    phase_ = WorldPhase::kAgreeing;
  }
  if (seat.leaves && !seat.in_epoch) {
    seats_.erase(member);
    settle();
    return {.kind = WorldAnswer::Kind::kEnd, .why = "there is no place for this member any more"};
  }
  settle();
  if (!seat.in_epoch || epoch == epoch_) {
    return {.why = phase_ == WorldPhase::kWaiting
                       ? fmt::format("{} of at least {} ranks are here", available(), rules_.min_ranks)
                       : fmt::format("epoch {} is {}", epoch_, name_of(phase_))};
  }
  // Somebody of the new epoch is gone already: it will never be complete, so nobody needs to go there.
  if (phase_ == WorldPhase::kAgreeing) {
    seat.in_epoch = false;
    settle();
    if (!seat.in_epoch) return {.why = fmt::format("epoch {} is {}", epoch_, name_of(phase_))};
  }
  const auto at = std::ranges::find(members_, member);
  return {.kind = WorldAnswer::Kind::kWorld,
          .epoch = epoch_,
          .rank = static_cast<int>(at - members_.begin()),
          .ranks = static_cast<int>(members_.size()),
          .meeting = meeting_};
}

void ElasticWorld::listens(int member, std::int64_t epoch, const std::string& meeting) {
  if (epoch != epoch_ || phase_ != WorldPhase::kReplanning || members_.front() != member) return;
  meeting_ = meeting;
  phase_ = WorldPhase::kMoving;
}

void ElasticWorld::moved(int member, std::int64_t epoch, std::int64_t step) {
  const auto seat = seats_.find(member);
  if (epoch != epoch_ || phase_ != WorldPhase::kMoving || seat == seats_.end() || !seat->second.in_epoch) return;
  seat->second.has_moved = true;
  if (!std::ranges::all_of(members_, [&](int one) { return seats_.contains(one) && seats_.at(one).has_moved; })) return;
  phase_ = WorldPhase::kRunning;
  resets_ = step > begun_at_ ? 0 : resets_ + 1;
  begun_at_ = step;
  if (rules_.reset_limit > 0 && resets_ >= rules_.reset_limit)
    end(fmt::format("{} epochs in a row began at step {}", resets_ + 1, step), false);
}

void ElasticWorld::lost(int member) {
  const auto seat = seats_.find(member);
  if (seat == seats_.end()) return;
  const bool was_in = seat->second.in_epoch;
  seats_.erase(seat);
  if (phase_ == WorldPhase::kEnded) return;
  if (was_in) phase_ = WorldPhase::kAgreeing;
  settle();
}

bool ElasticWorld::leaves(int member) {
  const auto seat = seats_.find(member);
  return seat != seats_.end() && !std::exchange(seat->second.leaves, true);
}

void ElasticWorld::finished(int member, std::int64_t epoch) {
  if (epoch == epoch_ && std::ranges::find(members_, member) != members_.end() && phase_ != WorldPhase::kEnded)
    end("the run is finished", true);
}

void ElasticWorld::end(const std::string& why, bool good) {
  phase_ = WorldPhase::kEnded;
  why_ = why;
  good_end_ = good;
}

bool ElasticWorld::wants_edge() const {
  if (phase_ == WorldPhase::kAgreeing) return true;
  if (phase_ == WorldPhase::kEnded) return !good_end_;  // whoever still computes is told that it is over
  if (phase_ != WorldPhase::kRunning) return false;
  if (std::ranges::any_of(seats_, [](const auto& entry) { return entry.second.in_epoch && entry.second.leaves; }))
    return true;
  const int ranks = static_cast<int>(members_.size());
  return available() > ranks && rules_.fit(available()) > ranks;
}

std::vector<int> ElasticWorld::awaited() const {
  std::vector<int> awaited;
  if (phase_ != WorldPhase::kAgreeing) return awaited;
  for (const auto& [member, seat] : seats_) {
    if (seat.in_epoch) awaited.push_back(member);
  }
  return awaited;
}

std::string ElasticWorld::to_text() const {
  std::string text = fmt::format("epoch {} {} [{}]{}", epoch_, name_of(phase_), fmt::join(members_, ","),
                                 meeting_.empty() ? "" : " met");
  for (const int member : by_age()) {
    const Seat& seat = seats_.at(member);
    text += fmt::format(" {}{}{}{}", member, seat.in_epoch ? "in" : "", seat.has_moved ? "+" : "",
                        seat.leaves ? " leaves" : "");
  }
  return text;
}

}  // namespace trireme::comm
