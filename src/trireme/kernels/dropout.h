// kernels/dropout.h -- dropout whose draw for each element is a function of (seed, name, step, global index).
//
// The same elements fall whatever the layout, the order of calls or the number of threads, and a recomputed layer drops
// what it dropped before without a saved mask. A draw is 32 random bits against an integer threshold.
// Depends on: base.
#pragma once

#include <array>
#include <cstdint>

#include "trireme/base/random.h"

namespace at {
class Tensor;
}

namespace trireme::kernels {

struct Dropout {
  Random stream;  ///< of this layer and step
  double p = 0;   ///< in [0, 1): the share that falls; the rest is divided by 1 - p
  /// On a GPU: int32 [4], dropout_words() of the stream in its memory, where another step's may be put. Null: as given.
  const at::Tensor* words = nullptr;
};

/// What the draws of a stream are made of.
std::array<std::uint32_t, 4> dropout_words(const Random& stream);

/// x [rows, width] in place, any stride between rows; what falls is 0, whatever it was. `row_index` int64 [rows]
/// numbers the rows globally: the draw of (r, c) is number row_index[r] * columns_total + first_column + c, so that a
/// slice of the columns draws its own draws. The backward pass is the same call on the gradient.
void dropout_(at::Tensor& x, const Dropout& dropout, const at::Tensor& row_index, std::int64_t first_column,
              std::int64_t columns_total);

/// For probabilities inside attention: draws by (sample, head, query position, key position).
struct AttentionDropout {
  Random stream;
  double p = 0;
  const at::Tensor* samples = nullptr;  ///< int64 [batch]: each row's global sample number
  std::int64_t first_head = 0;          ///< global number of the first head, where heads are split
};

}  // namespace trireme::kernels
