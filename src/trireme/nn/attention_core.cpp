#include "trireme/nn/attention_core.h"

#include "trireme/base/error.h"
#include "trireme/nn/relative_bias.h"

namespace trireme::nn {
namespace {

BlockPlace whole_rows_of(const Sequence& sequence) {
  return {.query_documents = sequence.documents, .key_documents = sequence.documents};
}

}  // namespace

AttentionCore::AttentionCore(AttentionShape shape, std::unique_ptr<ContextCore> context)
    : shape_(std::move(shape)), context_(std::move(context)) {
  if (!shape_.relative) return;
  TRIREME_CHECK(!shape_.sparse && shape_.window == 0 && shape_.dropout == 0,
                "{}: relative biases are of all keys, without dropout", shape_.name);
  shape_.relative->count_use();
}

PairCost pair_cost(const at::Tensor& q, const at::Tensor& v) {
  return {.heads = q.size(2), .qk_head_dim = q.size(3), .v_head_dim = v.size(3)};
}

TokenSpan all_tokens(const Sequence& sequence, std::int64_t length) {
  return {.count = length, .documents = documents_on_host(sequence)};
}

at::Tensor merge_heads(const at::Tensor& heads) { return heads.view({heads.size(0), heads.size(1), -1}); }

double AttentionCore::flops(const Context& context, std::int64_t batch, std::int64_t tokens,
                            const PairCost& cost) const {
  const Sequence& sequence = sequence_of(context, shape_.stream);
  const Visibility visibility{shape_.causal, shape_.window};
  if (!context_) {
    const TokenSpan rows = all_tokens(sequence, tokens);
    if (shape_.sparse != nullptr)
      return cost.flops(shape_.sparse->pairs(rows, {0, tokens}, batch, shape_.first_head, shape_.num_heads));
    return cost.flops(visible_pairs(visibility, rows, rows, batch));
  }
  // Column by column: shared rows are cut into stretches, and queries of one see keys of all.
  const at::Tensor documents = documents_on_host(sequence);
  const at::Tensor columns = sequence.columns.contiguous();
  const auto* at = columns.const_data_ptr<std::int64_t>();
  double flops = 0;
  for (std::int64_t begin = 0; begin < tokens;) {
    std::int64_t end = begin + 1;
    while (end < tokens && at[end] == at[end - 1] + 1) ++end;
    TokenSpan queries{.first = at[begin], .count = end - begin}, keys{.count = sequence.row_length};
    if (documents.defined()) {
      queries.documents = documents.narrow(1, at[begin], end - begin);
      keys.documents = documents;
    }
    const double pairs =
        shape_.sparse != nullptr
            ? shape_.sparse->pairs({.count = sequence.row_length, .documents = documents}, {at[begin], end - begin},
                                   batch, shape_.first_head, shape_.num_heads)
            : visible_pairs(visibility, queries, keys, batch);
    flops += cost.flops(pairs);
    begin = end;
  }
  return flops;
}

CoreOutput AttentionCore::forward(Context& context, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v) const {
  const Sequence& sequence = sequence_of(context, shape_.stream);
  if (context_) return context_->forward({shape_, sequence, context}, q, k, v);
  auto [out, lse] = forward_block(shape_, whole_rows_of(sequence), context, q, k, v);
  return {out, {q, k, v, out, std::move(lse)}};
}

void AttentionCore::backward(Context& context, CoreGradients& gradients, const at::Tensor& dout,
                             const SavedCore& kept) const {
  const Sequence& sequence = sequence_of(context, shape_.stream);
  if (context_) {
    context_->backward({shape_, sequence, context}, gradients, dout, kept);
  } else {
    backward_block(shape_, whole_rows_of(sequence), context, gradients, dout, kept.q, kept.k, kept.v,
                   {kept.out, kept.lse});
  }
  if (shape_.relative) shape_.relative->added(context);
}

}  // namespace trireme::nn
