// parallel/first_micro_norms.h -- how long this rank's own gradients are before they are summed over ranks.
//
// What the gradient noise scale needs: squares of the gradient of a small batch, the first micro-batch of a step on
// each data-parallel rank, beside those of the whole batch, which clipping finds anyway. One read of gradients a step;
// parts that tensor-parallel ranks have computed parts of the sum of (slice_reduction.h) are summed first, copies count
// once. Ranks that share rows (context parallelism) have each a part of every gradient: theirs are summed bucket by
// bucket, a second sum along that axis. In a pipeline micro-batches overlap, so parameters are looked at one by one,
// when the first micro-batch has added to them. What others have added to before (GPipe goes back from the last
// micro-batch, a head computes gradients in its forward) gets other memory while the first micro-batch adds to it.
// Experts' rows may come in several passes; where the schedule lets the first micro-batch add first, their gradients
// are looked at when all have. A rank's experts have the gradients of the rows of all ranks that experts are sharded
// over: these ranks' first micro-batches are one small batch, larger than that of dense parameters.
// Depends on: comm, layout, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/nn/context.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

/// How a step's first micro-batch runs.
struct FirstMicroOptions {
  layout::AxisNames rows = {};     ///< axes along which ranks share its rows
  layout::AxisNames experts = {};  ///< along which experts lie: ranks whose rows give one gradient of an expert
  bool overlaps = false;           ///< with other micro-batches: a pipeline, which calls added() and is watched
  bool parts = false;              ///< it goes back in parts, each of which adds
  bool experts_lead = true;        ///< nobody adds to an expert's gradient before it
  /// Parameters that several chunks of the model compute with: the ranks of the pipeline that hold them.
  std::map<std::string, comm::Group*> tied = {};
  at::TensorOptions buffers = {};  ///< for sums over ranks
};

/// Squares of a rank's gradients are multiplied by these.
struct FirstMicroFactors {
  double dense = 1;
  double experts = 1;  ///< of parameters whose small batch is that of several ranks together
};

class FirstMicroNorms final : public nn::GradientWatch {
 public:
  /// Parameters as layers compute with them, and their buckets; borrowed. On all ranks together.
  FirstMicroNorms(nn::Params& params, const BucketPlan& plan, MeshGroups& groups, FirstMicroOptions options);

  /// The gradients of a bucket as the first micro-batch left them: memory of all of it. On all ranks that share rows
  /// together.
  void add(const Bucket& bucket, const at::Tensor& gradient);
  /// Where micro-batches overlap: one has added to a gradient; `first`: it is the step's first. A ConfigError where
  /// another came before. Likewise.
  void added(const nn::Param& param, bool first);
  /// Of the first micro-batch, where micro-batches overlap.
  void before(nn::Param& param) override;
  void after(nn::Param& param) override;
  bool overlaps() const { return options_.overlaps; }
  /// The step's gradients are complete: what comes next is another step's.
  void end_step() { ended_ = true; }
  /// DataParallel::first_micro_squares.
  std::vector<double> take(FirstMicroFactors factors);
  /// Of each trainable parameter: whether its small batch is that of several ranks together, which share experts.
  const std::vector<bool>& of_experts() const { return of_experts_; }

 private:
  /// Ranges of one parameter's memory.
  struct Part {
    std::size_t trainable = 0;  // its number
    std::int64_t elements = 0;
    std::vector<layout::Range> counted;  // complete here, and no other rank's to count
    struct Sliced {
      std::size_t slice = 0;  // of axes_
      layout::Range range;
      std::int64_t at = 0;  // in the slice's buffer
      bool counted = false;
    };
    std::vector<Sliced> sliced;  // the sum of several ranks'
    comm::Group* tied = nullptr;
    bool experts = false;
    bool in_passes = false;  // experts that others may have added to: summed over passes
    bool others = false;     // have added to it in this step
    bool watched = false;    // before() and after() see all that layers add to it
    at::Tensor set_aside;    // what others have added, while the first micro-batch has other memory
    /// Watched, and several layers of this rank, stages or parts add to it: what the first micro-batch has added here.
    at::Tensor sum;
  };
  struct Slice {
    layout::AxisNames axes;
    comm::Group* group = nullptr;
    std::int64_t elements = 0;
    at::Tensor buffer;
  };
  struct Measured {
    std::size_t trainable = 0;
    at::Tensor square;  // double, on the device
  };

  void begin_step();
  /// An expert's that is looked at by added().
  bool waits_for_passes(const nn::Param& param) const;
  at::Tensor over_rows(const at::Tensor& gradient, bool experts) const;
  void measure(Part& part, const at::Tensor& flat);
  void sum_tied();

  FirstMicroOptions options_;
  comm::Group *rows_ = nullptr, *rows_of_experts_ = nullptr;  // ranks that share rows
  comm::Group* everyone_ = nullptr;  // ranks that have other rows or other parts of these parameters
  std::size_t trainables_ = 0;
  std::vector<bool> of_experts_;
  bool ended_ = false;
  std::vector<std::pair<const nn::Param*, Part>> parts_;
  std::unordered_map<const nn::Param*, std::size_t> part_of_;
  std::vector<Slice> slices_;
  std::vector<Measured> measured_;
};

}  // namespace trireme::parallel
