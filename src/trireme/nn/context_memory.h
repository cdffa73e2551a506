// nn/context_memory.h -- rows that ranks share, whole again: what cross-attention asks for of an encoder's output.
//
// Ranks of context parallelism have some tokens of both streams. Queries of the decoder's see the encoder's of all, so
// their keys and values are gathered, whatever the ranks' way of self-attention is; gradients go back to who has the
// tokens, summed over who saw them.
// Depends on: base, comm, device.
#pragma once

#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

/// [batch, tokens, ..] of this rank's tokens to [batch, row, ..], in the order of the row. On all ranks of the row.
at::Tensor gather_rows(const ParallelContext& parallel, const at::Tensor& mine);
/// The other way: sums over ranks, of this rank's tokens.
at::Tensor reduce_rows(const ParallelContext& parallel, const at::Tensor& rows);

}  // namespace trireme::nn
