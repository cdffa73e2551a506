// parallel/bucket_reducer.h -- how the gradients of a bucket become one sum over ranks: dense, compressed, periodic.
//
// DataParallel says when: buckets are launched in one order on all ranks, while backward goes on. A reducer says how.
// What it keeps from step to step (residuals) belongs to parameters, by name, never to buckets, whose borders change
// with the layout; it goes into checkpoints. residuals.h does that for reducers that feed errors back.
//
// To add one: a file in parallel/compress/ with a class and its make function, and a line in the table of
// bucket_reducer.cpp. Reductions in two levels need none where both are dense: comm's hierarchical algorithm is that.
// Depends on: nn.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/layout/placement.h"

namespace trireme::nn {
class Params;
class State;
}  // namespace trireme::nn

namespace trireme::optim {
class Optimizer;
}

namespace trireme::parallel {

/// A step whose update was taken.
struct TakenStep {
  nn::Params& owned;
  double learning_rate = 0;
};

/// What compression has done on this rank since the run began or went on.
struct CompressionReport {
  std::int64_t rounds = 0;    ///< exchanges that were compressed, or brought weights together
  std::int64_t elements = 0;  ///< that went through them
  double sent_bytes = 0;      ///< by this rank in all steps
  double dense_bytes = 0;     ///< what a dense reduction would have sent in them
  double seconds = 0;         ///< in compressing, decompressing and waiting
  double kernel_seconds = 0;  ///< of them, in compressing and decompressing; on a GPU what the host takes to start it
  double beside_seconds = 0;  ///< of them, beside backward
  double update_seconds = 0;  ///< of them, in rounds that follow an update
  std::int64_t chunks = 0, chunks_sent = 0;  ///< of CSC: those that were looked at, and those that travelled
  std::int64_t copied_elements = 0;          ///< of CSC on a CPU: into messages and out of them, and anywhere else
  /// |Q(c) - c| / |c| of the last round, by parameter; of those methods that quantise.
  std::vector<std::pair<std::string, double>> errors = {};
  double relative_error = 0;  ///< over all of them
};

/// A parameter of this rank as it is compressed.
struct CompressedPart {
  std::string name;
  layout::Placement placement;
  std::int64_t rows = 0, columns = 0;  ///< of this rank's memory
  int shard = 0;                       ///< which part it is, where ranks of a copy hold several: for random draws
  int copies = 1;                      ///< over which it is compressed: of experts fewer than of dense parameters
  bool first = true;                   ///< this rank's is the first of its copies
};

struct Bucket;
struct BucketPlan;
struct DataParallelOptions;
class MeshGroups;

class BucketReducer {
 public:
  BucketReducer() = default;
  virtual ~BucketReducer() = default;
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  /// For --explain: what happens to a gradient, in order.
  virtual std::string description() const = 0;
  /// Bytes that this rank sends for a bucket in a step, of which it is launched so often: with ZeRO 2 and 3 in every
  /// microbatch, else once.
  virtual double sent_bytes(const Bucket& bucket, int launches) const = 0;

  // A step, in this order. Ranks make these calls for the same buckets in the same order, so each of them may
  // communicate, except for arrived() and progress().
  /// Before the first launch; `step` of them were taken so far. Gradients of a step before it that was not taken (NaN
  /// or Inf, a spike of the loss) have left nothing behind: what was kept is as it was before that step.
  virtual void begin_step(std::int64_t /*step*/) {}
  /// From now on gradients are of a loss that was multiplied by this (fp16), and so are their sums.
  virtual void set_loss_scale(double /*scale*/) {}
  /// bucket.sending has this rank's gradients, padding included, and is the reducer's until settle(). Members lie in it
  /// as view_in() says. With ZeRO 2 and 3 each microbatch is launched by itself: what compresses once a step refuses
  /// them.
  virtual void launch(Bucket& bucket) = 0;
  /// Backward has gone on: a reducer that has something to do with what has arrived since does it. Ranks call it at
  /// different times.
  virtual void progress() {}
  /// Whether settle() would neither wait nor communicate. Ranks ask at different times.
  virtual bool arrived(Bucket& /*bucket*/) { return false; }
  /// When it returns, bucket.arriving is the sum over bucket.group: this rank's part with ZeRO, else all of it; in any
  /// floating-point type.
  virtual void settle(Bucket& bucket) = 0;
  /// All buckets are settled, and their sums lie where they belong: in gradient_shard with ZeRO or offload, else in
  /// gradient. What is left is to sum them over bucket.rest.
  virtual void finish(std::span<Bucket> buckets) = 0;
  /// The update by these gradients was taken: what the step leaves is kept from now on. A reducer that lets ranks drift
  /// apart brings weights together here, and raises the versions of those it changes.
  virtual void step_taken(const TakenStep& /*step*/) {}

  /// Whether a step depends on those before it, or on its number: add_state() is then called.
  virtual bool has_state() const { return false; }
  /// What is kept, by parameter name.
  virtual void add_state(nn::State& /*state*/) {}
  /// What was kept has been read from a checkpoint. `owned` has the first copy's weights: a reducer whose ranks differ
  /// gives each its own back.
  virtual void loaded(nn::Params& /*owned*/) {}
  /// The optimizer of these parameters, before the first step; borrowed. For what exchanges its moments.
  virtual void attach(optim::Optimizer& /*optimizer*/) {}
  /// Axes whose ranks may have other weights and moments than each other after a step; empty: all copies are equal.
  virtual layout::AxisNames drift_axes() const { return {}; }
  /// What it has saved so far; null: it does not compress.
  virtual const CompressionReport* report() const { return nullptr; }
  /// What is compressed, parameter by parameter; empty where nothing is.
  virtual std::vector<CompressedPart> compressed_parts() const { return {}; }
  /// Of memory for the whole run.
  virtual std::int64_t bytes() const { return 0; }
  /// Whether launch() and settle() only start work on the device that is the same in every step: CUDA graphs.
  virtual bool can_be_captured() const { return false; }
};

/// What a reducer is made from; all are borrowed. Gradients that last for the whole run (without ZeRO 2 and 3) have
/// memory, shards have none yet. A ConfigError says what a kind does not go together with, and why.
struct ReducerParts {
  const DataParallelOptions& options;
  BucketPlan& plan;
  MeshGroups& groups;
};
using MakeReducer = std::unique_ptr<BucketReducer>(const ReducerParts& parts);

struct ReducerKind {
  std::string_view name;
  MakeReducer* make = nullptr;
};
std::span<const ReducerKind> reducer_kinds();
/// A ConfigError names a close one where there is none of this name.
MakeReducer* reducer_named(std::string_view name);

// One in each file.
/// Every number of every step: an all-reduce, with ZeRO a reduce-scatter; rounded to bf16 where the options say so.
std::unique_ptr<BucketReducer> make_dense_reducer(const ReducerParts& parts);
// parallel/compress/, as options.compress says.
std::unique_ptr<BucketReducer> make_onebit_sgd(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_qsgd(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_powersgd(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_dgc(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_csc(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_onebit_adam(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_zero_one_adam(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_local_sgd(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_elastic_averaging(const ReducerParts& parts);
std::unique_ptr<BucketReducer> make_diloco(const ReducerParts& parts);

}  // namespace trireme::parallel
