#include "trireme/ps/portions.h"

#include <algorithm>
#include <queue>

#include "trireme/base/error.h"

namespace trireme::ps {

std::optional<int> PortionScheduler::next(int replica) {
  std::size_t chosen = portions_.size();
  if (untouched_ < portions_.size()) {
    chosen = untouched_++;
  } else if (backup_) {
    for (std::size_t i = 0; i < portions_.size(); ++i) {
      const Portion& portion = portions_[i];
      if (portion.done || portion.replicas.contains(replica)) continue;
      // Of those that fewest have, the one that is out for longest.
      if (chosen == portions_.size() || portion.replicas.size() < portions_[chosen].replicas.size() ||
          (portion.replicas.size() == portions_[chosen].replicas.size() && portion.issued < portions_[chosen].issued))
        chosen = i;
    }
    if (chosen < portions_.size()) ++backups_;
  }
  if (chosen == portions_.size()) return std::nullopt;
  portions_[chosen].replicas.insert(replica);
  portions_[chosen].issued = ++issues_;
  return static_cast<int>(chosen);
}

bool PortionScheduler::done(int portion) {
  Portion& at = portions_.at(static_cast<std::size_t>(portion));
  if (at.done) return false;
  at.done = true;
  ++done_;
  return true;
}

double batch_seconds(int portions, const std::vector<double>& seconds, bool backup) {
  PortionScheduler scheduler(portions, backup);
  struct Answer {
    double at;
    int replica, portion;
    bool operator>(const Answer& other) const { return at != other.at ? at > other.at : replica > other.replica; }
  };
  std::priority_queue<Answer, std::vector<Answer>, std::greater<>> answers;
  const auto give = [&](int replica, double now) {
    if (const auto portion = scheduler.next(replica))
      answers.push({now + seconds[static_cast<std::size_t>(replica)], replica, *portion});
  };
  for (int replica = 0; replica < static_cast<int>(seconds.size()); ++replica) give(replica, 0);
  while (!answers.empty()) {
    const Answer answer = answers.top();
    answers.pop();
    scheduler.done(answer.portion);
    if (scheduler.complete()) return answer.at;
    give(answer.replica, answer.at);
  }
  TRIREME_CHECK(portions == 0, "a batch of {} portions does not end", portions);
  return 0;
}

double batch_seconds_in_shares(int portions, const std::vector<double>& seconds) {
  const int replicas = static_cast<int>(seconds.size());
  double longest = 0;
  for (int replica = 0; replica < replicas; ++replica) {
    const int mine = portions / replicas + (replica < portions % replicas ? 1 : 0);
    longest = std::max(longest, mine * seconds[static_cast<std::size_t>(replica)]);
  }
  return longest;
}

}  // namespace trireme::ps
