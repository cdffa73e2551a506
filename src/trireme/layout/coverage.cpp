#include "trireme/layout/coverage.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "trireme/base/error.h"

namespace trireme::layout {
namespace {

/// Everything that decides which element is where, and nothing else.
std::vector<Index> geometry(const Placement& placement) {
  std::vector<Index> key;
  for (const Piece& piece : placement.pieces) {
    key.insert(key.end(), piece.box.begin.begin(), piece.box.begin.end());
    key.insert(key.end(), piece.box.end.begin(), piece.box.end.end());
    key.push_back(piece.padding);
  }
  key.push_back(placement.partition ? placement.partition->begin : -1);
  key.push_back(placement.partition ? placement.partition->end : -1);
  return key;
}

std::string find_problem_of_one(const Placement& placement, const Placement& first, std::size_t rank) {
  if (placement.name != first.name || placement.shape != first.shape) {
    return fmt::format("rank {} places {} ({}), rank 0 places {} ({})", rank, placement.name,
                       fmt::join(placement.shape, " x "), first.name, fmt::join(first.shape, " x "));
  }
  for (const Piece& piece : placement.pieces) {
    bool inside = piece.box.begin.size() == placement.shape.size() && piece.box.end.size() == placement.shape.size();
    for (std::size_t i = 0; inside && i < placement.shape.size(); ++i) {
      inside =
          piece.box.begin[i] >= 0 && piece.box.begin[i] <= piece.box.end[i] && piece.box.end[i] <= placement.shape[i];
    }
    if (!inside) return fmt::format("rank {} holds a box that is not inside the tensor: {}", rank, to_text(placement));
    if (piece.padding < 0) return fmt::format("rank {} has negative padding: {}", rank, to_text(placement));
  }
  if (placement.partition &&
      (placement.partition->begin < 0 || placement.partition->begin > placement.partition->end)) {
    return fmt::format("rank {} keeps an interval that is none: {}", rank, to_text(placement));
  }
  return "";
}

/// The ranks that hold a segment, ascending; a rank twice when it holds the segment twice.
std::vector<int> ranks_that_hold(const Coverage& coverage, const Coverage::Segment& segment) {
  std::vector<int> ranks;
  for (const Coverage::Holder& holder : segment.holders) {
    const std::vector<int>& more = coverage.ranks_of[static_cast<std::size_t>(holder.layout)];
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  std::ranges::sort(ranks);
  return ranks;
}

class CopyCheck {
 public:
  CopyCheck(const Mesh& mesh, std::span<const Placement> placements, const Coverage& coverage)
      : mesh_(mesh), placements_(placements), coverage_(coverage) {}

  std::string find_problem(const Coverage::Segment& segment) {
    const auto element = [&] {
      const Placement& any = placements_.front();
      return fmt::format("element {} of {}", element_text(any.shape, segment.begin), any.name);
    };
    if (segment.holders.empty()) return fmt::format("{} is held by no rank", element());
    const std::vector<int> ranks = ranks_that_hold(coverage_, segment);
    const auto twice = std::ranges::adjacent_find(ranks);
    if (twice != ranks.end()) return fmt::format("{} is held twice by rank {}", element(), *twice);
    for (const Coverage::Holder& holder : segment.holders) {
      for (const int rank : coverage_.ranks_of[static_cast<std::size_t>(holder.layout)]) {
        const AxisNames& axes = piece_at(placements_[static_cast<std::size_t>(rank)], holder.local)->replica_axes;
        const std::vector<int>& copies = group(rank, axes);
        if (copies == ranks) continue;
        return fmt::format(
            "{} is held by ranks {}, but rank {} says {}: ranks {}", element(), fmt::join(ranks, " "), rank,
            axes.empty() ? "there are no copies" : fmt::format("that copies are along {}", fmt::join(axes, " ")),
            fmt::join(copies, " "));
      }
    }
    return "";
  }

 private:
  /// Groups are asked for once a segment and rank, and there are few of them.
  const std::vector<int>& group(int rank, const AxisNames& axes) {
    auto& known = groups_[axes];
    if (known.empty()) known.resize(static_cast<std::size_t>(mesh_.ranks()));
    auto& members = known[static_cast<std::size_t>(rank)];
    if (members.empty()) members = mesh_.group(rank, axes);
    return members;
  }

  const Mesh& mesh_;
  std::span<const Placement> placements_;
  const Coverage& coverage_;
  std::map<AxisNames, std::vector<std::vector<int>>> groups_;
};

}  // namespace

Coverage cover(std::span<const Placement> placements) {
  Coverage coverage;
  if (placements.empty()) return coverage;
  std::map<std::vector<Index>, std::size_t> layouts;
  std::vector<std::vector<ContiguousRun>> runs_of;
  std::vector<Index> cuts{0, elements(placements.front().shape)};
  for (std::size_t rank = 0; rank < placements.size(); ++rank) {
    const auto [entry, added] = layouts.try_emplace(geometry(placements[rank]), runs_of.size());
    if (added) {
      runs_of.push_back(runs(placements[rank]));
      coverage.ranks_of.emplace_back();
      for (const ContiguousRun& run : runs_of.back()) {
        cuts.push_back(run.global);
        cuts.push_back(run.global + run.count);
      }
    }
    coverage.ranks_of[entry->second].push_back(static_cast<int>(rank));
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  coverage.segments.resize(cuts.size() - 1);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    coverage.segments[i].begin = cuts[i];
    coverage.segments[i].end = cuts[i + 1];
  }
  for (std::size_t layout = 0; layout < runs_of.size(); ++layout) {
    for (const ContiguousRun& run : runs_of[layout]) {
      auto segment = std::ranges::lower_bound(coverage.segments, run.global, {}, &Coverage::Segment::begin);
      for (; segment != coverage.segments.end() && segment->begin < run.global + run.count; ++segment) {
        segment->holders.push_back({static_cast<int>(layout), run.local + segment->begin - run.global});
      }
    }
  }
  return coverage;
}

std::string find_problem(const Mesh& mesh, std::span<const Placement> placements) {
  TRIREME_CHECK(static_cast<int>(placements.size()) == mesh.ranks(), "{} placements for {} ranks", placements.size(),
                mesh.ranks());
  for (std::size_t rank = 0; rank < placements.size(); ++rank) {
    std::string problem = find_problem_of_one(placements[rank], placements.front(), rank);
    if (!problem.empty()) return problem;
  }
  const Coverage coverage = cover(placements);
  CopyCheck check(mesh, placements, coverage);
  for (const Coverage::Segment& segment : coverage.segments) {
    std::string problem = check.find_problem(segment);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace trireme::layout
