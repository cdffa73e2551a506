#include "trireme/checkpoint/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/formats/safetensors_writer.h"
#include "trireme/layout/coverage.h"

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::json;
using layout::Index;

std::size_t element_bytes(formats::Dtype dtype) { return static_cast<std::size_t>(formats::bits_of(dtype)) / 8; }

/// Segments of one tensor that the same ranks hold.
struct SaveUnit {
  std::size_t tensor = 0;
  std::vector<int> candidates;  // ascending
  std::vector<std::size_t> segments;
  std::uint64_t elements = 0, bytes = 0;
};

/// How many elements of a unit each candidate writes.
class Balance {
 public:
  Balance(std::size_t ranks, std::uint64_t total, std::uint64_t grain)
      : loads_(ranks), target_((total + ranks - 1) / ranks), grain_(grain) {}

  std::vector<std::pair<int, std::uint64_t>> share(const SaveUnit& unit, std::size_t element) {
    std::vector<int> by_load = unit.candidates;
    std::ranges::stable_sort(by_load, {}, [&](int rank) { return load(rank); });
    std::vector<std::pair<int, std::uint64_t>> shares;
    if (by_load.size() == 1 || unit.bytes < 2 * grain_ || load(by_load[0]) + unit.bytes <= target_) {
      shares.emplace_back(by_load[0], unit.elements);
    } else {
      // Fill up to a common level, of as many of the emptiest ranks as get enough that way.
      std::uint64_t below = std::accumulate(by_load.begin(), by_load.end(), std::uint64_t{0},
                                            [&](std::uint64_t sum, int rank) { return sum + load(rank); });
      std::size_t takers = by_load.size();
      while (takers > 1 && (unit.bytes + below) / takers < load(by_load[takers - 1]) + grain_) {
        below -= load(by_load[--takers]);
      }
      const std::uint64_t level = (unit.bytes + below) / takers;
      std::uint64_t left = unit.elements;
      for (std::size_t i = takers; i-- > 1;) {
        const std::uint64_t mine = std::min(left, (level - std::min(level, load(by_load[i]))) / element);
        shares.emplace_back(by_load[i], mine);
        left -= mine;
      }
      shares.emplace_back(by_load[0], left);
      std::ranges::sort(shares);
    }
    for (const auto& [rank, elements] : shares) loads_[static_cast<std::size_t>(rank)] += elements * element;
    return shares;
  }

 private:
  std::uint64_t load(int rank) const { return loads_[static_cast<std::size_t>(rank)]; }

  std::vector<std::uint64_t> loads_;
  std::uint64_t target_, grain_;
};

/// All ranks' placements of one tensor, those that hold nothing included.
struct Spread {
  formats::Dtype dtype = formats::Dtype::kF32;
  std::vector<layout::Placement> placements;
  layout::Coverage coverage;
};

std::map<std::string, Spread> spread_of(std::span<const std::vector<HeldTensor>> holdings) {
  std::map<std::string, Spread> spreads;
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    for (const HeldTensor& holding : holdings[rank]) {
      Spread& spread = spreads[holding.placement.name];
      if (spread.placements.empty()) {
        spread.dtype = holding.dtype;
        spread.placements.resize(
            holdings.size(),
            {.name = holding.placement.name, .shape = holding.placement.shape, .pieces = {}, .partition = {}});
      }
      TRIREME_CHECK(spread.dtype == holding.dtype && spread.placements[0].shape == holding.placement.shape,
                    "rank {} holds {} with another type or shape than the ranks before it", rank,
                    holding.placement.name);
      spread.placements[rank] = holding.placement;
    }
  }
  for (auto& [name, spread] : spreads) spread.coverage = layout::cover(spread.placements);
  return spreads;
}

std::vector<SaveUnit> units_of(const Spread& spread, std::size_t tensor) {
  std::map<std::vector<int>, SaveUnit> units;  // by layouts
  const auto& segments = spread.coverage.segments;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    std::vector<int> layouts;
    for (const auto& holder : segments[i].holders) layouts.push_back(holder.layout);
    TRIREME_CHECK(!layouts.empty(), "element {} of {} is held by no rank",
                  layout::element_text(spread.placements[0].shape, segments[i].begin), spread.placements[0].name);
    std::ranges::sort(layouts);
    SaveUnit& unit = units[layouts];
    if (unit.segments.empty()) {
      unit.tensor = tensor;
      for (const int layout : layouts) {
        const auto& ranks = spread.coverage.ranks_of[static_cast<std::size_t>(layout)];
        unit.candidates.insert(unit.candidates.end(), ranks.begin(), ranks.end());
      }
      std::ranges::sort(unit.candidates);
    }
    unit.segments.push_back(i);
    unit.elements += static_cast<std::uint64_t>(segments[i].end - segments[i].begin);
  }
  std::vector<SaveUnit> list;
  for (auto& [layouts, unit] : units) {
    unit.bytes = unit.elements * element_bytes(spread.dtype);
    list.push_back(std::move(unit));
  }
  return list;
}

