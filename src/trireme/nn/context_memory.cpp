#include "trireme/nn/context_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "trireme/device/tensor_buffer.h"

namespace trireme::nn {
namespace {

/// Each rank's tensor, [ranks, ..].
at::Tensor gather_blocks(comm::Group& group, const at::Tensor& mine) {
  std::vector<std::int64_t> shape{group.size()};
  shape.insert(shape.end(), mine.sizes().begin(), mine.sizes().end());
  at::Tensor blocks = at::empty(shape, mine.options());
  group.all_gather(device::to_const_buffer(mine.contiguous()), device::to_buffer(blocks)).wait();
  return blocks;
}

/// The sum over ranks of what each has for this one, of [ranks, ..].
at::Tensor reduce_blocks(comm::Group& group, const at::Tensor& blocks) {
  at::Tensor own = at::empty(blocks.sizes().slice(1), blocks.options());
  group.reduce_scatter(device::to_const_buffer(blocks), device::to_buffer(own), comm::Reduce::kSum).wait();
  return own;
}

at::Tensor empty_row(const at::Tensor& like, std::int64_t tokens) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[1] = tokens;
  return at::empty(sizes, like.options());
}

}  // namespace

at::Tensor gather_rows(const ParallelContext& parallel, const at::Tensor& mine) {
  const TokenSplit& split = parallel.tokens;
  at::Tensor share = mine;  // of the outer rank, whose inner ranks have neighbouring parts
  if (split.inner > 1) {
    const at::Tensor blocks = gather_blocks(*parallel.heads, mine);
    share = empty_row(mine, mine.size(1) * split.inner);
    for (int rank = 0; rank < split.inner; ++rank)
      share.narrow(1, mine.size(1) * rank, mine.size(1)).copy_(blocks.select(0, rank));
  }
  if (split.outer == 1) return share;
  const at::Tensor blocks = gather_blocks(*parallel.ring, share);
  at::Tensor rows = empty_row(share, share.size(1) * split.outer);
  for (int rank = 0; rank < split.outer; ++rank) {
    std::int64_t at = 0;
    for (const TokenRange& stretch : split.of_outer(rank, rows.size(1))) {
      rows.narrow(1, stretch.first, stretch.count).copy_(blocks.select(0, rank).narrow(1, at, stretch.count));
      at += stretch.count;
    }
  }
  return rows;
}

at::Tensor reduce_rows(const ParallelContext& parallel, const at::Tensor& rows) {
  const TokenSplit& split = parallel.tokens;
  at::Tensor share = rows;
  if (split.outer > 1) {
    std::vector<at::Tensor> blocks;
    for (int rank = 0; rank < split.outer; ++rank)
      blocks.push_back(take_tokens(rows, split.of_outer(rank, rows.size(1))));
    share = reduce_blocks(*parallel.ring, at::stack(blocks));
  }
  if (split.inner == 1) return share;
  const std::int64_t tokens = share.size(1) / split.inner;
  std::vector<at::Tensor> blocks;
  for (int rank = 0; rank < split.inner; ++rank) blocks.push_back(share.narrow(1, tokens * rank, tokens));
  return reduce_blocks(*parallel.heads, at::stack(blocks));
}

}  // namespace trireme::nn
