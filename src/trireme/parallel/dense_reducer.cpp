// Sums of all numbers of a bucket, in full or rounded to bf16 for the way.
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/bucket_reducer.h"

namespace trireme::parallel {
namespace {

double share(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

class DenseReducer final : public BucketReducer {
 public:
  explicit DenseReducer(const ReducerParts& parts) : options_(parts.options) {
    for (Bucket& bucket : parts.plan.buckets) {
      if (!bucket.gradient.defined() || bucket.group == nullptr || travels_rounded(bucket)) continue;
      registered_.push_back(bucket.group->register_buffer(device::to_buffer(bucket.gradient)));
    }
  }

  std::string description() const override {
    const char* call = options_.zero > 0 ? "reduce-scatter" : "all-reduce";
    return options_.reduce_bf16 ? fmt::format("rounded to bf16, {} of each bucket", call)
                                : fmt::format("{} of each bucket", call);
  }

  double sent_bytes(const Bucket& bucket, int launches) const override {
    if (!bucket.trainable) return 0;
    const int ranks = bucket.group != nullptr ? bucket.group->size() : 1;
    const int groups = bucket.rest != nullptr ? bucket.rest->size() : 1;
    const auto width = static_cast<double>(c10::elementSize(bucket.gradient_type));
    const auto elements = static_cast<double>(bucket.elements);
    const double sent = elements * (travels_rounded(bucket) ? 2 : width) * share(ranks) * launches;
    if (options_.zero == 0) return 2 * sent;
    return sent + 2 * elements / ranks * width * share(groups);
  }

  void launch(Bucket& bucket) override {
    if (travels_rounded(bucket)) bucket.sending = bucket.sending.to(at::kBFloat16);
    bucket.arriving =
        options_.zero > 0 ? bucket.sending.narrow(0, bucket.begin, bucket.end - bucket.begin) : bucket.sending;
    if (bucket.group == nullptr) return;
    if (options_.zero == 0) {
      bucket.work = bucket.group->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
    } else {
      bucket.work = bucket.group->reduce_scatter(device::to_const_buffer(bucket.sending),
                                                 device::to_buffer(bucket.arriving), comm::Reduce::kSum);
    }
  }

  bool arrived(Bucket& bucket) override { return bucket.work.test(); }

  void settle(Bucket& bucket) override {
    bucket.work.wait();
    bucket.work = {};
  }

  /// Between the groups that each share out everything.
  void finish(std::span<Bucket> buckets) override {
    comm::Batch batch;
    for (Bucket& bucket : buckets) {
      if (!bucket.trainable || bucket.rest == nullptr) continue;
      batch.add(bucket.rest->all_reduce(device::to_buffer(bucket.gradient_shard), comm::Reduce::kSum));
    }
    batch.commit().wait();
  }

  bool can_be_captured() const override { return true; }

 private:
  /// What travels is a rounded copy; gradients of 16 bits go as they are.
  bool travels_rounded(const Bucket& bucket) const {
    return options_.reduce_bf16 && bucket.gradient_type != at::kBFloat16;
  }

  const DataParallelOptions& options_;
  std::vector<comm::RegisteredBuffer> registered_;  // goes before gradients do
};

}  // namespace

std::unique_ptr<BucketReducer> make_dense_reducer(const ReducerParts& parts) {
  return std::make_unique<DenseReducer>(parts);
}

}  // namespace trireme::parallel
