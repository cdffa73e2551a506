// parallel/data_parallel.h -- how the copies of a model agree: gradients become one sum, and what copies need not all
// keep, they share out.
//
// Gradients lie in buckets, flat stretches of memory filled in the order in which backward makes them; a bucket is
// summed over ranks in the background as soon as it is full, while backward goes on (Horovod, PyTorch DDP; one pool for
// all of them is GradientFlow's lazy all-reduce). ZeRO (Rajbhandari et al. 2019) cuts each bucket evenly over the ranks
// of `shard`: stage 1 shares out what the optimizer keeps, stage 2 gradients as well, stage 3 weights too, which are
// gathered before a layer runs and freed after. A shard of several ranks with copies across is MiCS and HSDP.
//
// What is summed is the gradient of the loss already divided by the tokens of the whole batch, so the sum is the exact
// mean over tokens, however uneven the ranks' shares are.
//
// With `offload` (Ren et al. 2021, ZeRO-Offload) what this rank keeps and updates lives in host memory: owned() are
// host tensors, a bucket's sum goes there as soon as it has arrived, while backward goes on, and updated() brings new
// weights back. With ZeRO 2 and 3, on one rank too, the device holds no gradients but the buckets under way.
// Depends on: base, comm, device, layout, nn, optim.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/bucket_plan.h"
#include "trireme/parallel/mesh_groups.h"
#include "trireme/parallel/sharded_weights.h"

namespace trireme::parallel {

class DataParallel {
 public:
  /// Parameters have no memory yet, and are frozen or not already. Units in the order of the chain; a parameter belongs
  /// to the first that has it. `apart`: names whose bucket holds nothing else, since ranks with other parameters hold
  /// them too. All are borrowed. On all ranks together.
  DataParallel(std::vector<ShardUnit> units, nn::Params& params, MeshGroups& groups, DataParallelOptions options,
               const std::vector<std::string>& apart = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// What this rank keeps and updates: its shards; the parameters themselves without ZeRO and offload. nn::initialise
  /// or nn::allocate gives those memory that have none yet.
  nn::Params& owned() { return options_.owns_apart() ? shards_ : params_; }

  at::Device device() const { return options_.device; }

  // A step, in this order:
  /// `last`: no later micro adds to any gradient, so buckets may go as they fill.
  void begin_micro(bool last);
  /// A layer has added its part to this gradient.
  void added(nn::Param& param);
  /// The gradients of this key are complete.
  void start(int key);
  /// Gradients of owned() are sums over all ranks. Seconds that this rank waited. A ConfigError names parameters that
  /// no layer of this rank has given a gradient to.
  double finish();
  /// In a recording of the last micro, which must hold all that its sums do on the device. ZeRO 1 at most, no offload:
  /// then gradients lie where they lay. What is summed beyond the data's axes, finish() does after each replay.
  void complete();
  /// Such a recording has run in place of the calls.
  void replayed();
  /// owned() has new numbers: they are on their way to all who compute with them.
  void updated() { weights_->updated(); }
  /// Offload from a GPU: new weights travel while the rest is updated, where updated(param) tells of each one of
  /// owned() that an update has done with.
  bool streams_weights() const { return link_ != nullptr; }
  void updated(const nn::Param& owned) { weights_->updated(owned); }
  /// Offload: until weights that set out before have left the host, where they may then change. On any thread; `sent`
  /// is what sent_weights() gave on the rank's own.
  std::uint64_t sent_weights() const { return link_ ? link_->last_brought() : 0; }
  void wait_until_left(std::uint64_t sent) {
    if (link_) link_->wait_until_left(sent);
  }
  /// Until weights on their way have arrived: before somebody writes into owned() or computed() otherwise.
  void wait_for_weights() { weights_->wait(); }
  /// Offload: somebody goes on reading the gradients of owned(), until this is called again. Theirs is other memory
  /// from now on.
  void hand_over_gradients();
  /// Offload: owned() has numbers that nobody computes with before the next updated(). What they compute with is in
  /// computed(), and is on its way from there to all of them.
  void computed_changed() { weights_->changed_on_device(); }
  /// Offload: what layers compute with, one for each of owned() in its order: this rank's part, on the device.
  std::vector<at::Tensor> computed();

  /// For optim::update; null where this rank's own sums are enough.
  const optim::AcrossRanks* across() { return across_.sum_parts ? &across_ : nullptr; }

  /// Layers that fetch weights when they run: put in place of each unit's (ZeRO, or offload from a GPU). Outlived by
  /// this object.
  std::unique_ptr<nn::Layer> wrap(std::unique_ptr<nn::Layer> layer, std::size_t unit);
  void enter(std::size_t unit, bool backward) { weights_->enter(unit, backward); }
  void leave(std::size_t unit) { weights_->leave(unit); }

  /// Bytes that this rank keeps for all of the run.
  struct Bytes {
    std::int64_t parameters = 0;  ///< in the compute type, as layers use them
    std::int64_t masters = 0;     ///< where they are not the parameters themselves
    std::int64_t gradients = 0;
    std::int64_t buckets = 0;  ///< room for what is on its way or gathered for a while: the most so far
    /// Offload: on the host; none of it is counted above.
    std::int64_t host_masters = 0, host_gradients = 0, host_values = 0;
  };
  Bytes bytes() const;
  const std::vector<Bucket>& buckets() const { return plan_.buckets; }
  /// Elements of owned gradients that are summed beyond the data's axes, over so many ranks.
  std::int64_t extra_elements(int ranks) const;

 private:
  /// What travels is a rounded copy; gradients of 16 bits go as they are.
  bool travels_rounded(const Bucket& bucket) const;
  void provide_gradients();
  void make_across();
  Bucket& bucket_of(const nn::Param& param) { return plan_.buckets[plan_.bucket_of.at(&param)]; }
  void settle_arrived();
  void launch(Bucket& bucket);
  void launch_ready();
  void settle(Bucket& bucket);
  void sum_rest();
  void sum_extras();
  void require_complete() const;

  std::vector<ShardUnit> units_;
  nn::Params& params_;
  MeshGroups& groups_;
  DataParallelOptions options_;
  comm::Group *data_ = nullptr, *shard_ = nullptr, *rest_ = nullptr;  // null: alone
  nn::Params shards_;
  BucketPlan plan_;
  std::unique_ptr<ShardedWeights> weights_;
  std::vector<ExtraSum> extras_;
  BufferPool gradient_pool_;
  std::unique_ptr<HostLink> link_;  // offload from a GPU only; after the pool, which it gives back to
  optim::AcrossRanks across_;
  std::deque<Bucket*> in_flight_;  // ZeRO 2 and 3: sums under way, the oldest first
  std::size_t next_ = 0;           // bucket to be launched, where they go in order
  int micros_ = 0;
  bool last_ = false;
  std::vector<comm::RegisteredBuffer> kept_;  // goes before gradients do
};

}  // namespace trireme::parallel
