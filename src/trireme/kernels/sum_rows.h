// kernels/sum_rows.h -- the sum of a matrix's rows: the gradient of a bias.
//
// Depends on: base.
#pragma once

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// totals[c] += the sum of column c of x [rows, width]; with `overwrite` what was there does not count. totals are
/// float (double for double). x is float, double, bfloat16 or half with contiguous rows. The same bits whatever the
/// number of threads.
void add_row_sum(at::Tensor& totals, const at::Tensor& x, bool overwrite = false);

}  // namespace trireme::kernels
