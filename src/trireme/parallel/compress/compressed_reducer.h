// parallel/compress/compressed_reducer.h -- what all methods share that compress gradients once a step.
//
// The order of a step, which description() prints: gradient (already divided by the tokens of the batch), dense sum
// inside a node or over context-parallel ranks, local clip if asked, + residual, compress, exchange, decompress; then
// the global norm, clipping and the optimizer, as ever. All parameters go in one exchange after the last micro-batch:
// what is sent is so little that latency counts for more than what could overlap. Vectors and small parameters go dense
// with them. The first compress.start steps are dense.
//
// Experts have fewer copies than dense parameters: only ranks that hold the same ones add up their gradients.
// Parameters with the same copies are a CopySet, reduced by itself over its own group; dense parameters come first.
//
// A method fills in reduce(), and keeps what it leaves in Residuals, which survive neither a step that was not taken
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
#include "trireme/parallel/mesh_groups.h"
#include "trireme/parallel/residuals.h"

namespace trireme::parallel {

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
  std::string description() const override;
  double sent_bytes(const Bucket& bucket, int launches) const override;
  void begin_step(std::int64_t step) override;
  void launch(Bucket& bucket) override;
  void settle(Bucket& bucket) override;
  void finish(std::span<Bucket> buckets) override;
  bool has_state() const override { return true; }
  const CompressionReport* report() const override { return &report_; }
  std::vector<CompressedPart> compressed_parts() const override;

 protected:
  explicit CompressedReducer(const ReducerParts& parts);

  /// Sums the terms over exchange()'s copies, compressed. On all copies together; once for each set of copies that has
  /// terms.
  virtual void reduce(std::span<Term> terms) = 0;
  /// "+ residual, 1 bit an element and two means a row, ...".
  virtual std::string method() const = 0;
  /// That a copy sends for a term in a compressed step.
  virtual double term_bytes(const Term& term) const = 0;
  /// On this copy's small parameters and vectors, before they are summed; terms have their data.
  virtual void before_rest() {}
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
  /// Of the set that is being reduced, else of dense parameters.
  CopyExchange& exchange() { return *exchange_; }
  int copies() const { return exchange_->copies(); }
  std::span<Term> terms() { return terms_; }
  std::int64_t step() const { return step_; }
  bool was_dense() const { return dense_step_; }
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

 private:
  /// Parameters with the same copies.
  struct CopySet {
    layout::AxisNames axes;
    CopyExchange exchange;
    std::size_t begin = 0, end = 0;                            // of terms_
    std::vector<std::pair<Bucket*, BucketMember*>> rest = {};  // by name
    at::Tensor rest_sum = {};                                  // flat, on its way
    comm::Work rest_work = {};
  };
  void make_sets();
  CopySet& set_of(const Bucket& bucket);
  const CopySet& set_of(const Bucket& bucket) const;
  comm::Group* inside_of(const Bucket& bucket) const;
  /// Small parameters and vectors, summed dense in one exchange: on its way while a method compresses.
  static void start_rest(CopySet& set);
  void finish_rest(CopySet& set);
  void exchange_all();
  void clip_locally();
  template <typename Body>
  static void for_rest(CopySet& set, Body&& body);
  bool is_replicated(const nn::Param& param) const;

  const DataParallelOptions& options_;
  BucketPlan& plan_;
  MeshGroups& groups_;
  std::unique_ptr<BucketReducer> dense_;
  std::vector<comm::Group*> inside_;  // by bucket; dense: a node's ranks, context-parallel ranks
  std::vector<CopySet> sets_;         // dense parameters first
  CopyExchange* exchange_ = nullptr;
  std::vector<Term> terms_;  // set after set, by name
  std::int64_t step_ = 0;
  bool dense_step_ = false, exchanged_ = false;
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
