#include "trireme/layout/reshard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/layout/coverage.h"

namespace trireme::layout {
namespace {

/// A part of one segment that a target lacks.
struct NeededRange {
  int target = 0;
  std::size_t segment = 0;
  Index begin = 0, to = 0, count = 0;  ///< begin: global
};

/// Ranks that hold the same segments, and what others want of these.
struct Owners {
  std::vector<int> ranks;  ///< ascending
  std::vector<NeededRange> needed;
  Index wanted = 0;
};

struct Move {
  int source = 0, target = 0;
  Copy copy;
};

struct Share {
  int rank = 0;
  Index count = 0;
};

/// `wanted` over the ranks such that the busiest of them gets as little as possible: the least loaded are filled up to
/// one level, as water would. By ascending rank.
std::vector<Share> shares_of(Index wanted, const std::vector<int>& ranks, const std::vector<Index>& loads,
                             Index grain) {
  const auto load = [&](int rank) { return loads[static_cast<std::size_t>(rank)]; };
  std::vector<int> order = ranks;
  std::ranges::stable_sort(order, {}, load);
  // The first n of the order reach a common level; with more of them it is lower, until one already stands above it.
  Index sum = 0, level = 0, reached = 0;
  std::size_t users = 0;
  for (std::size_t n = 1; n <= order.size(); ++n) {
    sum += load(order[n - 1]);
    const Index next = (wanted + sum) / static_cast<Index>(n);
    if (n > 1 && next - load(order[n - 1]) < std::max<Index>(grain, 1)) break;
    users = n, level = next, reached = sum;
  }
  Index rest = wanted + reached - level * static_cast<Index>(users);
  std::vector<Share> shares;
  for (std::size_t n = 0; n < users; ++n) {
    shares.push_back({order[n], level - load(order[n]) + (rest > 0 ? 1 : 0)});
    --rest;
  }
  std::ranges::sort(shares, {}, &Share::rank);
  return shares;
}

class Planner {
 public:
  Planner(std::span<const Placement> from, std::span<const Placement> to)
      : to_(to), coverage_(cover(from)), layout_of_(from.size()) {
    for (std::size_t layout = 0; layout < coverage_.ranks_of.size(); ++layout) {
      for (const int rank : coverage_.ranks_of[layout]) layout_of_[static_cast<std::size_t>(rank)] = layout;
    }
    find_owners();
    for (std::size_t rank = 0; rank < to.size(); ++rank) add_target(static_cast<int>(rank));
  }

  /// Loads: elements that each source sends already.
  void serve(std::vector<Index> loads, Index grain) {
    // Those with the fewest copies choose least, so they go first: where sets of owners are nested or disjoint, as
    // groups of a mesh are, no other division makes the busiest rank less busy.
    std::ranges::stable_sort(owners_, {}, [](const Owners& owners) { return owners.ranks.size(); });
    for (const Owners& owners : owners_) {
      if (owners.wanted == 0) continue;
      const std::vector<Share> shares = shares_of(owners.wanted, owners.ranks, loads, grain);
      for (const Share& share : shares) loads[static_cast<std::size_t>(share.rank)] += share.count;
      deal(owners, shares);
    }
  }

  std::vector<ReshardTransfer> transfers() {
    std::ranges::sort(moves_, {}, [](const Move& m) { return std::tuple(m.target, m.source, m.copy.to); });
    std::vector<ReshardTransfer> result;
    for (const auto& [source, target, copy] : moves_) {
      if (result.empty() || result.back().target != target || result.back().source != source) {
        result.push_back({source, target, {}});
      }
      std::vector<Copy>& copies = result.back().copies;
      if (!copies.empty() && copies.back().from + copies.back().count == copy.from &&
          copies.back().to + copies.back().count == copy.to) {
        copies.back().count += copy.count;
      } else {
        copies.push_back(copy);
      }
    }
    return result;
  }

 private:
  void find_owners() {
    std::map<std::vector<int>, std::size_t> known;  // by layouts, of which there are fewer than ranks
    for (const Coverage::Segment& segment : coverage_.segments) {
      std::vector<int> layouts;
      for (const Coverage::Holder& holder : segment.holders) layouts.push_back(holder.layout);
      const auto [entry, added] = known.try_emplace(std::move(layouts), owners_.size());
      if (added) {
        Owners owners;
        for (const int layout : entry->first) {
          const std::vector<int>& ranks = coverage_.ranks_of[static_cast<std::size_t>(layout)];
          owners.ranks.insert(owners.ranks.end(), ranks.begin(), ranks.end());
        }
        std::ranges::sort(owners.ranks);
        owners.ranks.erase(std::unique(owners.ranks.begin(), owners.ranks.end()), owners.ranks.end());
        owners_.push_back(std::move(owners));
      }
      owners_of_.push_back(entry->second);
    }
  }

  /// Keeps what the target has; notes what it lacks.
  void add_target(int target) {
    const Placement& placement = to_[static_cast<std::size_t>(target)];
    const std::vector<Coverage::Segment>& segments = coverage_.segments;
    for (const ContiguousRun& run : runs(placement)) {
      const Index end = run.global + run.count;
      auto segment = std::ranges::upper_bound(segments, run.global, {}, &Coverage::Segment::begin) - 1;
      for (; segment != segments.end() && segment->begin < end; ++segment) {
        const Index first = std::max(segment->begin, run.global), last = std::min(segment->end, end);
        const auto number = static_cast<std::size_t>(segment - segments.begin());
        if (segment->holders.empty()) {
          throw ConfigError(
              fmt::format("element {} of {} is wanted by rank {}, but held by none of the {} sources",
                          element_text(placement.shape, first), placement.name, target, layout_of_.size()),
              "give the placements of all ranks that the tensor was spread over");
        }
        const NeededRange range{target, number, first, run.local + first - run.global, last - first};
        if (place_in(target, *segment) != nullptr) {
          add_move(target, range);
        } else {
          Owners& owners = owners_[owners_of_[number]];
          owners.needed.push_back(range);
          owners.wanted += range.count;
        }
      }
    }
  }

