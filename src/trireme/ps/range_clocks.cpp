#include "trireme/ps/range_clocks.h"

#include <algorithm>

namespace trireme::ps {

std::size_t RangeClocks::clocks() const {
  std::size_t count = 0;
  for (const auto& [begin, entry] : ranges_) count += entry.tasks.size();
  return count;
}

void RangeClocks::split_at(std::uint64_t key) {
  auto after = ranges_.upper_bound(key);
  if (after == ranges_.begin()) return;
  auto& [begin, entry] = *std::prev(after);
  if (begin == key || entry.end <= key) return;
  ranges_.emplace_hint(after, key, Entry{entry.end, entry.tasks});
  entry.end = key;
}

std::vector<RangeClock> RangeClocks::read(const Segment& keys) const {
  std::vector<RangeClock> found;
  auto at = ranges_.upper_bound(keys.begin);
  if (at != ranges_.begin()) --at;
  for (; at != ranges_.end() && at->first < keys.end; ++at) {
    const Segment common = intersect({at->first, at->second.end}, keys);
    if (common.size() > 0) found.push_back({common, at->second.tasks});
  }
  return found;
}

std::vector<Segment> RangeClocks::lacking(const Segment& keys, int worker, std::uint64_t task) const {
  SegmentSet have;
  for (const RangeClock& range : read(keys)) {
    const auto clock = range.tasks.find(worker);
    if (clock != range.tasks.end() && clock->second >= task) have.add(range.keys);
  }
  return have.missing(keys);
}

std::uint64_t RangeClocks::least(const Segment& keys, int worker) const {
  std::uint64_t least = UINT64_MAX, covered = 0;
  for (const RangeClock& range : read(keys)) {
    const auto clock = range.tasks.find(worker);
    if (clock == range.tasks.end()) return 0;
    least = std::min(least, clock->second);
    covered += range.keys.size();
  }
  return covered == keys.size() && covered > 0 ? least : 0;
}

void RangeClocks::join(const Segment& keys) {
  auto at = ranges_.lower_bound(keys.begin);
  if (at != ranges_.begin()) --at;
  while (at != ranges_.end() && at->first <= keys.end) {
    const auto next = std::next(at);
    if (next == ranges_.end()) return;
    if (at->second.end == next->first && at->second.tasks == next->second.tasks) {
      at->second.end = next->second.end;
      ranges_.erase(next);
    } else {
      at = next;
    }
  }
}

void RangeClocks::advance(const Segment& keys, int worker, std::uint64_t task) {
  if (keys.size() == 0) return;
  split_at(keys.begin);
  split_at(keys.end);
  SegmentSet known;
  for (auto at = ranges_.lower_bound(keys.begin); at != ranges_.end() && at->first < keys.end; ++at) {
    std::uint64_t& clock = at->second.tasks[worker];
    clock = std::max(clock, task);
    known.add({at->first, at->second.end});
  }
  for (const Segment& unknown : known.missing(keys)) ranges_[unknown.begin] = {unknown.end, {{worker, task}}};
  join(keys);
}

void RangeClocks::erase(const Segment& keys) {
  split_at(keys.begin);
  split_at(keys.end);
  ranges_.erase(ranges_.lower_bound(keys.begin), ranges_.lower_bound(keys.end));
}

void RangeClocks::replace(const Segment& keys, const std::vector<RangeClock>& clocks) {
  erase(keys);
  for (const RangeClock& range : clocks) {
    const Segment common = intersect(range.keys, keys);
    if (common.size() > 0) ranges_[common.begin] = {common.end, range.tasks};
  }
  join(keys);
}

void RangeClocks::keep(const SegmentSet& keys) {
  if (ranges_.empty()) return;
  for (const Segment& gap : keys.missing({0, std::prev(ranges_.end())->second.end})) erase(gap);
}

}  // namespace trireme::ps
