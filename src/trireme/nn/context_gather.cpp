// Llama 3's way: keys and values of all ranks are gathered, then each rank computes its queries' rows by itself.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/nn/context_core.h"

namespace trireme::nn {
namespace {

class GatherCore final : public ContextCore {
 public:
  GatherCore(const TokenSplit& split, comm::Group& group) : split_(split), group_(group) {}

  CoreOutput forward(const CoreCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    const at::Tensor rows = gather(k, v);
    std::vector<at::Tensor> outs, lses;
    each_stretch(call, q.size(1), rows.size(1), [&](const Part& part) {
      const auto [keys, values] = part.seen_in(rows, k.size(3));
      const CoreResult result =
          forward_block(call.shape, part.place, call.context, q.narrow(1, part.at, part.count), keys, values);
      outs.push_back(result.out);
      lses.push_back(result.lse);
    });
    const at::Tensor out = at::cat(outs, 1);
    return {out, {q, k, v, out, at::cat(lses, 2)}};
  }

  void backward(const CoreCall& call, CoreGradients& gradients, const at::Tensor& dout,
                const SavedCore& kept) override {
    const at::Tensor &q = kept.q, &k = kept.k, &v = kept.v, &out = kept.out, &lse = kept.lse;
    const at::Tensor rows = gather(k, v);
    const auto sums = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor drows = at::zeros(rows.sizes(), rows.options().dtype(sums));
    each_stretch(call, q.size(1), rows.size(1), [&](const Part& part) {
      const auto mine = [&part](const at::Tensor& tensor) { return tensor.narrow(1, part.at, part.count); };
      const auto [keys, values] = part.seen_in(rows, k.size(3));
      CoreGradients block{mine(gradients.q), at::empty(keys.sizes(), keys.options()),
                          at::empty(values.sizes(), values.options())};
      backward_block(call.shape, part.place, call.context, block, mine(dout), mine(q), keys, values,
                     {mine(out).contiguous(), lse.narrow(2, part.at, part.count).contiguous()});
      const auto [dkeys, dvalues] = part.seen_in(drows, k.size(3));
      dkeys.add_(block.k);
      dvalues.add_(block.v);
    });
    // Back to who has the tokens, summed over who saw them.
    std::vector<at::Tensor> blocks;
    blocks.reserve(static_cast<std::size_t>(split_.outer));
    for (int rank = 0; rank < split_.outer; ++rank) {
      blocks.push_back(take_tokens(drows, split_.of_outer(rank, rows.size(1))));
    }
    const at::Tensor all = at::stack(blocks);
    at::Tensor own = at::empty(blocks[0].sizes(), all.options());
    group_.reduce_scatter(device::to_const_buffer(all), device::to_buffer(own), comm::Reduce::kSum).wait();
    const auto [dkeys, dvalues] = split_key_values(own, k.size(3));
    gradients.k.copy_(dkeys);
    gradients.v.copy_(dvalues);
  }

 private:
  struct Part {
    std::int64_t at = 0, count = 0;  // of this rank's queries
    TokenRange keys;
    BlockPlace place;
    KeyValues seen_in(const at::Tensor& rows, std::int64_t qk_head_dim) const {
      return split_key_values(rows.narrow(1, keys.first, keys.count), qk_head_dim);
    }
  };

  /// Keys and values of whole rows, in their order: [batch, row, kv heads, key size + value size].
  at::Tensor gather(const at::Tensor& k, const at::Tensor& v) const {
    const at::Tensor mine = at::cat({k, v}, 3);
    std::vector<std::int64_t> shape{group_.size()};
    shape.insert(shape.end(), mine.sizes().begin(), mine.sizes().end());
    at::Tensor blocks = at::empty(shape, mine.options());
    group_.all_gather(device::to_const_buffer(mine), device::to_buffer(blocks)).wait();
    const std::int64_t length = k.size(1) * group_.size();
    at::Tensor rows = at::empty({mine.size(0), length, mine.size(2), mine.size(3)}, mine.options());
    for (int rank = 0; rank < split_.outer; ++rank) {
      std::int64_t at = 0;
      for (const TokenRange& stretch : split_.of_outer(rank, length)) {
        rows.narrow(1, stretch.first, stretch.count).copy_(blocks.select(0, rank).narrow(1, at, stretch.count));
        at += stretch.count;
      }
    }
    return rows;
  }

  /// This rank's queries stretch by stretch, each with the keys that it may see.
  template <typename Visit>
  void each_stretch(const CoreCall& call, std::int64_t queries, std::int64_t length, const Visit& visit) const {
    std::int64_t at = 0;
    for (const TokenRange& stretch : split_.of_outer(split_.outer_rank, length)) {
      TokenRange keys{0, length};
      if (call.shape.causal) keys.count = stretch.first + stretch.count;
      if (call.shape.window > 0) {
        keys.first = std::max<std::int64_t>(0, stretch.first - call.shape.window + 1);
        if (!call.shape.causal) {
          keys.count = std::min(length, stretch.first + stretch.count - 1 + call.shape.window);
        }
        keys.count -= keys.first;
      }
      visit(Part{at, stretch.count, keys, place_in_rows(call.sequence, length, stretch, keys)});
      at += stretch.count;
    }
    TRIREME_CHECK(at == queries, "{} queries where {} were expected", queries, at);
  }

  TokenSplit split_;
  comm::Group& group_;
};

}  // namespace

std::unique_ptr<ContextCore> make_gather_core(const TokenSplit& split, comm::Group& group) {
  return std::make_unique<GatherCore>(split, group);
}

KeyValues split_key_values(const at::Tensor& both, std::int64_t qk_head_dim) {
  return {both.narrow(3, 0, qk_head_dim), both.narrow(3, qk_head_dim, both.size(3) - qk_head_dim)};
}

std::unique_ptr<ContextCore> make_context_core(const ParallelContext& parallel) {
  std::unique_ptr<ContextCore> core;
  if (parallel.tokens.outer > 1) {
    core = parallel.context == spec::ContextKind::kRing ? make_ring_core(parallel.tokens, *parallel.ring)
                                                        : make_gather_core(parallel.tokens, *parallel.ring);
  }
  if (parallel.tokens.inner > 1) core = make_ulysses_core(*parallel.heads, std::move(core));
  return core;
}

}  // namespace trireme::nn
