#include "trireme/layout/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::layout {
namespace {

/// The factors of one axis's coordinate from `low` up to `high`: "dp" of 8 is 1 to 8, "dp%4" 1 to 4, "dp/4" 4 to 8.
struct Factors {
  int low = 1, high = 1;
};

std::vector<Factors> factors_along(const Mesh& mesh, const Axis& axis, const AxisNames& names) {
  std::vector<Factors> found;
  const int stride = mesh.extent(axis.name).stride;
  for (const std::string& name : names) {
    const Extent at = mesh.extent(name);  // before the comparison: an unknown axis is an error
    if (at.size == 1 || axis_of(name) != axis.name) continue;
    found.push_back({at.stride / stride, at.stride / stride * at.size});
  }
  return found;
}

/// 1 and the axis's size, and every place in between where one of the two begins or ends.
std::vector<int> cuts_of(const Axis& axis, const std::vector<Factors>& a, const std::vector<Factors>& b) {
  std::vector<int> cuts{1, axis.size};
  for (const auto* set : {&a, &b}) {
    for (const Factors& factors : *set) cuts.insert(cuts.end(), {factors.low, factors.high});
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] % cuts[i - 1] == 0) continue;
    throw ConfigError(fmt::format("axis {} of {} ranks is cut at {} and at {}, which do not nest", axis.name, axis.size,
                                  cuts[i - 1], cuts[i]),
                      fmt::format("cut it at multiples of {}", cuts[i - 1]));
  }
  return cuts;
}

std::string part_name(const Axis& axis, Factors factors) {
  std::string name = axis.name;
  if (factors.low > 1) name += fmt::format("/{}", factors.low);
  if (factors.high < axis.size) name += fmt::format("%{}", factors.high / factors.low);
  return name;
}

bool holds(const std::vector<Factors>& set, int low, int high) {
  return std::ranges::any_of(set, [&](const Factors& factors) { return factors.low <= low && high <= factors.high; });
}

template <typename Keep>
AxisNames combine(const Mesh& mesh, const AxisNames& a, const AxisNames& b, const Keep& keep) {
  AxisNames names;
  for (const Axis& axis : mesh.axes()) {
    const std::vector<Factors> in_a = factors_along(mesh, axis, a), in_b = factors_along(mesh, axis, b);
    const std::vector<int> cuts = cuts_of(axis, in_a, in_b);
    Factors open{};
    for (std::size_t i = 1; i < cuts.size(); ++i) {
      if (keep(holds(in_a, cuts[i - 1], cuts[i]), holds(in_b, cuts[i - 1], cuts[i]))) {
        if (open.high == 1) open.low = cuts[i - 1];
        open.high = cuts[i];
      } else if (open.high > 1) {
        names.push_back(part_name(axis, std::exchange(open, {})));
      }
    }
    if (open.high > 1) names.push_back(part_name(axis, open));
  }
  return names;
}

}  // namespace

AxisNames intersect(const Mesh& mesh, const AxisNames& a, const AxisNames& b) {
  return combine(mesh, a, b, [](bool in_a, bool in_b) { return in_a && in_b; });
}

AxisNames unite(const Mesh& mesh, const AxisNames& a, const AxisNames& b) {
  return combine(mesh, a, b, [](bool in_a, bool in_b) { return in_a || in_b; });
}

AxisNames subtract(const Mesh& mesh, const AxisNames& a, const AxisNames& b) {
  return combine(mesh, a, b, [](bool in_a, bool in_b) { return in_a && !in_b; });
}

AxisNames without(const Mesh& mesh, const AxisNames& axes, const std::string& used) {
  if (mesh.size(used) == 1) return axes;
  if (mesh.group_size(intersect(mesh, axes, {used})) != mesh.size(used)) {
    throw ConfigError(fmt::format("axis {} is used already: what is left is {}", used,
                                  axes.empty() ? std::string("no axis") : fmt::format("{}", fmt::join(axes, " "))),
                      axes.empty() ? fmt::format("use {} only once", used) : fmt::format("use {}", axes.front()));
  }
  AxisNames rest;
  for (const std::string& name : axes) {
    if (axis_of(name) != axis_of(used)) {
      rest.push_back(name);
      continue;
    }
    for (std::string& part : subtract(mesh, {name}, {used})) rest.push_back(std::move(part));
  }
  return rest;
}

}  // namespace trireme::layout
