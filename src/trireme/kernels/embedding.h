// kernels/embedding.h -- rows of a table by number, and the sum of their gradients.
//
// Depends on: base.
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// out[r] = table[ids[r] - first_row], plus `table2[ids2[r]]` where those are defined (learned positions), in one pass;
/// zero for ids outside [first_row, first_row + rows of the table): a slice of a vocabulary. (The second table is added
/// all the same: where slices are summed, one rank alone gives it. A number outside it is a ConfigError; on a GPU its
/// row becomes NaN.) `ids` int64, any shape; out [.., width]; both tables of out's type.
struct EmbeddingForward {
  at::Tensor& out;
  const at::Tensor& ids;
  const at::Tensor& table;
  const at::Tensor& ids2;
  const at::Tensor& table2;
  std::int64_t first_row = 0;
};
void embedding_forward(const EmbeddingForward& call);

/// dtable[ids[r] - first_row] += dout[r] for ids of this slice, rows of one id in ascending r whatever the number of
/// threads. dtable is float (double); or of dout's own 16 bits, and then a row is added up in float and rounded once.
void embedding_backward(at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dout, std::int64_t first_row);

}  // namespace trireme::kernels
