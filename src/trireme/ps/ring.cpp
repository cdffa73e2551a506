#include "trireme/ps/ring.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::ps {
namespace {

__extension__ using Wide = unsigned __int128;

/// Keys that stand at or before a place: i 2^64 / n < place + 1.
std::uint64_t keys_up_to(std::uint64_t place, std::uint64_t keys) {
  const Wide product = (static_cast<Wide>(place) + 1) * keys;
  const Wide below = (product + ((static_cast<Wide>(1) << 64) - 1)) >> 64;
  return static_cast<std::uint64_t>(std::min<Wide>(below, keys));
}

void append_range(std::vector<PlacedRange>& ranges, const Segment& keys, std::vector<int> chain) {
  if (keys.begin == keys.end) return;
  if (!ranges.empty() && ranges.back().keys.end == keys.begin && ranges.back().chain == chain) {
    ranges.back().keys.end = keys.end;
  } else {
    ranges.push_back({keys, std::move(chain)});
  }
}

}  // namespace

HashRing::HashRing(const std::vector<int>& servers, int points) : servers_(servers.size()) {
  TRIREME_CHECK(!servers.empty() && points > 0, "a ring of {} servers with {} points each", servers.size(), points);
  points_.reserve(servers.size() * static_cast<std::size_t>(points));
  for (const int server : servers) {
    for (int i = 0; i < points; ++i) {
      const std::string name = fmt::format("server/{}/{}", server, i);
      points_.push_back({XXH64(name.data(), name.size(), 0), server});
    }
  }
  std::ranges::sort(points_, [](const Point& a, const Point& b) {
    return a.place != b.place ? a.place < b.place : a.server < b.server;
  });
}

std::vector<int> HashRing::chain_from(std::size_t point, int copies) const {
  std::vector<int> chain;
  const std::size_t wanted = std::min(servers_, static_cast<std::size_t>(std::max(copies, 1)));
  for (std::size_t i = 0; chain.size() < wanted && i < points_.size(); ++i) {
    const int server = points_[(point + i) % points_.size()].server;
    if (std::ranges::find(chain, server) == chain.end()) chain.push_back(server);
  }
  return chain;
}

std::vector<int> HashRing::chain(std::uint64_t place, int copies) const {
  const auto at = std::ranges::lower_bound(points_, place, {}, [](const Point& point) { return point.place; });
  return chain_from(static_cast<std::size_t>(at - points_.begin()) % points_.size(), copies);
}

std::vector<PlacedRange> HashRing::place(std::uint64_t keys, int copies) const {
  std::vector<PlacedRange> ranges;
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const std::uint64_t end = std::max(begin, keys_up_to(points_[i].place, keys));
    append_range(ranges, {begin, end}, chain_from(i, copies));
    begin = end;
  }
  append_range(ranges, {begin, keys}, chain_from(0, copies));
  return ranges;
}

std::vector<PlacedRange> place(const View& view, std::uint64_t keys) {
  const std::vector<PlacedRange> now = HashRing(view.servers, view.points).place(keys, view.copies);
  if (view.next.empty()) return now;
  const std::vector<PlacedRange> later = HashRing(view.next, view.points).place(keys, view.copies);
  std::vector<PlacedRange> both;
  for (std::size_t a = 0, b = 0; a < now.size() && b < later.size();) {
    const Segment common = intersect(now[a].keys, later[b].keys);
    std::vector<int> chain = now[a].chain;
    for (const int server : later[b].chain) {
      if (std::ranges::find(chain, server) == chain.end()) chain.push_back(server);
    }
    append_range(both, common, std::move(chain));
    if (now[a].keys.end == common.end) ++a;
    if (later[b].keys.end == common.end) ++b;
  }
  return both;
}

std::vector<PlacedRange> owned_by(const std::vector<PlacedRange>& ranges, int server) {
  std::vector<PlacedRange> owned;
  std::ranges::copy_if(ranges, std::back_inserter(owned),
                       [&](const PlacedRange& range) { return range.chain.front() == server; });
  return owned;
}

std::vector<PlacedRange> held_by(const std::vector<PlacedRange>& ranges, int server) {
  std::vector<PlacedRange> held;
  std::ranges::copy_if(ranges, std::back_inserter(held), [&](const PlacedRange& range) {
    return std::ranges::find(range.chain, server) != range.chain.end();
  });
  return held;
}

}  // namespace trireme::ps