  /// Hands the needed ranges out in their order, so that a target meets few sources and stretches stay whole.
  void deal(const Owners& owners, const std::vector<Share>& shares) {
    auto share = shares.begin();
    Index left = share->count;
    for (NeededRange range : owners.needed) {
      while (range.count > 0) {
        while (left == 0) left = (++share)->count;
        NeededRange part = range;
        part.count = std::min(range.count, left);
        add_move(share->rank, part);
        left -= part.count;
        range.begin += part.count, range.to += part.count, range.count -= part.count;
      }
    }
  }

  void add_move(int source, const NeededRange& range) {
    const Coverage::Segment& segment = coverage_.segments[range.segment];
    const Index from = place_in(source, segment)->local + range.begin - segment.begin;
    moves_.push_back({source, range.target, {from, range.to, range.count}});
  }

  const Coverage::Holder* place_in(int rank, const Coverage::Segment& segment) const {
    if (static_cast<std::size_t>(rank) >= layout_of_.size()) return nullptr;
    const auto layout = static_cast<int>(layout_of_[static_cast<std::size_t>(rank)]);
    // Holders come by ascending layout.
    const auto holder = std::ranges::lower_bound(segment.holders, layout, {}, &Coverage::Holder::layout);
    return holder != segment.holders.end() && holder->layout == layout ? &*holder : nullptr;
  }

  std::span<const Placement> to_;
  Coverage coverage_;
  std::vector<std::size_t> layout_of_;  // per source
  std::vector<Owners> owners_;
  std::vector<std::size_t> owners_of_;  // per segment
  std::vector<Move> moves_;
};

std::string named(const Placement& placement) {
  return fmt::format("{} ({})", placement.name, fmt::join(placement.shape, " x "));
}

void check_shapes(std::span<const Placement> from, std::span<const Placement> to) {
  TRIREME_CHECK(!from.empty() && !to.empty(), "placements of {} and {} ranks", from.size(), to.size());
  const Placement& first = from.front();
  for (const std::span<const Placement> side : {from, to}) {
    for (const Placement& placement : side) {
      if (placement.shape == first.shape) continue;
      throw ConfigError(fmt::format("{} cannot become {}: the shapes differ", named(first), named(placement)),
                        fmt::format("place a tensor of shape ({})", fmt::join(first.shape, " x ")));
    }
  }
}

Index elements_of(const ReshardTransfer& transfer) {
  Index count = 0;
  for (const Copy& copy : transfer.copies) count += copy.count;
  return count;
}

}  // namespace

ReshardPlan plan_reshard(std::span<const Placement> from, std::span<const Placement> to, std::size_t element_bytes,
                         const Sharing& sharing) {
  TRIREME_CHECK(element_bytes > 0, "elements of no bytes");
  check_shapes(from, to);
  std::vector<Index> loads(from.size());
  for (std::size_t rank = 0; rank < std::min(loads.size(), sharing.sent_bytes.size()); ++rank) {
    loads[rank] = static_cast<Index>(sharing.sent_bytes[rank] / element_bytes);
  }
  Planner planner(from, to);
  planner.serve(std::move(loads), static_cast<Index>(sharing.grain_bytes / element_bytes));
  return {.name = to.front().name, .element_bytes = element_bytes, .transfers = planner.transfers()};
}

void add_sent(const ReshardPlan& plan, std::vector<std::size_t>& sent_bytes) {
  for (const ReshardTransfer& transfer : plan.transfers) {
    if (transfer.source == transfer.target) continue;
    const auto source = static_cast<std::size_t>(transfer.source);
    if (source >= sent_bytes.size()) sent_bytes.resize(source + 1);
    sent_bytes[source] += static_cast<std::size_t>(elements_of(transfer)) * plan.element_bytes;
  }
}

ReshardVolume volume(const ReshardPlan& plan) {
  ReshardVolume total;
  for (const ReshardTransfer& transfer : plan.transfers) {
    const bool inside = transfer.source == transfer.target;
    (inside ? total.kept_bytes : total.moved_bytes) +=
        static_cast<std::size_t>(elements_of(transfer)) * plan.element_bytes;
    total.messages += inside ? 0 : 1;
    total.copies += transfer.copies.size();
  }
  std::vector<std::size_t> sent_bytes;
  add_sent(plan, sent_bytes);
  for (const std::size_t bytes : sent_bytes) total.most_sent_bytes = std::max(total.most_sent_bytes, bytes);
  return total;
}

std::string to_text(const ReshardPlan& plan, std::size_t copies) {
  const ReshardVolume total = volume(plan);
  std::string text = fmt::format("{}: {} stay on their rank, {} move in {}\n", plan.name,
                                 counted(total.kept_bytes / plan.element_bytes, "element"),
                                 total.moved_bytes / plan.element_bytes, counted(total.messages, "message"));
  for (const ReshardTransfer& transfer : plan.transfers) {
    text += fmt::format("  {} -> {}:", transfer.source, transfer.target);
    for (std::size_t i = 0; i < transfer.copies.size() && i < copies; ++i) {
      const Copy& copy = transfer.copies[i];
      text += fmt::format("{} [{},{}) to [{},{})", i == 0 ? "" : ",", copy.from, copy.from + copy.count, copy.to,
                          copy.to + copy.count);
    }
    if (transfer.copies.size() > copies) text += fmt::format(" and {} more", transfer.copies.size() - copies);
    text += '\n';
  }
  return text;
}

}  // namespace trireme::layout
