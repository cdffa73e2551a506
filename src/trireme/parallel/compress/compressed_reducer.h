// parallel/compress/compressed_reducer.h -- what all methods share that compress gradients once a step.
//
// The order of a step, which description() prints: gradient (already divided by the tokens of the batch), dense sum
// inside a node or over context-parallel ranks, local clip if asked, + residual, compress, exchange, decompress; then
// the global norm, clipping and the optimizer, as ever. In the last micro-batch a bucket is compressed and its exchange
// begun as soon as its gradients are there, while backward goes on (compress.overlap; without it the same exchanges
// begin after backward, and give the same bits); before the update all are settled. Methods that look at all parameters
// at once (CSC), local clipping and GPUs have one exchange after backward. Vectors and small parameters go dense with
// them. The first compress.start steps are dense. With fp16 the loss scale, a power of two, is taken out of gradients
// before all that and put back into their sum: what is kept has none, however it changes.
//
// Experts have fewer copies than dense parameters: only ranks that hold the same ones add up their gradients.
// Parameters with the same copies are a CopySet, reduced by itself over its own group; dense parameters come first.
//
// A method fills in stages(), and keeps what it leaves in Residuals, which survive neither a step that was not taken
// nor are lost by a checkpoint.
// Depends on: comm, nn, parallel.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/compress/exchange.h"
#include "trireme/parallel/compress/staged_reductions.h"
#include "trireme/parallel/mesh_groups.h"
#include "trireme/parallel/residuals.h"

namespace trireme::parallel {

class LocalClip;

/// A parameter of this rank that is compressed.
struct Term {
  nn::Param* param = nullptr;
  Bucket* bucket = nullptr;
  const BucketMember* member = nullptr;
  std::int64_t rows = 1, columns = 0;  ///< of this rank's memory, padding included: it is zero
  int copies = 1;                      ///< that are summed
  std::size_t number = 0;              ///< in terms()
  at::Tensor data = {};                ///< flat: this copy's gradient before reduce(), the sum over copies after

  std::int64_t elements() const { return rows * columns; }
  /// Its part of what is kept for a bucket.
  at::Tensor part_of(const at::Tensor& flat) const { return flat.narrow(0, member->offset, elements()); }
};

class CompressedReducer : public BucketReducer {
 public:
  ~CompressedReducer() override;
  std::string description() const override;
  double sent_bytes(const Bucket& bucket, int launches) const override;
  void begin_step(std::int64_t step) override;
  void set_loss_scale(double scale) override { loss_scale_ = scale; }
  void launch(Bucket& bucket) override;
  void progress() override { under_way_.advance(); }
  void settle(Bucket& bucket) override;
  void finish(std::span<Bucket> buckets) override;
  bool has_state() const override { return true; }
  const CompressionReport* report() const override { return &report_; }
  std::vector<CompressedPart> compressed_parts() const override;

 protected:
  /// What a method looks at in one exchange.
  enum class Scope : std::uint8_t { kBucket, kAll };
  explicit CompressedReducer(const ReducerParts& parts, Scope scope = Scope::kBucket);

  /// How the terms, which have the same copies and are their owner's until the end, are summed over them, compressed.
  /// Called on all copies in the same order; term.data has this copy's gradient when the first stage is run, and the
  /// sum after the last.
  virtual Stages stages(ExchangeLanes& lanes, std::span<Term> terms) = 0;
  /// "+ residual, 1 bit an element and two means a row, ...".
  virtual std::string method() const = 0;
  /// What follows it.
  virtual std::string ending() const { return "global norm, clip -> optimizer"; }
  /// That a copy sends for a term in a compressed step.
  virtual double term_bytes(const Term& term) const = 0;
  /// On this copy's small parameters and vectors in a bucket, before they are summed; its terms have their data.
  virtual void before_rest(Bucket& /*bucket*/, std::span<Term> /*terms*/) {}
  /// Of each small parameter or vector, when its gradient is the sum.
  virtual void after_rest(const nn::Param& /*param*/, at::Tensor /*gradient*/) {}
  /// In a dense step, on this copy's gradients before they are summed; most methods do nothing then.
  virtual void before_dense(Bucket& /*bucket*/) {}
  /// Whether before_dense() keeps something of a copy's gradient: it is then summed inside of the copy first.
  virtual bool keeps_dense() const { return false; }
  /// Whether this step is dense.
  virtual bool is_dense(std::int64_t step) const { return step < options_.compress.start; }

