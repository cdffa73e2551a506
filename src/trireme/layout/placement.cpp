#include "trireme/layout/placement.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::layout {
namespace {

/// The runs of one box: all of the same length, because whole inner dimensions are contiguous.
class BoxRuns {
 public:
  BoxRuns(const Shape& shape, const Box& box) : shape_(shape), box_(box) {
    outer_ = shape.size();
    while (outer_ > 0) {
      --outer_;
      length_ *= box.end[outer_] - box.begin[outer_];
      if (box.begin[outer_] != 0 || box.end[outer_] != shape[outer_]) break;
    }
    for (std::size_t i = 0; i < outer_; ++i) count_ *= box.end[i] - box.begin[i];
    if (length_ == 0) count_ = 0;
  }

  Index length() const { return length_; }
  Index count() const { return count_; }
  Index global_begin(Index run) const {
    Index index = 0, stride = 1;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      const Index width = i < outer_ ? box_.end[i] - box_.begin[i] : 1;
      index += (box_.begin[i] + (i < outer_ ? run % width : 0)) * stride;
      run /= width;
      stride *= shape_[i];
    }
    return index;
  }

 private:
  const Shape& shape_;
  const Box& box_;
  std::size_t outer_ = 0;  // dimensions that a run does not span
  Index length_ = 1, count_ = 1;
};

Range window_of(const Placement& placement) {
  if (placement.partition) return {placement.partition->begin, placement.partition->end};
  return {0, unpartitioned_elements(placement)};
}

/// Calls visit(piece, run) for everything held, by ascending place in memory.
template <typename Visit>
void each_run(const Placement& placement, Visit&& visit) {
  const Range window = window_of(placement);
  Index offset = 0;
  for (const Piece& piece : placement.pieces) {
    const Index size = piece.box.elements();
    const Index begin = std::max(window.begin, offset) - offset, end = std::min(window.end, offset + size) - offset;
    if (begin < end) {
      const BoxRuns box(placement.shape, piece.box);
      for (Index run = begin / box.length(); run < box.count() && run * box.length() < end; ++run) {
        const Index first = std::max(begin, run * box.length()), last = std::min(end, (run + 1) * box.length());
        visit(piece, ContiguousRun{.global = box.global_begin(run) + first - run * box.length(),
                                   .local = offset + first - window.begin,
                                   .count = last - first});
      }
    }
    offset += size + piece.padding;
  }
}

