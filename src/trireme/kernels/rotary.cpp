#include "trireme/kernels/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cpu/rotary_table.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<RotaryTable> kCompiledRotary{kRotaryPlain, kRotaryV3, kRotaryV4, kRotaryV4Bf16};

void* scratch(std::int64_t bytes) {
  thread_local std::vector<char> room;
  if (room.size() < static_cast<std::size_t>(bytes)) room.resize(static_cast<std::size_t>(bytes));
  return room.data();
}

}  // namespace

void rotary_(at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines, const at::Tensor& positions,
             RotaryPairs pairs, bool inverse) {
  const Arguments arguments("rotary_");
  const Element element = arguments.element(x, "x");
  if (x.dim() != 4 || (x.size(3) > 1 && x.stride(3) != 1)) {
    arguments.refuse(
        fmt::format("{} must be [batch, seq_len, heads, head_dim] with a contiguous last dimension", describe(x, "x")));
  }
  for (const auto& [table, name] : {std::pair{&cosines, "cosines"}, std::pair{&sines, "sines"}}) {
    arguments.sums(*table, name, cosines.numel(), element);
    if (!table->defined() || table->dim() != 2 || table->sizes() != cosines.sizes()) {
      arguments.refuse(fmt::format("{} must be [positions, rotated / 2], as cosines are", describe(*table, name)));
    }
  }
  const std::int64_t rotated = 2 * cosines.size(1);
  if (rotated > x.size(3)) {
    arguments.refuse(fmt::format("{} rotate {} elements of a head, but {} has heads of {}",
                                 describe(cosines, "cosines"), rotated, describe(x, "x"), x.size(3)));
  }
  const std::int64_t tokens = x.size(0) * x.size(1);
  const std::int64_t* numbers = arguments.numbers(positions, "positions", tokens);
  for (std::int64_t token = 0; !arguments.on_gpu() && token < tokens; ++token) {
    if (numbers[token] < 0 || numbers[token] >= cosines.size(0)) {
      arguments.refuse(fmt::format("positions[{}] is {}, but {} have rows 0 to {}", token, numbers[token],
                                   describe(cosines, "cosines"), cosines.size(0) - 1),
                       "make the tables longer");
    }
  }
  if (x.numel() == 0 || rotated == 0) return;
  const RotaryLoop loop{.x = x.mutable_data_ptr(),
                        .cosines = cosines.const_data_ptr(),
                        .sines = sines.const_data_ptr(),
                        .positions = numbers,
                        .sequence = x.size(1),
                        .heads = x.size(2),
                        .rotated = rotated,
                        .batch_stride = x.stride(0),
                        .sequence_stride = x.stride(1),
                        .head_stride = x.stride(2),
                        .neighbours = pairs == RotaryPairs::kNeighbours,
                        .inverse = inverse,
                        .scratch = scratch,
                        .table_rows = cosines.size(0)};
  if (arguments.on_gpu()) return check_cuda(cuda().rotary(loop, element, tokens, cuda_stream()), "rotary_");
  const auto rotate = kCompiledRotary.pick().rotate[static_cast<int>(element)];
  at::parallel_for(0, tokens, rows_worth_a_thread(x.size(2) * rotated),
                   [&](std::int64_t begin, std::int64_t end) { rotate(loop, begin, end); });
}

}  // namespace trireme::kernels
