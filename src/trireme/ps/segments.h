// ps/segments.h -- ranges of keys: a key is the number of an element among those of all parameters, in order.
//
// Depends on: base.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::ps {

/// Keys begin, begin + 1, ..., end - 1.
struct Segment {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const Segment&) const = default;
};

/// Keys of all of them.
std::uint64_t count_keys(std::span<const Segment> segments);
/// What both have; empty where begin == end.
Segment intersect(const Segment& a, const Segment& b);

/// A set of keys as sorted segments that neither touch nor overlap.
class SegmentSet {
 public:
  SegmentSet() = default;
  explicit SegmentSet(std::span<const Segment> segments);

  void add(const Segment& segment);
  void clear() { segments_.clear(); }
  bool empty() const { return segments_.empty(); }
  bool contains(const Segment& segment) const { return missing(segment).empty(); }
  /// The parts of it that are in the set, and those that are not.
  std::vector<Segment> common(const Segment& segment) const;
  std::vector<Segment> missing(const Segment& segment) const;
  SegmentSet common(const SegmentSet& other) const;
  const std::vector<Segment>& segments() const { return segments_; }
  std::uint64_t keys() const { return count_keys(segments_); }
  bool operator==(const SegmentSet&) const = default;

 private:
  std::size_t first_ending_after(std::uint64_t key) const;

  std::vector<Segment> segments_;
};

}  // namespace trireme::ps
