// parallel/gradient_buckets.h -- the memory of gradients, when buckets of them are reduced, and where their sums go.
//
// Without ZeRO 2 and 3 gradients have memory for the whole run; with them, a bucket is lent some from when backward
// reaches it until its sum is made. Sums stay in place, are added to shards, or leave for the host.
// Depends on: base, nn, parallel.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/bucket_reducer.h"
#include "trireme/parallel/host_link.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

class GradientBuckets {
 public:
  /// All are borrowed. Buckets know their groups. `link`: offload from a GPU, else null.
  GradientBuckets(BucketPlan& plan, MeshGroups& groups, const DataParallelOptions& options, HostLink* link);

  // DataParallel's calls of these names.
  void begin_micro(bool last);
  void added(nn::Param& param);
  void end_pass(int key);
  void start(int key);
  void complete();
  void replayed();
  void swap_buffers();
  void restore_buffers();

  // DataParallel::finish(), in this order.
  /// A ConfigError names parameters that no layer of this rank has given a gradient to.
  void require_complete() const;
  void launch_all();
  void settle_all();
  /// With the option: parameters that no layer of any rank has given a gradient to are marked, and left as they are.
  void find_unused();
  void end_step();

  /// Who sees this rank's own gradients of a step's first micro-batch, bucket by bucket, before any sum over ranks.
  using FirstMicro = std::function<void(const Bucket& bucket, const at::Tensor& gradient)>;
  void on_first_micro(FirstMicro look) { first_micro_ = std::move(look); }

  /// The update by the last step's gradients was taken.
  void step_taken(const TakenStep& step);
  void add_state(nn::State& state);
  BucketReducer& reducer() const { return *reducer_; }
  /// Lent at once: the most so far.
  std::int64_t pool_bytes() const { return pool_.bytes(); }

 private:
  void provide_gradients();
  void launch(Bucket& bucket);
  void launch_ready();
  /// ZeRO 2 and 3, where some parameters may add nothing in a pass: buckets of a key go in one order all the same.
  bool goes_in_order() const { return options_.find_unused && options_.zero >= 2; }
  void launch_in_order(int key, bool all);
  void settle(Bucket& bucket);
  void settle_arrived();
  void store(Bucket& bucket);
  void store_and_free(Bucket& bucket);

  FirstMicro first_micro_;
  BucketPlan& plan_;
  const DataParallelOptions& options_;
  HostLink* link_;
  BufferPool pool_;
  std::unique_ptr<BucketReducer> reducer_;
  std::deque<Bucket*> in_flight_;            // ZeRO 2 and 3: sums under way, the oldest first
  std::size_t next_ = 0;                     // bucket to be launched, where they go in order
  std::map<int, std::size_t> next_of_pass_;  // likewise, by key, where each pass has them go
  std::int64_t steps_ = 0;                   // that were taken
  int micros_ = 0;
  bool last_ = false, step_begun_ = false;
};

}  // namespace trireme::parallel
