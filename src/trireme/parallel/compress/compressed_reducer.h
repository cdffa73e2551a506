// parallel/compress/compressed_reducer.h -- what all methods share that compress gradients once a step.
//
// The order of a step, which description() prints: gradient (already divided by the tokens of the batch), dense sum
// inside a node or over context-parallel ranks, local clip if asked, + residual, compress, exchange, decompress; then
// the global norm, clipping and the optimizer, as ever. All parameters go in one exchange after the last micro-batch:
// what is sent is so little that latency counts for more than what could overlap. Vectors and small parameters go dense
// with them. The first compress.start steps are dense.
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

  /// Sums the terms over exchange()'s copies, compressed. On all copies together.
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
  CopyExchange& exchange() { return exchange_; }
  int copies() const { return exchange_.copies(); }
  std::span<Term> terms() { return terms_; }
  std::int64_t step() const { return step_; }
  bool was_dense() const { return dense_step_; }
  /// Waits for the dense sums inside a node and of context-parallel ranks.
  void wait_inside();
  Residuals make_residuals() const { return Residuals(plan_, groups_, options_, options_.copies); }
  /// Which of the ranks of a copy this one is: those with other parts of parameters draw other numbers.
  int shard() const;
  /// |left| and |whole| of a term, for the report.
  void note_error(const Term& term, double left_squared, double whole_squared);
  /// The same of numbers that lie where the gradient does: read together by read_errors(), at the end of a round.
  void note_error(const Term& term, at::Tensor left_squared, at::Tensor whole_squared);
  void begin_errors();
  void read_errors();
  bool on_gpu() const { return options_.device.is_cuda(); }
  CompressionReport& mutable_report() { return report_; }

 private:
  /// Small parameters and vectors, summed dense in one exchange: on its way while a method compresses.
  void start_rest();
  void finish_rest();
  void exchange_all();
  void clip_locally();
  template <typename Body>
  void for_rest(Body&& body);
  bool is_replicated(const nn::Param& param) const;

  const DataParallelOptions& options_;
  BucketPlan& plan_;
  MeshGroups& groups_;
  std::unique_ptr<BucketReducer> dense_;
  comm::Group* inside_ = nullptr;  // dense: a node's ranks, context-parallel ranks
  CopyExchange exchange_;
  std::vector<Term> terms_;                              // by name
  std::vector<std::pair<Bucket*, BucketMember*>> rest_;  // by name
  at::Tensor rest_sum_;                                  // flat, on its way
  comm::Work rest_work_;
  std::int64_t step_ = 0;
  bool dense_step_ = false, exchanged_ = false;
  CompressionReport report_;
  double left_squared_ = 0, whole_squared_ = 0;
  std::vector<std::pair<const Term*, std::pair<at::Tensor, at::Tensor>>> unread_errors_;
};

/// Whether a parameter is large enough, and a matrix.
bool is_compressed(const nn::Param& param, const spec::CompressConfig& config);
/// Sum of squares, in double; the second one where the tensor lies.
double squared(const at::Tensor& tensor);
at::Tensor squares_of(const at::Tensor& tensor);

}  // namespace trireme::parallel
