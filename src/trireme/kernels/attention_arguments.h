// kernels/attention_arguments.h -- what attention may be given: every shape, type and stride, before a body runs.
//
// A ConfigError names the tensor, what it is and what it must be.
// Depends on: attention.
#pragma once

#include "trireme/kernels/attention.h"
#include "trireme/kernels/cpu/attention_problem.h"

namespace trireme::kernels {

/// Every tensor of one call; those of the other pass are null.
struct AttentionArguments {
  const at::Tensor &q, &k, &v, &out, &lse;
  const at::Tensor *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

void require_attention(const AttentionArguments& arguments, const Attention& options);
/// Of attention_merge.
void require_mergeable(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& other_out,
                       const at::Tensor& other_lse);

/// Of tensors that were checked before.
cpu::AttentionType attention_type(const at::Tensor& q);

}  // namespace trireme::kernels
