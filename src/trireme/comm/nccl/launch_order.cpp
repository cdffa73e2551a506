#include "trireme/comm/nccl/launch_order.h"

#include <algorithm>
#include <tuple>

#include "trireme/base/error.h"

namespace trireme::comm {

std::uint64_t LaunchOrder::propose(const LaunchId& id) {
  const auto [entry, fresh] = calls_.try_emplace(id, Entry{.stamp = ++clock_, .settled = false});
  TRIREME_CHECK(fresh, "call {} of channel {} is proposed twice", id.number, id.channel);
  return entry->second.stamp;
}

void LaunchOrder::settle(const LaunchId& id, std::uint64_t stamp) {
  Entry& entry = calls_.at(id);
  TRIREME_CHECK(!entry.settled && stamp >= entry.stamp, "call {} of channel {}: stamp {} after the proposal {}",
                id.number, id.channel, stamp, entry.stamp);
  entry = {.stamp = stamp, .settled = true};
  clock_ = std::max(clock_, stamp);
}

bool LaunchOrder::may_launch(const LaunchId& id) const {
  const Entry& mine = calls_.at(id);
  if (!mine.settled) return false;
  // One that is not settled will get its proposal or more.
  return std::ranges::all_of(calls_, [&](const auto& other) {
    return other.first == id || std::tie(mine.stamp, id) < std::tie(other.second.stamp, other.first);
  });
}

void LaunchOrder::leave(const LaunchId& id) { calls_.erase(id); }

}  // namespace trireme::comm
