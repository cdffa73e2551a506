// kernels/rotary.h -- rotary positions: pairs of a head's dimensions rotated by position x frequency.
//
// Depends on: base.
#pragma once

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// Which numbers of a head form a pair: i and i + d/2 (Llama's published weights) or 2i and 2i + 1 (the paper's).
enum class RotaryPairs { kHalves, kNeighbours };

/// x [batch, seq_len, heads, head_dim] in place, last dimension contiguous, other strides free. `cosines` and `sines`
/// float (double for double) [positions, rotated/2], row p for position p, any scaling included; the first `rotated`
/// numbers of a head turn, the rest stay. `positions` int64 [batch, seq_len]. `inverse` takes the sines
/// negative: back, or the gradient. A position without a row is a ConfigError; on a GPU its token becomes NaN.
void rotary_(at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines, const at::Tensor& positions,
             RotaryPairs pairs, bool inverse);

}  // namespace trireme::kernels