void append(std::vector<ContiguousRun>& runs, const ContiguousRun& run, bool may_merge) {
  if (may_merge && !runs.empty()) {
    ContiguousRun& last = runs.back();
    if (last.global + last.count == run.global && last.local + last.count == run.local) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

}  // namespace

Index elements(const Shape& shape) {
  Index count = 1, product = 1;
  bool fits = true;
  for (const Index size : shape) {
    if (size < 0) {
      throw ConfigError(fmt::format("shape ({}) has the negative size {}", fmt::join(shape, " x "), size),
                        "use sizes of at least 0");
    }
    count *= size == 0 ? 0 : 1;
    fits = fits && (size == 0 || !__builtin_mul_overflow(product, size, &product));
  }
  if (!fits) {
    throw ConfigError(fmt::format("shape ({}) has more elements than can be numbered", fmt::join(shape, " x ")),
                      "cut the tensor into several");
  }
  return count * product;
}

Index Box::elements() const {
  Index count = 1;
  for (std::size_t i = 0; i < begin.size(); ++i) count *= end[i] - begin[i];
  return count;
}

Index unpartitioned_elements(const Placement& placement) {
  Index count = 0;
  for (const Piece& piece : placement.pieces) count += piece.box.elements() + piece.padding;
  return count;
}

Index local_elements(const Placement& placement) {
  const Range window = window_of(placement);
  return window.end - window.begin;
}

Index held_elements(const Placement& placement) {
  const Range window = window_of(placement);
  Index count = 0, offset = 0;
  for (const Piece& piece : placement.pieces) {
    const Index size = piece.box.elements();
    count += std::max<Index>(0, std::min(window.end, offset + size) - std::max(window.begin, offset));
    offset += size + piece.padding;
  }
  return count;
}

std::optional<Index> global_index(const Placement& placement, Index local) {
  if (local < 0 || local >= local_elements(placement)) return std::nullopt;
  Index at = local + window_of(placement).begin;
  for (const Piece& piece : placement.pieces) {
    const Index size = piece.box.elements();
    if (at < size) {
      const BoxRuns box(placement.shape, piece.box);
      return box.global_begin(at / box.length()) + at % box.length();
    }
    at -= size + piece.padding;
    if (at < 0) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Index> local_index(const Placement& placement, Index global) {
  if (global < 0 || global >= elements(placement.shape)) return std::nullopt;
  const Range window = window_of(placement);
  Index offset = 0;
  for (const Piece& piece : placement.pieces) {
    Index rest = global, at = 0, stride = 1;
    bool inside = true;
    for (std::size_t i = placement.shape.size(); i-- > 0;) {
      const Index index = rest % placement.shape[i];
      rest /= placement.shape[i];
      inside = inside && index >= piece.box.begin[i] && index < piece.box.end[i];
      at += (index - piece.box.begin[i]) * stride;
      stride *= piece.box.end[i] - piece.box.begin[i];
    }
    if (inside) {
      const Index place = offset + at;
      if (place >= window.begin && place < window.end) return place - window.begin;
    }
    offset += piece.box.elements() + piece.padding;
  }
  return std::nullopt;
}

std::vector<ContiguousRun> runs(const Placement& placement) {
  std::vector<ContiguousRun> result;
  const Piece* last = nullptr;
  each_run(placement, [&](const Piece& piece, const ContiguousRun& run) {
    append(result, run, last == nullptr || last->replica_axes == piece.replica_axes);
    last = &piece;
  });
  return result;
}

std::vector<ContiguousRun> first_copy_runs(const Mesh& mesh, int rank, const Placement& placement) {
  std::vector<ContiguousRun> result;
  const Piece* last = nullptr;
  bool first = false;
  each_run(placement, [&](const Piece& piece, const ContiguousRun& run) {
    if (&piece != last) first = is_first_copy(mesh, rank, piece.replica_axes);
    last = &piece;
    if (first) append(result, run, true);
  });
  return result;
}

std::vector<Range> held_ranges(const Placement& placement) {
  std::vector<Range> pieces, result;
  each_run(placement, [&](const Piece&, const ContiguousRun& run) {
    pieces.push_back({run.global, run.global + run.count});
  });
  std::ranges::sort(pieces, {}, &Range::begin);
  for (const Range& range : pieces) {
    if (!result.empty() && range.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, range.end);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

const Piece* piece_at(const Placement& placement, Index local) {
  Index at = local + window_of(placement).begin;
  for (const Piece& piece : placement.pieces) {
    at -= piece.box.elements() + piece.padding;
    if (at < 0) return &piece;
  }
  return nullptr;
}

bool is_first_copy(const Mesh& mesh, int rank, const AxisNames& replica_axes) {
  return mesh.index_in_group(rank, replica_axes) == 0;
}

std::string element_text(const Shape& shape, Index global) {
  std::vector<Index> coordinates(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    coordinates[i] = global % shape[i];
    global /= shape[i];
  }
  return fmt::format("[{}]", fmt::join(coordinates, ", "));
}

std::string to_text(const Placement& placement) {
  std::vector<std::string> parts;
  for (const Piece& piece : placement.pieces) {
    std::vector<std::string> sides;
    for (std::size_t i = 0; i < piece.box.begin.size(); ++i) {
      sides.push_back(fmt::format("{}:{}", piece.box.begin[i], piece.box.end[i]));
    }
    std::string part = fmt::format("[{}]", fmt::join(sides, ", "));
    if (piece.padding > 0) part += fmt::format(" + {} padding", piece.padding);
    if (!piece.replica_axes.empty()) part += fmt::format(" copies along {}", fmt::join(piece.replica_axes, " "));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) parts.emplace_back("nothing");
  if (const auto& partition = placement.partition) {
    parts.push_back(fmt::format("elements {}:{} of that along {}", partition->begin, partition->end,
                                fmt::join(partition->axes, " ")));
  }
  return fmt::format("{} ({}): {}", placement.name, fmt::join(placement.shape, " x "), fmt::join(parts, ", "));
}

}  // namespace trireme::layout