  const DataParallelOptions& options() const { return options_; }
  const spec::CompressConfig& config() const { return options_.compress; }
  BucketPlan& plan() { return plan_; }
  MeshGroups& groups() { return groups_; }
  /// Of dense parameters.
  CopyExchange& exchange() { return sets_.front().lanes.first; }
  int copies() const { return sets_.front().lanes.first.copies(); }
  std::span<Term> terms() { return terms_; }
  std::int64_t step() const { return step_; }
  bool was_dense() const { return dense_step_; }
  /// That gradients are to have again when they are settled, where launch() has taken it out of them.
  double loss_scale() const { return loss_scale_; }
  /// Waits for the dense sums inside a node and of context-parallel ranks.
  void wait_inside();
  Residuals make_residuals() const { return Residuals(plan_, groups_, options_, options_.copies); }
  /// Which of the ranks of a copy this one is: those with other parts of the parameter draw other numbers.
  int shard(const nn::Param& param) const;
  /// |left| and |whole| of a term, for the report.
  void note_error(const Term& term, double left_squared, double whole_squared);
  /// The same of numbers that lie where the gradient does: read together by read_errors(), at the end of a round.
  void note_error(const Term& term, at::Tensor left_squared, at::Tensor whole_squared);
  void begin_errors();
  void read_errors();
  bool on_gpu() const { return options_.device.is_cuda(); }
  CompressionReport& mutable_report() { return report_; }
  /// Of a round after an update.
  void count_seconds(double seconds);

 private:
  /// Parameters with the same copies.
  struct CopySet {
    layout::AxisNames axes;
    ExchangeLanes lanes;
    std::vector<Term> terms = {};                              // where they go in one exchange
    std::vector<std::pair<Bucket*, BucketMember*>> rest = {};  // by name
    at::Tensor rest_sum = {};                                  // flat, on its way
  };
  void make_sets();
  void find_terms();
  CopySet& set_of(const Bucket& bucket);
  const CopySet& set_of(const Bucket& bucket) const;
  std::size_t number_of(const Bucket& bucket) const;
  comm::Group* inside_of(const Bucket& bucket) const;
  /// Whether gradients of this step become part of something that is kept: that has no loss scale.
  bool keeps_gradients() const { return !dense_step_ || keeps_dense(); }
  bool begins_early() const { return scope_ == Scope::kBucket && config().overlap; }
  /// What the stages of a bucket are under way with, from its inner sum on.
  void begin_bucket(Bucket& bucket);
  Stages stages_of(Bucket& bucket);
  /// Small parameters and vectors, summed dense in one exchange beside the method's own.
  Stages stages_of_rest(CopySet& set);
  void begin_exchange();
  void exchange_all();
  void take_data(Bucket& bucket, std::span<Term> terms);
  template <typename Body>
  static void for_rest(CopySet& set, Body&& body);
  bool is_replicated(const nn::Param& param) const;

  const DataParallelOptions& options_;
  BucketPlan& plan_;
  MeshGroups& groups_;
  std::unique_ptr<BucketReducer> dense_;
  std::vector<comm::Group*> inside_;             // by bucket; dense: a node's ranks, context-parallel ranks
  std::vector<CopySet> sets_;                    // dense parameters first
  std::vector<Term> terms_;                      // set after set, by name
  std::vector<std::vector<Term>> bucket_terms_;  // the same, by bucket
  Scope scope_;
  std::unique_ptr<LocalClip> local_clip_;  // null: not asked for
  double loss_scale_ = 1;
  std::int64_t step_ = 0;
  bool dense_step_ = false, exchange_begun_ = false, exchanged_ = false;
  StagedReductions under_way_;  // goes before what it borrows
  CompressionReport report_;
  double left_squared_ = 0, whole_squared_ = 0;
  std::vector<std::pair<const Term*, std::pair<at::Tensor, at::Tensor>>> unread_errors_;
};

/// Which of the ranks of a copy this one is, of those that hold other parts of the parameter or of others.
int shard_of(const MeshGroups& groups, const DataParallelOptions& options, const nn::Param& param);
/// Of the ranks with other tokens that hold the same part of the parameter.
bool is_first_of_copies(const MeshGroups& groups, const DataParallelOptions& options, const nn::Param& param);
/// Whether a parameter is large enough, and a matrix.
bool is_compressed(const nn::Param& param, const spec::CompressConfig& config);
/// Sum of squares, in double; the second one where the tensor lies.
double squared(const at::Tensor& tensor);
at::Tensor squares_of(const at::Tensor& tensor);

}  // namespace trireme::parallel
