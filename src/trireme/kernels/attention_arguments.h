// kernels/attention_arguments.h -- a call of attention before a body runs: every shape, type and stride is checked, and
// its mask becomes ranges of keys.
//
// A ConfigError names the tensor, what it is and what it must be. Causal masks, windows and packed documents each leave
// a query one run of keys, and so do they together.
// Depends on: attention.
#pragma once

#include <cstdint>
#include <vector>

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

struct AttentionMask {
  std::int64_t queries = 0, keys = 0;
  bool causal = false;
  std::int64_t window = 0;                            ///< 0: none
  std::int64_t query_position = 0, key_position = 0;  ///< of the first
};

/// Query i sees keys [begin[i], end[i]) where begin < end, and none otherwise.
struct VisibleKeys {
  std::vector<std::int32_t> begin, end;
};

/// Appends one batch row's ranges. `query_documents` and `key_documents` are null, or the documents of that row's
/// tokens; a ConfigError when a document's keys are not neighbours.
void append_visible(VisibleKeys& visible, const AttentionMask& mask, const std::int32_t* query_documents,
                    const std::int32_t* key_documents);

}  // namespace trireme::kernels
