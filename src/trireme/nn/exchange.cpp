#include "trireme/nn/exchange.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::nn {
namespace {

/// [ranks, batch, part, hidden] as [batch, ranks * part, hidden].
at::Tensor side_by_side(const at::Tensor& blocks) {
  const std::int64_t ranks = blocks.size(0), batch = blocks.size(1), part = blocks.size(2), hidden = blocks.size(3);
  if (batch == 1) return blocks.view({1, ranks * part, hidden});
  return blocks.transpose(0, 1).reshape({batch, ranks * part, hidden});
}

/// The other way; contiguous.
at::Tensor in_blocks(const at::Tensor& whole, std::int64_t ranks) {
  const std::int64_t batch = whole.size(0), part = whole.size(1) / ranks, hidden = whole.size(2);
  TRIREME_CHECK(part * ranks == whole.size(1), "{} tokens for {} ranks", whole.size(1), ranks);
  return whole.reshape({batch, ranks, part, hidden}).transpose(0, 1).contiguous();
}

/// Numbers of the other ranks, the next first: no two ranks begin with the same.
std::vector<int> others(const comm::Group& group) {
  std::vector<int> ranks;
  for (int i = 1; i < group.size(); ++i) ranks.push_back((group.rank() + i) % group.size());
  return ranks;
}

}  // namespace

PendingAllGather::PendingAllGather(const at::Tensor& part, comm::Group& group) : part_(part.contiguous()) {
  blocks_ = at::empty({group.size(), part.size(0), part.size(1), part.size(2)}, part.options());
  work_ = group.all_gather(device::to_const_buffer(part_), device::to_buffer(blocks_));
}

at::Tensor PendingAllGather::wait() {
  work_.wait();
  part_ = at::Tensor();
  return side_by_side(std::exchange(blocks_, at::Tensor()));
}

at::Tensor all_gather_tokens(const at::Tensor& part, comm::Group& group) {
  return PendingAllGather(part, group).wait();
}

void sum_over(at::Tensor& tensor, comm::Group& group) {
  group.all_reduce(device::to_buffer(tensor), comm::Reduce::kSum).wait();
}

at::Tensor reduce_scatter_tokens(const at::Tensor& whole, comm::Group& group) {
  return PendingReduceScatter(whole, group, /*scatter=*/true).wait();
}

PendingReduceScatter::PendingReduceScatter(at::Tensor tensor, comm::Group& group, bool scatter) {
  if (!scatter) {
    tensor_ = part_ = tensor.contiguous();
    work_ = group.all_reduce(device::to_buffer(tensor_), comm::Reduce::kSum);
    return;
  }
  tensor_ = in_blocks(tensor, group.size());
  part_ = at::empty({tensor_.size(1), tensor_.size(2), tensor_.size(3)}, tensor_.options());
  work_ = group.reduce_scatter(device::to_const_buffer(tensor_), device::to_buffer(part_), comm::Reduce::kSum);
}

at::Tensor PendingReduceScatter::wait() {
  work_.wait();
  tensor_ = at::Tensor();
  return std::move(part_);
}

GatheredGemm all_gather_gemm(const at::Tensor& part, comm::Group& group, bool overlap, const TokenGemm& gemm) {
  if (!overlap) {
    GatheredGemm out{.x = all_gather_tokens(part, group)};
    out.y = gemm(out.x);
    return out;
  }
  const at::Tensor mine = part.contiguous();
  at::Tensor blocks = at::empty({group.size(), part.size(0), part.size(1), part.size(2)}, part.options());
  std::vector<comm::Work> receives(static_cast<std::size_t>(group.size()));
  comm::Batch sends;
  for (const int other : others(group)) {
    at::Tensor block = blocks.select(0, other);
    receives[static_cast<std::size_t>(other)] = group.recv(device::to_buffer(block), other);
  }
  for (const int other : others(group)) sends.add(group.send(device::to_const_buffer(mine), other));
  blocks.select(0, group.rank()).copy_(mine);
  std::vector<at::Tensor> parts(static_cast<std::size_t>(group.size()));
  parts[static_cast<std::size_t>(group.rank())] = gemm(mine);
  // The one before this rank sent to it first.
  for (int i = 1; i < group.size(); ++i) {
    const auto other = static_cast<std::size_t>((group.rank() + group.size() - i) % group.size());
    receives[other].wait();
    parts[other] = gemm(blocks.select(0, static_cast<std::int64_t>(other)));
  }
  sends.commit().wait();
  return {.x = side_by_side(blocks), .y = at::cat(parts, 1)};
}

PendingGemm::PendingGemm(const at::Tensor& whole, comm::Group& group, const TokenGemm& gemm)
    : incoming_(static_cast<std::size_t>(group.size())), receives_(incoming_.size()) {
  const std::int64_t part = whole.size(1) / group.size();
  const auto of_rank = [&](int rank) { return gemm(whole.narrow(1, part * rank, part).contiguous()); };
  for (const int other : others(group)) {
    at::Tensor& sent = outgoing_.emplace_back(of_rank(other).contiguous());
    const auto from = static_cast<std::size_t>((2 * group.rank() + group.size() - other) % group.size());
    incoming_[from] = at::empty(sent.sizes(), sent.options());
    receives_[from] = group.recv(device::to_buffer(incoming_[from]), static_cast<int>(from));
    sends_.add(group.send(device::to_const_buffer(sent), other));
  }
  incoming_[static_cast<std::size_t>(group.rank())] = of_rank(group.rank());
}

at::Tensor PendingGemm::wait() {
  at::Tensor sum;
  for (std::size_t rank = 0; rank < incoming_.size(); ++rank) {  // by rank: the same order in every run
    receives_[rank].wait();
    sum = sum.defined() ? sum.add_(incoming_[rank]) : incoming_[rank];
  }
  sends_.commit().wait();
  return sum;
}

at::Tensor gemm_reduce_scatter(const at::Tensor& whole, comm::Group& group, bool overlap, const TokenGemm& gemm) {
  return overlap ? PendingGemm(whole, group, gemm).wait() : reduce_scatter_tokens(gemm(whole), group);
}

}  // namespace trireme::nn
