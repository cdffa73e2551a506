// nn/context_core.h -- attention over rows that several ranks share: each has some tokens and sees those of all.
//
// Three ways. Gather (Llama 3): every rank gets all keys and values. Ring (Liu et al. 2023): blocks of keys and values
// pass from rank to rank while each computes with the one it has, and partial results are joined by their log-sum-exp;
// memory does not grow with the row. Ulysses (Jacobs et al. 2023): ranks trade, so that each has all tokens for some of
// the heads; it may stand around either of the others. All give what one rank would, to rounding.
// One file for each: context_gather.cpp, context_ring.cpp, context_ulysses.cpp.
// Depends on: base, comm, device, kernels.
#pragma once

#include <memory>

#include "trireme/nn/attention_block.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::nn {

/// What holds for all calls of a layer in one pass.
struct CoreCall {
  const AttentionShape& shape;
  const Sequence& sequence;  ///< its documents are of whole rows
  const Context& context;
};

/// What backward wants of a forward pass, as the ranks then had it: of all tokens and some heads, perhaps.
struct SavedCore {
  at::Tensor q, k, v, out, lse;
};
struct CoreOutput {
  at::Tensor out;  ///< [batch, tokens, heads, value size] of this rank's tokens
  SavedCore kept;
};

class ContextCore {
 public:
  virtual ~ContextCore() = default;
  /// q, k, v of this rank's tokens, [batch, tokens, heads, head_dim]; values may have another size than keys.
  virtual CoreOutput forward(const CoreCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;
  virtual void backward(const CoreCall& call, CoreGradients& gradients, const at::Tensor& dout,
                        const SavedCore& kept) = 0;
};

/// By the context-parallel ranks' kind; null where this rank has whole rows. `parallel` is borrowed.
std::unique_ptr<ContextCore> make_context_core(const ParallelContext& parallel);

/// Keys and values that travel together, [batch, tokens, kv heads, key size + value size]: views of either.
struct KeyValues {
  at::Tensor keys, values;
};
KeyValues split_key_values(const at::Tensor& both, std::int64_t qk_head_dim);

// One a file; tokens as `split` says, of which ranks of `group` hold the outer shares.
std::unique_ptr<ContextCore> make_gather_core(const TokenSplit& split, comm::Group& group);
std::unique_ptr<ContextCore> make_ring_core(const TokenSplit& split, comm::Group& group);
/// `inner` computes with the outer share; null: that is the whole row.
std::unique_ptr<ContextCore> make_ulysses_core(comm::Group& group, std::unique_ptr<ContextCore> inner);

}  // namespace trireme::nn
