// Ring attention: while a rank computes with one block of keys and values, the next is on its way.
//
// Forward, ranks - 1 blocks reach each rank, and partial results are joined in float. Backward, the blocks come round
// again, and each is followed by the sum of its gradients, which ends where the block began. Blocks that no query of
// this rank sees are passed on and not computed with.
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

#include "trireme/device/tensor_buffer.h"
#include "trireme/kernels/attention.h"
#include "trireme/nn/context_core.h"

namespace trireme::nn {
namespace {

constexpr int kBlockTag = 1, kGradientTag = 2;

class RingCore final : public ContextCore {
 public:
  RingCore(const TokenSplit& split, comm::Group& group) : split_(split), group_(group) {}

  CoreOutput forward(const CoreCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    const auto sums = sum_type(q);
    CoreResult result{at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options().dtype(sums)),
                      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(sums))};
    result.lse.fill_(-std::numeric_limits<double>::infinity());
    each_block(k, v, [&](int owner, const at::Tensor& block) {
      each_pair(call, q.size(1), owner, [&](const Pair& pair) {
        const auto [keys, values] = pair.keys_in(block, k.size(3));
        const CoreResult part = forward_block(call.shape, pair.place, call.context,
                                              q.narrow(1, pair.query, pair.queries.count), keys, values);
        at::Tensor out = result.out.narrow(1, pair.query, pair.queries.count);
        at::Tensor lse = result.lse.narrow(2, pair.query, pair.queries.count);
        kernels::attention_merge(out, lse, part.out.to(sums), part.lse);
      });
    });
    const at::Tensor rounded = result.out.to(q.scalar_type());
    return {rounded, {q, k, v, rounded, result.lse}};
  }

  void backward(const CoreCall& call, CoreGradients& gradients, const at::Tensor& dout,
                const SavedCore& kept) override {
    const at::Tensor &q = kept.q, &k = kept.k, &v = kept.v;
    const auto sums = sum_type(q);
    at::Tensor dq = at::zeros(q.sizes(), q.options().dtype(sums));
    at::Tensor own;  // of this rank's block, by this rank
    Following following(group_);
    each_block(k, v, [&](int owner, const at::Tensor& block) {
      following.expect(owner, block, sums);
      at::Tensor dblock;  // what the ranks before have added up, which is on its way during the first pair
      each_pair(call, q.size(1), owner, [&](const Pair& pair) {
        const auto mine = [&pair](const at::Tensor& tensor) {
          return tensor.narrow(1, pair.query, pair.queries.count).contiguous();
        };
        const at::Tensor query = mine(q);
        const auto [keys, values] = pair.keys_in(block, k.size(3));
        CoreGradients part{at::empty_like(query), at::empty(keys.sizes(), keys.options()),
                           at::empty(values.sizes(), values.options())};
        backward_block(call.shape, pair.place, call.context, part, mine(dout), query, keys, values,
                       {mine(kept.out), kept.lse.narrow(2, pair.query, pair.queries.count).contiguous()});
        dq.narrow(1, pair.query, pair.queries.count).add_(part.q);
        if (!dblock.defined()) dblock = following.take();
        const auto [dkeys, dvalues] = pair.keys_in(dblock, k.size(3));
        dkeys.add_(part.k);
        dvalues.add_(part.v);
      });
      if (!dblock.defined()) dblock = following.take();
      if (owner == group_.rank()) {
        own = dblock;
      } else {
        following.pass_on(std::move(dblock));
      }
    });
    own.add_(following.come_home(own));
    gradients.q.copy_(dq);
    const auto [dkeys, dvalues] = split_key_values(own, k.size(3));
    gradients.k.copy_(dkeys);
    gradients.v.copy_(dvalues);
  }

 private:
  /// Some queries of this rank and some keys of a block, in the order in which they are held.
  struct Pair {
    std::int64_t query = 0, key = 0;
    TokenRange queries, keys;
    BlockPlace place;
    KeyValues keys_in(const at::Tensor& block, std::int64_t qk_head_dim) const {
      return split_key_values(block.narrow(1, key, keys.count), qk_head_dim);
    }
  };

  /// The sum of a block's gradients, which travels one rank behind it.
  class Following {
   public:
    explicit Following(comm::Group& group) : group_(group) {}
    /// Before a block is computed with. The sum that was sent last leaves first: memory for one more is not there.
    void expect(int owner, const at::Tensor& block, at::ScalarType type) {
      const int size = group_.size(), me = group_.rank();
      const bool first = owner == me || (owner + 1) % size == me;  // else others have added already
      sum_ = at::empty(block.sizes(), block.options().dtype(type));
      if (first) {
        sum_.zero_();
      } else {
        received_ = group_.recv(device::to_buffer(sum_), (me + size - 1) % size, kGradientTag);
      }
      settle();
    }
    /// The sum so far, to add to.
    at::Tensor take() {
      if (received_) received_->wait();
      received_.reset();
      return std::move(sum_);
    }
    void pass_on(at::Tensor dblock) {
      sending_ = std::move(dblock);
      sent_ = group_.send(device::to_const_buffer(sending_), (group_.rank() + 1) % group_.size(), kGradientTag);
    }
    at::Tensor come_home(const at::Tensor& like) {
      at::Tensor rest = at::empty_like(like);
      group_.recv(device::to_buffer(rest), (group_.rank() + group_.size() - 1) % group_.size(), kGradientTag).wait();
      settle();
      return rest;
    }

   private:
    void settle() {
      if (sent_) sent_->wait();
      sent_.reset();
      sending_ = at::Tensor();
    }

    comm::Group& group_;
    at::Tensor sum_, sending_;
    std::optional<comm::Work> received_, sent_;
  };

  static at::ScalarType sum_type(const at::Tensor& q) {
    return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }

  /// Blocks of keys and values (split_key_values) as they come round, this rank's own first.
  template <typename Visit>
  void each_block(const at::Tensor& k, const at::Tensor& v, const Visit& visit) const {
    const int size = group_.size(), me = group_.rank();
    at::Tensor block = at::cat({k, v}, 3);
    for (int step = 0; step < size; ++step) {
      at::Tensor next;
      comm::Batch exchange;
      if (step + 1 < size) {
        next = at::empty_like(block);
        exchange.add(group_.recv(device::to_buffer(next), (me + size - 1) % size, kBlockTag));
        exchange.add(group_.send(device::to_const_buffer(block), (me + 1) % size, kBlockTag));
      }
      visit((me + size - step) % size, block);
      exchange.commit().wait();
      block = std::move(next);
    }
  }

  template <typename Visit>
  void each_pair(const CoreCall& call, std::int64_t tokens, int owner, const Visit& visit) const {
    const std::int64_t length = tokens * split_.outer;
    Pair pair;
    for (const TokenRange& queries : split_.of_outer(split_.outer_rank, length)) {
      pair.key = 0;
      for (const TokenRange& keys : split_.of_outer(owner, length)) {
        if (sees(call.shape, length, queries, keys)) {
          pair.queries = queries;
          pair.keys = keys;
          pair.place = place_in_rows(call.sequence, length, queries, keys);
          visit(pair);
        }
        pair.key += keys.count;
      }
      pair.query += queries.count;
    }
  }

  TokenSplit split_;
  comm::Group& group_;
};

}  // namespace

std::unique_ptr<ContextCore> make_ring_core(const TokenSplit& split, comm::Group& group) {
  return std::make_unique<RingCore>(split, group);
}

}  // namespace trireme::nn
