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
    each_stretch(call, q.size(1), rows.size(2), [&](const Part& part) {
      const CoreResult result = forward_block(call.shape, part.place, call.context, q.narrow(1, part.at, part.count),
                                              keys_of(rows, 0, part.keys), keys_of(rows, 1, part.keys));
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
    at::Tensor drows = at::zeros(rows.sizes(), rows.options().dtype(sums));  // [2, batch, row, kv heads, head size]
    each_stretch(call, q.size(1), rows.size(2), [&](const Part& part) {
      const auto mine = [&part](const at::Tensor& tensor) { return tensor.narrow(1, part.at, part.count); };
      const at::Tensor keys = keys_of(rows, 0, part.keys), values = keys_of(rows, 1, part.keys);
      CoreGradients block{mine(gradients.q), at::empty(keys.sizes(), keys.options()),
                          at::empty(keys.sizes(), keys.options())};
      backward_block(call.shape, part.place, call.context, block, mine(dout), mine(q), keys, values,
                     {mine(out).contiguous(), lse.narrow(2, part.at, part.count).contiguous()});
      keys_of(drows, 0, part.keys).add_(block.k);
      keys_of(drows, 1, part.keys).add_(block.v);
    });
    // Back to who has the tokens, summed over who saw them.
    std::vector<at::Tensor> blocks;
    for (int rank = 0; rank < split_.outer; ++rank) {
      blocks.push_back(at::stack({take_tokens(drows.select(0, 0), split_.of_outer(rank, rows.size(2))),
                                  take_tokens(drows.select(0, 1), split_.of_outer(rank, rows.size(2)))}));
    }
    const at::Tensor all = at::stack(blocks);
    at::Tensor own = at::empty(blocks[0].sizes(), all.options());
    group_.reduce_scatter(device::to_const_buffer(all), device::to_buffer(own), comm::Reduce::kSum).wait();
    gradients.k.copy_(own.select(0, 0));
    gradients.v.copy_(own.select(0, 1));
  }

 private:
  struct Part {
    std::int64_t at = 0, count = 0;  // of this rank's queries
    TokenRange keys;
    BlockPlace place;
  };

  /// [2, batch, row, kv heads, head size]: keys and values of whole rows, in their order.
  at::Tensor gather(const at::Tensor& k, const at::Tensor& v) const {
    const at::Tensor mine = at::stack({k, v});
    std::vector<std::int64_t> shape{group_.size()};
    shape.insert(shape.end(), mine.sizes().begin(), mine.sizes().end());
    at::Tensor blocks = at::empty(shape, mine.options());
    group_.all_gather(device::to_const_buffer(mine), device::to_buffer(blocks)).wait();
    const std::int64_t length = k.size(1) * group_.size();
    at::Tensor rows = at::empty({2, k.size(0), length, k.size(2), k.size(3)}, mine.options());
    for (int rank = 0; rank < split_.outer; ++rank) {
      std::int64_t at = 0;
      for (const TokenRange& stretch : split_.of_outer(rank, length)) {
        rows.narrow(2, stretch.first, stretch.count).copy_(blocks.select(0, rank).narrow(2, at, stretch.count));
        at += stretch.count;
      }
    }
    return rows;
  }

  static at::Tensor keys_of(const at::Tensor& rows, std::int64_t which, const TokenRange& keys) {
    return rows.select(0, which).narrow(1, keys.first, keys.count);
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
      visit(Part{at, stretch.count, keys, place_in_rows(call.sequence, stretch, keys)});
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
