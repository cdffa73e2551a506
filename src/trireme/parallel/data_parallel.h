// parallel/data_parallel.h -- how the copies of a model agree: gradients become one sum, and what copies need not all
// keep, they share out.
//
// Gradients lie in buckets, flat stretches of memory filled in the order in which backward makes them; a bucket is
// summed over ranks in the background as soon as it is full, while backward goes on (Horovod, PyTorch DDP; one pool for
// all of them is GradientFlow's lazy all-reduce). Over which ranks, the placements of its parameters say
// (bucket.h); how, a BucketReducer does. ZeRO (Rajbhandari et al. 2019) cuts each bucket evenly over the ranks of
// `shard`: stage 1 shares out what the optimizer keeps, stage 2 gradients as well, stage 3 weights too, which are
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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/first_micro_norms.h"
#include "trireme/parallel/gradient_buckets.h"
#include "trireme/parallel/mesh_groups.h"
#include "trireme/parallel/sharded_weights.h"
#include "trireme/parallel/slice_reduction.h"

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
  nn::Params& owned() { return options_.has_separate_shards() ? shards_ : params_; }

  at::Device device() const { return options_.device; }

  // A step, in this order:
  /// fp16: what the loss is multiplied by, before the first launch.
  void set_loss_scale(double scale) { gradients_->reducer().set_loss_scale(scale); }
  /// `last`: no later micro adds to any gradient, so buckets may go as they fill.
  void begin_micro(bool last) { gradients_->begin_micro(last); }
  /// A layer has added its part to this gradient.
  void added(nn::Param& param) { gradients_->added(param); }
  /// Before added(), in a pipeline, where micro-batches overlap: whose part it is.
  void added_by(const nn::Param& param, bool first_micro) {
    if (first_micro_ && first_micro_->overlaps()) first_micro_->added(param, first_micro);
  }
  /// A backward of units of this key is over, on all ranks that share them: with find_unused nobody waits any longer
  /// for what it left out.
  void end_pass(int key = 0) { gradients_->end_pass(key); }
  /// The gradients of this key are complete.
  void start(int key) { gradients_->start(key); }
  /// Gradients of owned() are sums over all ranks. Seconds that this rank waited. A ConfigError names parameters that
  /// no layer of this rank has given a gradient to.
  double finish();
  /// In place of finish(): gradients stay this rank's own, and no other rank takes part. Not with ZeRO.
  void finish_alone();
  /// In a recording of the last micro, which must hold all that its sums do on the device. ZeRO 1 at most, no offload:
  /// then gradients lie where they lay. What is summed beyond the data's axes, finish() does after each replay.
  void complete() { gradients_->complete(); }
  /// Such a recording has run in place of the calls.
  void replayed() { gradients_->replayed(); }
  /// The update by these gradients was taken: what their reduction leaves for the next step (residuals) is kept. A step
  /// without this call leaves no trace there. Before updated().
  void step_taken(double learning_rate = 0) { gradients_->step_taken({owned(), learning_rate}); }
  /// owned() has new numbers: they are on their way to all who compute with them.
  void updated() { weights_->updated(); }
  /// Offload from a GPU: new weights travel while the rest is updated, where updated(param) tells of each one of
  /// owned() that an update has done with.
  bool streams_weights() const { return link_ != nullptr; }
  void updated(const nn::Param& owned) { weights_->updated(owned); }
  /// Offload: until weights that set out before have left the host, where they may then change. On any thread; `sent`
  /// is what sent_weights() gave on the rank's own.
  std::uint64_t sent_weights() const { return link_ ? link_->last_upload() : 0; }
  void wait_until_copied(std::uint64_t sent) {
    if (link_) link_->wait_until_copied(sent);
  }
  /// Copies between GPU and host: gradients out, weights in. Offload from a GPU only.
  std::optional<QueueReading> host_copies() { return link_ ? std::optional(link_->queue()) : std::nullopt; }
  // Versions of weights beside the present one (pipelines that update while micro-batches are in flight).
  /// Whether what this rank updates is not what layers compute with.
  bool has_separate_shards() const { return options_.has_separate_shards(); }
  /// ZeRO 3: a version is this rank's parts of it, which are gathered as the present ones are.
  bool shards_versions() const { return options_.zero == 3; }
  /// ZeRO 1 and 2, offload: whole copies of what ranks make of their shards (predicted weights), in the compute type.
  /// `make` is asked for this rank's part of each parameter of the key, `take` given all of it. On all ranks together.
  void gather_made(int key, const ShardedWeights::MakePart& make,
                   const std::function<void(const nn::Param& param, const at::Tensor& whole)>& take) {
    weights_->gather_made(key, make, take);
  }
  /// ZeRO 3: this rank's parts of the present weights of the key, bucket by bucket; borrowed memory.
  std::vector<at::Tensor> version_parts(int key) const { return weights_->version_parts(key); }
  /// ZeRO 3: as gather_made(), into memory such as version_parts() gives.
  void make_version(int key, const ShardedWeights::MakePart& make, std::vector<at::Tensor>& parts) const {
    weights_->make_version(key, make, parts);
  }
  /// ZeRO 3, between passes: until the next call units of the key gather these; null: the present ones.
  void use_version(int key, const std::vector<at::Tensor>* parts) { weights_->use_version(key, parts); }
  /// Until weights on their way have arrived: before somebody writes into owned() or computed() otherwise.
  void wait_for_weights() { weights_->wait(); }
  /// Whether gradients of owned() lie elsewhere than those that layers add to.
  bool has_separate_gradients() const { return options_.has_separate_gradients(); }
  /// With separate gradients: somebody goes on reading those of owned(), until this is called again. Theirs is other
  /// memory from now on.
  void swap_gradient_buffers() { gradients_->swap_buffers(); }
  /// What layers have added since counts for nothing, and owned() has the gradients of before again. On all ranks
  /// together.
  void restore_gradient_buffers() { gradients_->restore_buffers(); }
  /// Offload: owned() has numbers that nobody computes with before the next updated(). What they compute with is in
  /// computed(), and is on its way from there to all of them.
  void computed_changed() { weights_->changed_on_device(); }
  /// Offload: what layers compute with, one for each of owned() in its order: this rank's part, on the device.
  std::vector<at::Tensor> computed();

  /// For optim::update; null where this rank's own sums are enough.
  const optim::AcrossRanks* across() { return across_.sum_parts ? &across_ : nullptr; }
  /// With late updates: the same sums over other groups, for the thread that makes them.
  const optim::AcrossRanks* late_across() { return late_across_.sum_parts ? &late_across_ : nullptr; }

  /// From now on the norms of each step's first micro-batch are taken, before sums over ranks; on all ranks together.
  void measure_first_micro(MeshGroups& groups, FirstMicroOptions options = {});
  /// After finish(): of each trainable parameter, the sum of squares of the gradient that the first micro-batch of each
  /// data-parallel rank gave, times that rank's factor, summed over them. On all ranks together.
  std::vector<double> first_micro_squares(FirstMicroFactors factors);
  /// FirstMicroNorms::of_experts.
  const std::vector<bool>& first_micro_of_experts() const { return first_micro_->of_experts(); }
  /// Who is to see what the first micro-batch adds, where others overlap with it; null: nobody.
  nn::GradientWatch* first_micro_watch() {
    return first_micro_ && first_micro_->overlaps() ? first_micro_.get() : nullptr;
  }

  /// Layers that fetch weights when they run: put in place of each unit's (ZeRO, or offload from a GPU). Outlived by
  /// this object.
  std::unique_ptr<nn::Layer> wrap(std::unique_ptr<nn::Layer> layer, std::size_t unit);
  /// Units that are not run from now on, until told otherwise: progressive layer dropping.
  void skip_units(std::vector<bool> units) { weights_->skip(std::move(units)); }
  void enter(std::size_t unit, bool backward) { weights_->enter(unit, backward); }
  void leave(std::size_t unit) { weights_->leave(unit); }

  /// Bytes that this rank keeps for all of the run.
  struct Bytes {
    std::int64_t parameters = 0;  ///< in the compute type, as layers use them
    std::int64_t masters = 0;     ///< where they are not the parameters themselves
    std::int64_t gradients = 0;
    std::int64_t buckets = 0;  ///< room for what is on its way or gathered for a while: the most so far
    std::int64_t reducer = 0;  ///< what the reduction of gradients keeps from step to step
    /// Offload: on the host; none of it is counted above.
    std::int64_t host_masters = 0, host_gradients = 0, host_values = 0;
  };
  Bytes bytes() const;
  const std::vector<Bucket>& buckets() const { return plan_.buckets; }
  /// What units need of buckets: one for each unit and bucket of it.
  struct BucketUse {
    std::size_t bucket = 0;
    int key = 0;  ///< of the unit
  };
  std::vector<BucketUse> bucket_uses() const;
  const BucketReducer& reducer() const { return gradients_->reducer(); }
  /// Where the moments of an owned parameter lie in checkpoints: where copies update by themselves, side by side.
  layout::Placement placement_of_moments(const nn::Param& owned) const;
  /// Elements of owned gradients that are summed along axes beyond their bucket's, over so many ranks.
  std::int64_t slice_elements(int ranks) const;
  /// What the reduction of gradients depends on from step to step; nothing where it is dense.
  void add_state(nn::State& state) { gradients_->add_state(state); }
  /// The state was read from a checkpoint, owned()'s masters among it. Before they are published.
  void loaded() { gradients_->reducer().loaded(owned()); }
  /// The optimizer of owned(), before the first step; borrowed.
  void attach(optim::Optimizer& optimizer) { gradients_->reducer().attach(optimizer); }

 private:
  void make_bucket_groups(MeshGroups& groups);

  std::vector<ShardUnit> units_;
  nn::Params& params_;
  DataParallelOptions options_;
  layout::Mesh mesh_;
  int rank_ = 0;
  nn::Params shards_;
  BucketPlan plan_;
  std::unique_ptr<GradientBuckets> gradients_;
  std::unique_ptr<HostLink> link_;  // offload from a GPU only; goes before gradients_, whose memory it gives back
  std::unique_ptr<ShardedWeights> weights_;
  std::vector<SliceReduction> slices_;
  optim::AcrossRanks across_, late_across_;
  std::unique_ptr<FirstMicroNorms> first_micro_;  // where asked for
};

}  // namespace trireme::parallel