/// Where a rank has the segment.
Index local_of(const layout::Coverage& coverage, const layout::Coverage::Segment& segment, int rank) {
  for (const auto& holder : segment.holders) {
    if (std::ranges::binary_search(coverage.ranks_of[static_cast<std::size_t>(holder.layout)], rank))
      return holder.local;
  }
  throw InternalError(fmt::format("rank {} is to write what it does not hold", rank));
}

void append(std::vector<layout::ContiguousRun>& runs, const layout::ContiguousRun& run) {
  if (!runs.empty() && runs.back().global + runs.back().count == run.global &&
      runs.back().local + runs.back().count == run.local) {
    runs.back().count += run.count;
  } else {
    runs.push_back(run);
  }
}

/// Deals the unit's elements out, in their order, to who was given how many.
void deal(const SaveUnit& unit, const Spread& spread, std::span<const std::pair<int, std::uint64_t>> shares,
          std::vector<std::map<std::size_t, std::vector<layout::ContiguousRun>>>& runs) {
  std::size_t taker = 0;
  std::uint64_t left = shares[0].second;
  for (const std::size_t number : unit.segments) {
    const auto& segment = spread.coverage.segments[number];
    for (Index at = segment.begin; at < segment.end;) {
      while (left == 0) left = shares[++taker].second;
      const int rank = shares[taker].first;
      const Index count = std::min<Index>(segment.end - at, static_cast<Index>(left));
      append(runs[static_cast<std::size_t>(rank)][unit.tensor],
             {.global = at, .local = local_of(spread.coverage, segment, rank) + at - segment.begin, .count = count});
      at += count;
      left -= static_cast<std::uint64_t>(count);
    }
  }
}

std::vector<formats::Strip> strips_of(std::span<const layout::ContiguousRun> runs) {
  std::vector<formats::Strip> stretches;
  for (const layout::ContiguousRun& run : runs) {
    if (!stretches.empty() && stretches.back().begin + stretches.back().count == run.global) {
      stretches.back().count += run.count;
    } else {
      stretches.push_back({run.global, run.count});
    }
  }
  return formats::strips_of(stretches);
}

/// The shape under which people find a slice in its file: a box's where it is one of rows or columns, otherwise flat.
std::vector<std::int64_t> slice_shape(const formats::TensorSpec& tensor, std::span<const formats::Strip> strips) {
  Index row = 1, elements = 0;
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) row *= tensor.shape[i];
  for (const formats::Strip& strip : strips) elements += strip.count * strip.times;
  if (strips.size() == 1 && !tensor.shape.empty() && row > 0) {
    const formats::Strip& strip = strips[0];
    if (strip.times == 1 && strip.begin % row == 0 && strip.count % row == 0) {
      std::vector<std::int64_t> shape = tensor.shape;
      shape[0] = strip.count / row;
      return shape;
    }
    if (tensor.shape.size() == 2 && strip.times > 1 && strip.stride == row && strip.begin % row + strip.count <= row) {
      return {strip.times, strip.count};
    }
  }
  if (tensor.shape.empty()) return {};
  return {elements};
}

}  // namespace

std::string holdings_text(std::span<const HeldTensor> holdings) {
  Json list = Json::array();
  for (const HeldTensor& holding : holdings) {
    Json pieces = Json::array();
    for (const layout::Piece& piece : holding.placement.pieces) {
      pieces.push_back({piece.box.begin, piece.box.end, piece.padding});
    }
    Json entry{holding.placement.name, formats::name_of(holding.dtype), holding.placement.shape, std::move(pieces)};
    if (const auto& part = holding.placement.partition) entry.insert(entry.end(), {part->begin, part->end});
    list.push_back(std::move(entry));
  }
  return list.dump();
}

std::vector<HeldTensor> parse_holdings(const std::string& text) {
  std::vector<HeldTensor> holdings;
  const Json list = Json::parse(text);
  for (const Json& entry : list) {
    HeldTensor& holding = holdings.emplace_back();
    holding.placement.name = entry.at(0).get<std::string>();
    holding.dtype = formats::parse_dtype(entry.at(1).get<std::string>()).value();
    holding.placement.shape = entry.at(2).get<layout::Shape>();
    for (const Json& piece : entry.at(3)) {
      holding.placement.pieces.push_back(
          {.box = {piece.at(0).get<std::vector<Index>>(), piece.at(1).get<std::vector<Index>>()},
           .padding = piece.at(2).get<Index>(),
           .replica_axes = {}});
    }
    if (entry.size() > 4) {
      holding.placement.partition =
          layout::Partition{.begin = entry.at(4).get<Index>(), .end = entry.at(5).get<Index>(), .axes = {}};
    }
  }
  return holdings;
}

