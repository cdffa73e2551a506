// layout/mesh.h -- named axes over the ranks 0 .. n-1: which ranks form a group, and where a rank stands in it.
//
// The last axis varies fastest: the ranks of its groups are neighbours, so an axis that talks much (tp) goes last and
// stays inside a node. Wherever an axis is asked for, a part of one may stand: of an axis dp = 8, "dp%4" is its inner
// 4 (neighbours, the coordinate modulo 4) and "dp/4" its outer 2 (the coordinate divided by 4). That is enough to shard
// within a node and replicate across. Parts have parts: "dp/2%2" is what is inside of dp/4 and outside of dp%2. A view
// names other axes over the same ranks; functions below compute with sets of axes.
// Depends on: base.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::layout {

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// Axes or parts of axes; the order does not matter: members of a group always stand in the order of their ranks.
using AxisNames = std::vector<std::string>;

/// "dp" of "dp", "dp%4" and "dp/2%2".
std::string_view axis_of(std::string_view part);

/// Where an axis, or a part of one, lies among the ranks: its neighbours are `stride` apart.
struct Extent {
  int size = 1, stride = 1;
  bool operator==(const Extent&) const = default;
};

class Mesh {
 public:
  /// One rank, no axes.
  Mesh() = default;
  /// Outermost axis first. ConfigError for names that are no names or come twice, and for sizes below 1.
  explicit Mesh(std::vector<Axis> axes);

  int ranks() const { return ranks_; }
  const std::vector<Axis>& axes() const { return axes_; }
  /// Every axis that has more than one rank.
  AxisNames wide_axes() const;

  /// Where "dp", "dp%4", "dp/4" or "dp/2%2" lies. ConfigError when there is no such axis or 4 does not divide it.
  Extent extent(std::string_view axis) const;
  int size(std::string_view axis) const { return extent(axis).size; }
  int coordinate(int rank, std::string_view axis) const;
  /// One for each axis, outermost first.
  std::vector<int> coordinates(int rank) const;
  int rank_of(std::span<const int> coordinates) const;

  /// The ranks that differ from `rank` only along these axes, ascending. No axes: the rank alone.
  std::vector<int> group(int rank, const AxisNames& axes) const;
  /// Every such group, ordered by first member.
  std::vector<std::vector<int>> groups(const AxisNames& axes) const;
  int group_size(const AxisNames& axes) const;
  /// The position of `rank` in its group.
  int index_in_group(int rank, const AxisNames& axes) const;

  /// Other axes over the same ranks, e.g. "pp=2 dp=4 cp=2" seen as "pp=2 edp=2 ep=4". Each axis of the view must be
  /// made of whole axes or even parts of neighbouring ones, and a name that both have must mean the same ranks.
  Mesh view(std::vector<Axis> axes) const;

  bool operator==(const Mesh& other) const { return axes_ == other.axes_; }

 private:
  std::vector<Extent> extents(const AxisNames& axes) const;  // outermost first, checked to be disjoint
  void check_rank(int rank) const;

  std::vector<Axis> axes_;
  std::vector<int> strides_;
  int ranks_ = 1;
};

/// "pp=2 dp=2 tp=2", separated by spaces or commas.
Mesh parse_mesh(std::string_view text);
std::string to_text(const Mesh& mesh);
/// For people: the coordinates of every rank and the groups of every axis, at most `lines` of the former.
std::string describe(const Mesh& mesh, int lines = 64);
/// {"axes": [{"name": "pp", "size": 2}, ...], "ranks": 8}
nlohmann::ordered_json to_json(const Mesh& mesh);
Mesh mesh_from_json(const nlohmann::ordered_json& json);

// Sets of mesh axes and of parts of axes: what two of them share, and what is left of one.
//
// The ranks along "dp" are those along "dp%4" times those along "dp/4", so a set of axes is a set of factors of the
// ranks. Results name as few parts as possible, in the order of the mesh, inner parts first: "dp%4" with "dp/4" is
// "dp". Where two sets cut one axis so that neither cut divides the other ("dp%4" and "dp%6" of 12), a ConfigError says
// so. mesh_axes.cpp

/// In both: of "dp tp" and "dp%4" that is "dp%4".
AxisNames intersect(const Mesh& mesh, const AxisNames& a, const AxisNames& b);
/// In one of them or in both.
AxisNames unite(const Mesh& mesh, const AxisNames& a, const AxisNames& b);
/// In the first and not in the second: of "dp tp" and "dp%4 pp" that is "dp/4 tp".
AxisNames subtract(const Mesh& mesh, const AxisNames& a, const AxisNames& b);

/// What is left of `axes` when `used` no longer counts: ("dp tp", "dp%4") leaves "dp/4 tp". ConfigError when `used` is
/// not among them. Parts of one rank are left out.
AxisNames without(const Mesh& mesh, const AxisNames& axes, const std::string& used);

}  // namespace trireme::layout
