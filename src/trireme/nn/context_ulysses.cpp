// Ulysses: before attention ranks trade tokens for heads, so that each has all tokens for some heads; after it, back.
//
// Each of q, k, v and the output moves once: 4 (p - 1)/p of a rank's tokens times hidden_size. Where there are fewer
// heads of keys than ranks, a head goes to all ranks whose queries share it, and their gradients are summed.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/nn/context_core.h"

namespace trireme::nn {
namespace {

class UlyssesCore final : public ContextCore {
 public:
  UlyssesCore(comm::Group& group, std::unique_ptr<ContextCore> inner) : group_(group), inner_(std::move(inner)) {}

  CoreOutput forward(const CoreCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    TRIREME_CHECK(q.size(2) % group_.size() == 0, "{} heads for {} ranks that trade them", q.size(2), group_.size());
    const at::Tensor queries = to_heads(q), keys = to_heads(spread(k)), values = to_heads(spread(v));
    const AttentionShape shape = inside(call.shape, queries, keys);
    SavedCore kept;
    if (inner_) {
      kept = inner_->forward({shape, call.sequence, call.context}, queries, keys, values).kept;
    } else {
      CoreResult result = forward_block(shape, whole_rows(call, queries), call.context, queries, keys, values);
      kept = {queries, keys, values, std::move(result.out), std::move(result.lse)};
    }
    return {to_tokens(kept.out), std::move(kept)};
  }

  void backward(const CoreCall& call, CoreGradients& gradients, const at::Tensor& dout,
                const SavedCore& kept) override {
    const AttentionShape shape = inside(call.shape, kept.q, kept.k);
    const at::Tensor douts = to_heads(dout);
    CoreGradients of_heads{at::empty(kept.q.sizes(), kept.q.options()), at::empty(kept.k.sizes(), kept.k.options()),
                           at::empty(kept.v.sizes(), kept.v.options())};
    if (inner_) {
      inner_->backward({shape, call.sequence, call.context}, of_heads, douts, kept);
    } else {
      backward_block(shape, whole_rows(call, kept.q), call.context, of_heads, douts, kept.q, kept.k, kept.v,
                     {kept.out, kept.lse});
    }
    gradients.q.copy_(to_tokens(of_heads.q));
    gradients.k.copy_(kv_to_tokens(of_heads.k, gradients.k.size(2)));
    gradients.v.copy_(kv_to_tokens(of_heads.v, gradients.v.size(2)));
  }

 private:
  /// Of the heads that this rank gets.
  AttentionShape inside(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k) const {
    AttentionShape out = shape;
    out.num_heads = q.size(2);
    out.num_kv_heads = k.size(2);
    out.first_head += group_.rank() * out.num_heads;
    return out;
  }

  static BlockPlace whole_rows(const CoreCall& call, const at::Tensor& q) {
    const TokenRange all{0, q.size(1)};
    return place_in_rows(call.sequence, all.count, all, all);
  }

  /// As many heads of keys as ranks want: each as often as ranks share it.
  at::Tensor spread(const at::Tensor& k) const {
    const std::int64_t ranks = group_.size(), heads = k.size(2);
    if (heads % ranks == 0) return k;
    TRIREME_CHECK(ranks % heads == 0, "{} heads of keys for {} ranks", heads, ranks);
    return k.unsqueeze(3)
        .expand({k.size(0), k.size(1), heads, ranks / heads, k.size(3)})
        .reshape({k.size(0), k.size(1), ranks, k.size(3)});
  }

  /// [batch, tokens, heads, size] of this rank's tokens to [batch, ranks * tokens, heads / ranks, size].
  at::Tensor to_heads(const at::Tensor& x) const {
    const std::int64_t ranks = group_.size(), batch = x.size(0), tokens = x.size(1), heads = x.size(2) / ranks;
    const at::Tensor out = x.reshape({batch, tokens, ranks, heads, x.size(3)}).permute({2, 0, 1, 3, 4}).contiguous();
    at::Tensor in = at::empty(out.sizes(), out.options());
    group_.all_to_all(device::to_const_buffer(out), device::to_buffer(in)).wait();
    return in.transpose(0, 1).contiguous().view({batch, ranks * tokens, heads, x.size(3)});
  }

  /// The other way.
  at::Tensor to_tokens(const at::Tensor& x) const {
    const std::int64_t ranks = group_.size(), batch = x.size(0), tokens = x.size(1) / ranks, heads = x.size(2);
    const at::Tensor out = x.reshape({batch, ranks, tokens, heads, x.size(3)}).transpose(0, 1).contiguous();
    at::Tensor in = at::empty(out.sizes(), out.options());
    group_.all_to_all(device::to_const_buffer(out), device::to_buffer(in)).wait();
    return in.permute({1, 2, 0, 3, 4}).contiguous().view({batch, tokens, ranks * heads, x.size(3)});
  }

  at::Tensor kv_to_tokens(const at::Tensor& dk, std::int64_t num_kv_heads) const {
    const at::Tensor all = to_tokens(dk);
    if (all.size(2) == num_kv_heads) return all;
    const auto sums = all.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::sum(all.view({all.size(0), all.size(1), num_kv_heads, -1, all.size(3)}), {3}, false, sums);
  }

  comm::Group& group_;
  std::unique_ptr<ContextCore> inner_;
};

}  // namespace

std::unique_ptr<ContextCore> make_ulysses_core(comm::Group& group, std::unique_ptr<ContextCore> inner) {
  return std::make_unique<UlyssesCore>(group, std::move(inner));
}

}  // namespace trireme::nn
