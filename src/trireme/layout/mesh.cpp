#include "trireme/layout/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::layout {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

/// The divisor of `size` nearest to `wish`.
int nearest_divisor(int size, int wish) {
  int best = 1;
  for (int candidate = 1; candidate <= size; ++candidate) {
    if (size % candidate == 0 && std::abs(candidate - wish) < std::abs(best - wish)) best = candidate;
  }
  return best;
}

/// "%4" or "/4".
struct Cut {
  char how = '%';
  int by = 1;
};

/// The cuts after the name of an axis, in their order.
std::vector<Cut> read_cuts(std::string_view text) {
  const std::size_t name_ends = std::min(text.find_first_of("%/"), text.size());
  std::vector<Cut> cuts;
  for (std::size_t at = name_ends; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("%/", at + 1), text.size());
    const std::string_view number = text.substr(at + 1, end - at - 1);
    Cut& cut = cuts.emplace_back(Cut{.how = text[at], .by = 0});
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), cut.by);
    if (error != std::errc() || stop != number.data() + number.size() || cut.by < 1) {
      throw ConfigError(
          fmt::format("\"{}\" is no part of an axis: \"{}\" is not a number of ranks", text, number),
          fmt::format("write {0}%2 for the inner 2 of {0}, {0}/2 for the rest", text.substr(0, name_ends)));
    }
    at = end;
  }
  return cuts;
}

}  // namespace

std::string_view axis_of(std::string_view part) { return part.substr(0, part.find_first_of("%/")); }

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)), strides_(axes_.size()) {
  for (std::size_t i = axes_.size(); i-- > 0;) {
    const Axis& axis = axes_[i];
    if (!is_name(axis.name)) {
      throw ConfigError(fmt::format("\"{}\" is no name for a mesh axis", axis.name),
                        "use a letter followed by letters, digits or _, such as dp");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (axes_[j].name != axis.name) continue;
      throw ConfigError(
          fmt::format("mesh axis {} comes twice, with sizes {} and {}", axis.name, axes_[j].size, axis.size),
          fmt::format("name one of them differently, such as {}2", axis.name));
    }
    if (axis.size < 1) {
      throw ConfigError(fmt::format("mesh axis {} has size {}; a size is at least 1", axis.name, axis.size),
                        fmt::format("write {}=1", axis.name));
    }
    strides_[i] = ranks_;
    if (axis.size > std::numeric_limits<int>::max() / ranks_) {
      throw ConfigError(fmt::format("mesh axis {} = {} makes more ranks than can be numbered", axis.name, axis.size),
                        fmt::format("write {}=1", axis.name));
    }
    ranks_ *= axis.size;
  }
}

AxisNames Mesh::wide_axes() const {
  AxisNames names;
  for (const Axis& axis : axes_) {
    if (axis.size > 1) names.push_back(axis.name);
  }
  return names;
}

Extent Mesh::extent(std::string_view name) const {
  const std::vector<Cut> cuts = read_cuts(name);
  const std::string_view whole = axis_of(name);
  const auto axis = std::ranges::find(axes_, whole, &Axis::name);
  if (axis == axes_.end()) {
    std::vector<std::string> names;
    for (const Axis& known : axes_) names.push_back(known.name);
    throw ConfigError(
        fmt::format("the mesh has no axis {}{}", whole, did_you_mean(whole, names)),
        names.empty() ? std::string("add the axis to the mesh") : fmt::format("its axes are {}", listed(names)));
  }
  Extent at{axis->size, strides_[static_cast<std::size_t>(axis - axes_.begin())]};
  std::string so_far = axis->name;
  for (const Cut& cut : cuts) {
    if (at.size % cut.by != 0) {
      throw ConfigError(fmt::format("{}: {} does not divide the {} ranks of axis {}", name, cut.by, at.size, so_far),
                        fmt::format("write {}{}{}", so_far, cut.how, nearest_divisor(at.size, cut.by)));
    }
    at = cut.how == '%' ? Extent{cut.by, at.stride} : Extent{at.size / cut.by, at.stride * cut.by};
    so_far += fmt::format("{}{}", cut.how, cut.by);
  }
  return at;
}

void Mesh::check_rank(int rank) const {
  TRIREME_CHECK(rank >= 0 && rank < ranks_, "rank {} of a mesh of {} ranks", rank, ranks_);
}

int Mesh::coordinate(int rank, std::string_view axis) const {
  check_rank(rank);
  const Extent at = extent(axis);
  return rank / at.stride % at.size;
}

std::vector<int> Mesh::coordinates(int rank) const {
  check_rank(rank);
  std::vector<int> result(axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) result[i] = rank / strides_[i] % axes_[i].size;
  return result;
}

