#include "trireme/ps/segments.h"

#include <algorithm>

namespace trireme::ps {

std::uint64_t count_keys(std::span<const Segment> segments) {
  std::uint64_t keys = 0;
  for (const Segment& segment : segments) keys += segment.size();
  return keys;
}

Segment intersect(const Segment& a, const Segment& b) {
  const std::uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin < end ? Segment{begin, end} : Segment{begin, begin};
}

SegmentSet::SegmentSet(std::span<const Segment> segments) {
  for (const Segment& segment : segments) add(segment);
}

std::size_t SegmentSet::first_ending_after(std::uint64_t key) const {
  return static_cast<std::size_t>(
      std::ranges::upper_bound(segments_, key, {}, [](const Segment& segment) { return segment.end; }) -
      segments_.begin());
}

void SegmentSet::add(const Segment& segment) {
  if (segment.begin >= segment.end) return;
  Segment merged = segment;
  // Those that end where it begins touch it too.
  const auto first =
      std::ranges::lower_bound(segments_, segment.begin, {}, [](const Segment& other) { return other.end; });
  auto last = first;
  for (; last != segments_.end() && last->begin <= merged.end; ++last) {
    merged.begin = std::min(merged.begin, last->begin);
    merged.end = std::max(merged.end, last->end);
  }
  if (first == last) {
    segments_.insert(first, merged);
  } else {
    *first = merged;
    segments_.erase(first + 1, last);
  }
}

std::vector<Segment> SegmentSet::common(const Segment& segment) const {
  std::vector<Segment> parts;
  for (std::size_t i = first_ending_after(segment.begin); i < segments_.size(); ++i) {
    if (segments_[i].begin >= segment.end) break;
    parts.push_back(intersect(segments_[i], segment));
  }
  return parts;
}

std::vector<Segment> SegmentSet::missing(const Segment& segment) const {
  std::vector<Segment> parts;
  std::uint64_t at = segment.begin;
  for (const Segment& have : common(segment)) {
    if (have.begin > at) parts.push_back({at, have.begin});
    at = have.end;
  }
  if (at < segment.end) parts.push_back({at, segment.end});
  return parts;
}

SegmentSet SegmentSet::common(const SegmentSet& other) const {
  SegmentSet both;
  for (const Segment& segment : other.segments_) {
    for (const Segment& part : common(segment)) both.add(part);
  }
  return both;
}

}  // namespace trireme::ps
