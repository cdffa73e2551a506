// nn/exchange.h -- what ranks of a parallel context pass to each other around a GEMM: gathered tokens, sums,
// reduce-scatters.
//
// Tensors are [batch, tokens, hidden_size]; a rank's part is a stretch of the tokens. A gather and a reduce-scatter
// move (p - 1)/p of the whole tensor per rank, a sum twice that. With `overlap` the parts travel one by one while
// others are computed with: a gather starts with what is here, a reduce-scatter with what is wanted elsewhere. Sums
// have a fixed order in either case, so that a run repeats to the bit.
// Depends on: base, comm, device.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::nn {

/// The parts of all ranks, in their order.
at::Tensor all_gather_tokens(const at::Tensor& part, comm::Group& group);
/// Sums over ranks, in place; contiguous.
void sum_over(at::Tensor& tensor, comm::Group& group);
/// Of the sum over ranks, this rank's part.
at::Tensor reduce_scatter_tokens(const at::Tensor& whole, comm::Group& group);

/// A sum under way, of which this rank gets everything or its part.
class PendingReduceScatter {
 public:
  PendingReduceScatter(at::Tensor tensor, comm::Group& group, bool scatter);
  at::Tensor wait();

 private:
  at::Tensor tensor_, part_;
  comm::Work work_;
};

/// A gather under way.
class PendingAllGather {
 public:
  PendingAllGather(const at::Tensor& part, comm::Group& group);
  at::Tensor wait();

 private:
  at::Tensor part_, blocks_;
  comm::Work work_;
};

/// Tokens to tokens, each by itself: [batch, n, in] to [batch, n, out].
using TokenGemm = std::function<at::Tensor(const at::Tensor& tokens)>;
struct GatheredGemm {
  at::Tensor x, y;  ///< what was gathered, and its GEMM
};
GatheredGemm all_gather_gemm(const at::Tensor& part, comm::Group& group, bool overlap, const TokenGemm& gemm);
/// A reduce-scatter of GEMMs in parts: those of other ranks are computed and sent first, then this rank's own; the
/// others' are still on their way when it is made.
class PendingGemm {
 public:
  PendingGemm(const at::Tensor& whole, comm::Group& group, const TokenGemm& gemm);
  at::Tensor wait();

 private:
  std::vector<at::Tensor> incoming_, outgoing_;
  std::vector<comm::Work> receives_;
  comm::Batch sends_;
};
/// This rank's part of the sum over ranks of GEMM(whole).
at::Tensor gemm_reduce_scatter(const at::Tensor& whole, comm::Group& group, bool overlap, const TokenGemm& gemm);

}  // namespace trireme::nn
