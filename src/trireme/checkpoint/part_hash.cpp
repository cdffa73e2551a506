#include "trireme/checkpoint/part_hash.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "trireme/layout/hash.h"

namespace trireme::checkpoint {

PartHash::PartHash(std::span<const SaveShare> shares, const PartPlan& part,
                   std::vector<std::span<const std::byte>> data, Lie lie)
    : shares_(shares), data_(std::move(data)), lie_(lie), hashes_(shares.size()) {
  for (std::size_t i = 0; i < part.order.size(); ++i) {
    const formats::TensorInfo& info = part.header.tensors[part.header.by_offset[i]];
    const std::uint64_t begin = part.header.data_begin() + info.begin;
    Place place{.begin = begin,
                .end = begin + info.bytes(),
                .share = part.order[i],
                .element_bytes = static_cast<std::size_t>(formats::bits_of(info.dtype)) / 8,
                .before = {}};
    layout::Index before = 0;
    for (const layout::ContiguousRun& run : shares[place.share].runs) {
      place.before.push_back(before);
      before += run.count;
    }
    places_.push_back(std::move(place));
  }
}

void PartHash::add(std::uint64_t begin, std::uint64_t end) {
  const auto after = [](const Place& place) { return place.end; };
  auto i = static_cast<std::size_t>(std::ranges::upper_bound(places_, begin, {}, after) - places_.begin());
  std::vector<layout::ContiguousRun> runs;
  for (; i < places_.size() && places_[i].begin < end; ++i) {
    const Place& place = places_[i];
    // Elements whose first byte is in the range: a range may end within one.
    const auto element_at = [&](std::uint64_t at) {
      const std::uint64_t bytes = std::clamp(at, place.begin, place.end) - place.begin;
      return static_cast<layout::Index>((bytes + place.element_bytes - 1) / place.element_bytes);
    };
    const layout::Index first = element_at(begin), last = element_at(end);
    if (first >= last) continue;
    const auto& all = shares_[place.share].runs;
    runs.clear();
    for (auto at = static_cast<std::size_t>(std::ranges::upper_bound(place.before, first) - place.before.begin()) - 1;
         at < all.size() && place.before[at] < last; ++at) {
      const layout::Index from = std::max<layout::Index>(0, first - place.before[at]),
                          until = std::min(all[at].count, last - place.before[at]);
      if (from >= until) continue;
      const layout::Index local = lie_ == Lie::kInFile ? place.before[at] : all[at].local;
      runs.push_back({.global = all[at].global + from, .local = local + from, .count = until - from});
    }
    // Several threads meet in a share, in any order: it is a sum.
    std::atomic_ref(hashes_[place.share])
        .fetch_add(layout::tensor_hash(runs, data_[i], place.element_bytes), std::memory_order_relaxed);
  }
}

}  // namespace trireme::checkpoint