std::uint64_t SavePlan::bytes_of(std::size_t rank) const {
  std::uint64_t bytes = 0;
  for (const SaveShare& share : ranks[rank]) {
    for (const layout::ContiguousRun& run : share.runs) {
      bytes += static_cast<std::uint64_t>(run.count) * element_bytes(tensors[share.tensor].dtype);
    }
  }
  return bytes;
}

SavePlan plan_save(std::span<const std::vector<HeldTensor>> holdings, std::uint64_t grain_bytes) {
  const std::map<std::string, Spread> spreads = spread_of(holdings);
  SavePlan plan;
  std::vector<const Spread*> by_tensor;
  std::vector<SaveUnit> units;
  std::uint64_t total = 0;
  for (const auto& [name, spread] : spreads) {
    for (SaveUnit& unit : units_of(spread, plan.tensors.size())) {
      total += unit.bytes;
      units.push_back(std::move(unit));
    }
    plan.tensors.push_back({.name = name, .dtype = spread.dtype, .shape = spread.placements[0].shape});
    by_tensor.push_back(&spread);
  }
  // What only few can write first, then from large to small: what comes last evens out best.
  std::ranges::stable_sort(units, [](const SaveUnit& a, const SaveUnit& b) {
    return std::tuple(a.candidates.size(), b.bytes) < std::tuple(b.candidates.size(), a.bytes);
  });
  Balance balance(holdings.size(), total, std::max<std::uint64_t>(grain_bytes, 1));
  std::vector<std::map<std::size_t, std::vector<layout::ContiguousRun>>> runs(holdings.size());
  for (const SaveUnit& unit : units) {
    const Spread& spread = *by_tensor[unit.tensor];
    deal(unit, spread, balance.share(unit, element_bytes(spread.dtype)), runs);
  }
  plan.ranks.resize(holdings.size());
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    for (auto& [tensor, mine] : runs[rank]) {
      std::ranges::sort(mine, {}, &layout::ContiguousRun::global);
      SaveShare& share = plan.ranks[rank].emplace_back();
      share.tensor = tensor;
      for (const layout::ContiguousRun& run : mine) append(share.runs, run);
    }
  }
  return plan;
}

std::string PartPlan::prefix() const {
  std::string start(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) start[i] = static_cast<char>(header.text.size() >> (8 * i) & 0xFF);
  return start + header.text;
}

PartPlan part_of(const SavePlan& plan, std::size_t rank) {
  std::vector<formats::TensorSpec> specs;
  std::map<std::string, std::size_t> share_of;
  for (std::size_t i = 0; i < plan.ranks[rank].size(); ++i) {
    const SaveShare& share = plan.ranks[rank][i];
    const formats::TensorSpec& tensor = plan.tensors[share.tensor];
    specs.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = slice_shape(tensor, strips_of(share.runs))});
    share_of[tensor.name] = i;
  }
  PartPlan part;
  part.header = formats::make_safetensors_header(std::move(specs), formats::Metadata{{"format", "pt"}});
  for (const std::uint32_t at : part.header.by_offset) part.order.push_back(share_of.at(part.header.tensors[at].name));
  return part;
}

void describe(const SavePlan& plan, formats::CheckpointManifest& manifest) {
  for (const formats::TensorSpec& tensor : plan.tensors) {
    manifest.tensors[tensor.name] = {.dtype = tensor.dtype, .shape = tensor.shape, .slices = {}};
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    if (plan.ranks[rank].empty()) continue;
    const PartPlan part = part_of(plan, rank);
    for (std::size_t i = 0; i < part.order.size(); ++i) {
      const SaveShare& share = plan.ranks[rank][part.order[i]];
      const formats::TensorInfo& info = part.header.tensors[part.header.by_offset[i]];
      manifest.tensors.at(info.name).slices.push_back({.part = manifest.parts.size(),
                                                       .at = part.header.data_begin() + info.begin,
                                                       .strips = strips_of(share.runs)});
    }
    manifest.parts.push_back({.name = formats::part_name(static_cast<int>(rank), static_cast<int>(plan.ranks.size())),
                              .bytes = part.header.file_bytes(),
                              .checks = {}});
  }
}

}  // namespace trireme::checkpoint
