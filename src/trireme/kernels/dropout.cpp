#include "trireme/kernels/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/dropout_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<DropoutTable> kCompiledDropout{kDropoutPlain, kDropoutV3, kDropoutV4, kDropoutV4Bf16};

}  // namespace

std::array<std::uint32_t, 4> dropout_words(const Random& stream) {
  // A stream of its own under the layer's: the attempt keeps it apart from the numbers of Random::bits.
  return stream.block(Random::Purpose::kBits, 0, /*attempt=*/1);
}

void dropout_(at::Tensor& x, const Dropout& dropout, const at::Tensor& row_index, std::int64_t first_column,
              std::int64_t columns_total) {
  const Arguments arguments("dropout_");
  const Rows rows = arguments.rows(x, "x");
  if (!(dropout.p >= 0 && dropout.p < 1)) {
    arguments.refuse(fmt::format("p is {}, but the share that falls is at least 0 and below 1", dropout.p));
  }
  if (first_column < 0 || first_column + rows.width > columns_total) {
    arguments.refuse(fmt::format("{} has columns {} to {} of {}", describe(x, "x"), first_column,
                                 first_column + rows.width - 1, columns_total));
  }
  const auto words = dropout_words(dropout.stream);
  const double threshold = std::min(std::nearbyint(std::ldexp(dropout.p, 32)), 0x1p32 - 1);
  DropoutLoop loop{.x = rows.data,
                   .row_index = arguments.numbers(row_index, "row_index", rows.rows),
                   .stride = rows.stride,
                   .width = rows.width,
                   .first_column = first_column,
                   .columns_total = columns_total,
                   .key = {words[0], words[1]},
                   .salt = {words[2], words[3]},
                   .threshold = static_cast<std::uint32_t>(threshold),
                   .factor = 1 / (1 - dropout.p)};
  if (dropout.p == 0) return;
  if (arguments.on_gpu()) {
    if (dropout.words != nullptr) {
      loop.words = reinterpret_cast<const std::uint32_t*>(dropout.words->const_data_ptr<std::int32_t>());
    }
    return check_cuda(cuda().dropout(loop, rows.element, rows.rows, cuda_stream()), "dropout_");
  }
  const auto drop = kCompiledDropout.pick().rows[static_cast<int>(rows.element)];
  at::parallel_for(0, rows.rows, rows_worth_a_thread(rows.width * 4),
                   [&](std::int64_t begin, std::int64_t end) { drop(loop, begin, end); });
}

}  // namespace trireme::kernels