int Mesh::rank_of(std::span<const int> coordinates) const {
  TRIREME_CHECK(coordinates.size() == axes_.size(), "{} coordinates for {} axes", coordinates.size(), axes_.size());
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    TRIREME_CHECK(coordinates[i] >= 0 && coordinates[i] < axes_[i].size, "coordinate {} on axis {} = {}",
                  coordinates[i], axes_[i].name, axes_[i].size);
    rank += coordinates[i] * strides_[i];
  }
  return rank;
}

std::vector<Extent> Mesh::extents(const AxisNames& axes) const {
  struct Found {
    Extent at;
    std::string name;
  };
  std::vector<Found> found;
  for (const std::string& name : axes) {
    Extent at = extent(name);
    if (at.size > 1) found.push_back({at, name});  // one rank: adds nothing, and its stride may be anyone's
  }
  std::ranges::sort(found, std::greater(), [](const Found& f) { return f.at.stride; });
  std::vector<Extent> result;
  for (std::size_t i = 0; i < found.size(); ++i) {
    result.push_back(found[i].at);
    if (i == 0 || found[i].at.stride * found[i].at.size <= found[i - 1].at.stride) continue;
    throw ConfigError(
        fmt::format("{} and {} are not two directions: they share ranks", found[i - 1].name, found[i].name),
        fmt::format("leave out {}", found[i].at.size < found[i - 1].at.size ? found[i].name : found[i - 1].name));
  }
  return result;
}

std::vector<int> Mesh::group(int rank, const AxisNames& axes) const {
  check_rank(rank);
  std::vector<int> members{rank};
  for (const Extent& at : extents(axes)) {  // outermost first, so that the result ascends
    std::vector<int> wider;
    wider.reserve(members.size() * static_cast<std::size_t>(at.size));
    for (const int member : members) {
      const int first = member - member / at.stride % at.size * at.stride;
      for (int i = 0; i < at.size; ++i) wider.push_back(first + i * at.stride);
    }
    members = std::move(wider);
  }
  return members;
}

std::vector<std::vector<int>> Mesh::groups(const AxisNames& axes) const {
  std::vector<std::vector<int>> result;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (index_in_group(rank, axes) == 0) result.push_back(group(rank, axes));
  }
  return result;
}

int Mesh::group_size(const AxisNames& axes) const {
  int size = 1;
  for (const Extent& at : extents(axes)) size *= at.size;
  return size;
}

int Mesh::index_in_group(int rank, const AxisNames& axes) const {
  check_rank(rank);
  int index = 0;
  for (const Extent& at : extents(axes)) index = index * at.size + rank / at.stride % at.size;
  return index;
}

Mesh Mesh::view(std::vector<Axis> axes) const {
  Mesh other(std::move(axes));
  if (other.ranks_ != ranks_) {
    throw ConfigError(fmt::format("the view {} has {} ranks, but the mesh {} has {}", to_text(other), other.ranks_,
                                  to_text(*this), ranks_),
                      fmt::format("choose sizes whose product is {}", ranks_));
  }
  // Both cut the ranks at the multiples of their strides. An axis of the view is made of even parts of ours exactly
  // when of any two strides one divides the other: otherwise its groups would take ragged bites of an axis.
  for (std::size_t i = 0; i < other.axes_.size(); ++i) {
    const Axis& axis = other.axes_[i];
    const int end = other.strides_[i] * axis.size;
    for (std::size_t j = 0; j < axes_.size(); ++j) {
      const int stride = strides_[j];
      if (end % stride == 0 || stride % end == 0) continue;
      // 1 always nests, so there is something to suggest.
      int size = axis.size;
      while (size > 1 && (other.strides_[i] * size) % stride != 0 && stride % (other.strides_[i] * size) != 0) --size;
      throw ConfigError(fmt::format("axis {} = {} of the view cuts across axis {} = {} of the mesh {}: {} and {} "
                                    "neighbouring ranks do not nest",
                                    axis.name, axis.size, axes_[j].name, axes_[j].size, to_text(*this), end, stride),
                        fmt::format("write {}={} and give the rest to another axis", axis.name, size));
    }
    const auto same = std::ranges::find(axes_, axis.name, &Axis::name);
    if (same == axes_.end() || axis.size == 1) continue;
    const Extent ours = extent(axis.name), theirs{axis.size, other.strides_[i]};
    if (ours == theirs) continue;
    throw ConfigError(fmt::format("axis {} of the view is {} ranks {} apart, but {} ranks {} apart in the mesh",
                                  axis.name, theirs.size, theirs.stride, ours.size, ours.stride),
                      fmt::format("name it differently, such as e{}", axis.name));
  }
  return other;
}

}  // namespace trireme::layout
