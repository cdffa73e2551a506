// Random meshes and layouts, for tests that hold for all of them, and the slow, obvious form of a placement.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/layout/placing.h"

namespace trireme::layout {

/// A sequence of draws.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed, "layout tests") {}
  int below(int n) { return static_cast<int>(random_.below(static_cast<std::uint64_t>(n), next_++)); }
  int between(int low, int high) { return low + below(high - low + 1); }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

/// Up to four axes, 1 to 64 ranks.
inline Mesh random_mesh(Dice& dice) {
  std::vector<Axis> axes;
  int ranks = 1;
  for (const char* name : {"pp", "dp", "cp", "tp"}) {
    if (dice.below(4) == 0) continue;
    const int size = dice.between(1, std::min(6, 64 / ranks));
    ranks *= size;
    axes.push_back({name, size});
  }
  return Mesh(axes);
}

/// 0 to 4 dimensions, some of size 0, 1 or prime.
inline Shape random_shape(Dice& dice) {
  constexpr int kSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13};
  Shape shape(static_cast<std::size_t>(dice.below(5)));
  for (Index& size : shape) size = dice.below(40) == 0 ? 0 : kSizes[dice.below(11)];
  return shape;
}

/// One step of a random build: the same on all ranks.
using Build = std::vector<std::function<void(Placing&)>>;

/// What may happen to a tensor of this shape: splits plain, by blocks or padded, a stage, a partition.
inline Build random_build(Dice& dice, const Mesh& mesh, const Shape& shape) {
  Build build;
  bool fused = false;
  std::vector<bool> split(shape.size());
  AxisNames left;
  for (const Axis& axis : mesh.axes()) {
    const std::string name = axis.name;
    const int what = dice.below(6);
    const auto dimension = shape.empty() ? 0U : static_cast<std::size_t>(dice.below(static_cast<int>(shape.size())));
    if (what == 0) {
      build.push_back([=, at = dice.below(axis.size)](Placing& placing) { placing.only_at(name, at); });
    } else if (what == 1 && !shape.empty()) {
      build.push_back([=](Placing& placing) { placing.split(dimension, name); });
      split[dimension] = true;
    } else if (what == 2 && !shape.empty() && !split[dimension] && !fused) {
      // Copies of units need partitions of equal size everywhere, so q is even where k has fewer units than ranks.
      std::vector<Block> blocks;
      Index rest = shape[dimension];
      if (rest % axis.size == 0 && rest >= 2 * axis.size && axis.size > 1) {
        blocks.push_back({axis.size, axis.size});
        for (const int units : {axis.size % 2 == 0 ? axis.size / 2 : 1, 1}) {
          blocks.push_back({units, units});
        }
        for (const Block& block : blocks) rest -= block.size;
        if (rest < 0) rest += blocks.back().size, blocks.pop_back();
        if (rest % axis.size == 0) {
          blocks.push_back({rest, 0});
        } else {
          blocks = {{shape[dimension], 0}};
        }
      } else {
        const Index first = dice.below(static_cast<int>(rest) + 1);
        blocks = {{first, 0}, {rest - first, 0}};
      }
      build.push_back([=](Placing& placing) { placing.split_blocks(dimension, name, blocks); });
      split[dimension] = fused = true;
    } else if (axis.size > 1) {
      left.push_back(axis.size == 4 && dice.below(2) == 0 ? name + "%2" : name);
    }
  }
  if (!shape.empty() && !split[0] && !left.empty() && dice.below(2) == 0) {
    const int ranks = mesh.size(left[0]);
    const Index rows = (shape[0] + ranks - 1) / ranks * ranks + ranks * dice.below(3);
    build.push_back([rows, name = left[0]](Placing& placing) { placing.split_padded(name, rows); });
    left.erase(left.begin());
  }
  if (dice.below(2) == 0) {
    build.push_back([left, multiple = dice.between(1, 5)](Placing& placing) { placing.partition(left, multiple); });
  }
  return build;
}

inline std::vector<Placement> place_all(const Mesh& mesh, const Shape& shape, const Build& build) {
  return place_all(mesh, "w", shape, [&](Placing& placing) {
    for (const auto& step : build) step(placing);
  });
}

/// The global element at each place of a rank's memory, -1 for padding: every box walked element by element.
inline std::vector<Index> plain_elements(const Placement& placement) {
  std::vector<Index> memory;
  for (const Piece& piece : placement.pieces) {
    for (Index global = 0, all = elements(placement.shape); global < all; ++global) {
      Index rest = global;
      bool inside = true;
      for (std::size_t i = placement.shape.size(); i-- > 0;) {
        const Index index = rest % placement.shape[i];
        rest /= placement.shape[i];
        inside = inside && index >= piece.box.begin[i] && index < piece.box.end[i];
      }
      if (inside) memory.push_back(global);
    }
    memory.insert(memory.end(), static_cast<std::size_t>(piece.padding), -1);
  }
  if (!placement.partition) return memory;
  const auto begin = static_cast<std::size_t>(placement.partition->begin);
  const auto end = static_cast<std::size_t>(placement.partition->end);
  memory.resize(std::max(memory.size(), end), -1);
  return {memory.begin() + static_cast<std::ptrdiff_t>(begin), memory.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace trireme::layout
