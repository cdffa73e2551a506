// parallel/compress/local_updates.h -- copies that take steps by themselves and bring their weights together now and
// then: what local SGD, elastic averaging and DiLoCo share.
//
// Until compress.start steps are synchronous. From then on a copy updates by the gradient of its own tokens (summed
// dense over the ranks inside of it: context-parallel ones, those of a worker), clipped by its own norm; its moments
// stay its own. after_step() says when and how copies meet. All state is per copy in checkpoints, so that a run goes on
// to the bit from any step.
// Depends on: comm, nn, parallel.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/compress/exchange.h"
#include "trireme/parallel/compress/local_weights.h"

namespace trireme::parallel {

/// Several tensors one after the other in flat memory: one exchange for all.
at::Tensor flatten_all(std::span<const at::Tensor> tensors);
void unflatten_all(const at::Tensor& flat, std::span<at::Tensor> tensors);

class LocalUpdates : public BucketReducer {
 public:
  std::string description() const override;
  double sent_bytes(const Bucket& bucket, int launches) const override;
  void begin_step(std::int64_t step) override;
  void launch(Bucket& bucket) override;
  void settle(Bucket& bucket) override;
  void finish(std::span<Bucket> buckets) override;
  void step_taken(const TakenStep& taken) override;
  void loaded(nn::Params& owned) override;
  void attach(optim::Optimizer& optimizer) override;
  bool has_state() const override { return true; }
  void add_state(nn::State& state) override;
  std::int64_t bytes() const override { return local_.bytes(); }
  layout::AxisNames drift_axes() const override { return options_.copies; }
  const CompressionReport* report() const override { return &report_; }
  std::vector<CompressedPart> compressed_parts() const override;

 protected:
  explicit LocalUpdates(const ReducerParts& parts);

  /// Local step number `number` (from 1) was taken.
  virtual void after_step(std::int64_t number, double learning_rate) = 0;
  /// A synchronous step was taken, or weights were drawn or read: they are equal on all copies.
  virtual void start_from(std::span<nn::Param* const> params) = 0;
  virtual std::string method() const = 0;
  /// Bytes that a copy sends in a round for so many elements of so many bytes.
  virtual double round_bytes(double elements, double width) const {
    return 2.0 * (exchange_.copies() - 1) / exchange_.copies() * elements * width;
  }
  virtual std::int64_t interval() const { return spec::interval_of(config()); }

  const spec::CompressConfig& config() const { return options_.compress; }
  CopyExchange& exchange() { return exchange_; }
  int copies() const { return exchange_.copies(); }
  LocalWeights& local() { return local_; }
  const LocalWeights& local() const { return local_; }
  std::span<nn::Param* const> params() const { return local_.params(); }
  /// A round of so many elements is over.
  void count_round(std::int64_t elements);

 private:
  comm::Group* inside_of(const Bucket& bucket) const;
  bool is_synchronous() const { return step_ < options_.compress.start; }

  const DataParallelOptions& options_;
  BucketPlan& plan_;
  std::unique_ptr<BucketReducer> dense_;
  std::vector<comm::Group*> inside_;  // by bucket; null: a worker is one rank of it
  CopyExchange exchange_;
  LocalWeights local_;
  MeshGroups& groups_;
  std::int64_t step_ = 0;
  CompressionReport report_;
};

}  // namespace trireme::parallel
