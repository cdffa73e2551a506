// Random meshes, for tests that hold for all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/layout/mesh.h"

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

}  // namespace trireme::layout
