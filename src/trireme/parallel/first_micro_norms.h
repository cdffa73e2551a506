// parallel/first_micro_norms.h -- how long this rank's own gradients are before they are summed over ranks.
//
// What the gradient noise scale needs: squares of the gradient of a small batch, the first micro-batch of a step on
// each data-parallel rank, beside those of the whole batch, which clipping finds anyway. One read of gradients a step;
// parts that tensor-parallel ranks have computed parts of the sum of (slice_reduction.h) are summed first, copies count
// once.
// Depends on: comm, layout, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

class FirstMicroNorms {
 public:
  /// Parameters as layers compute with them, and their buckets; borrowed. On all ranks together.
  FirstMicroNorms(nn::Params& params, const BucketPlan& plan, MeshGroups& groups);

  /// The gradients of a bucket as the first micro-batch left them: memory of all of it.
  void add(const Bucket& bucket, const at::Tensor& gradient);
  /// The step's gradients are complete: what comes next is another step's.
  void end_step() { ended_ = true; }
  /// DataParallel::first_micro_squares.
  std::vector<double> take(double factor);

 private:
  /// Ranges of one parameter's memory.
  struct Part {
    std::size_t trainable = 0;           // its number
    std::vector<layout::Range> counted;  // complete here, and no other rank's to count
    struct Sliced {
      std::size_t slice = 0;  // of axes_
      layout::Range range;
      std::int64_t at = 0;  // in the slice's buffer
      bool counted = false;
    };
    std::vector<Sliced> sliced;  // the sum of several ranks'
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

  comm::Group* everyone_ = nullptr;  // ranks that have other rows or other parts of these parameters
  std::size_t trainables_ = 0;
  bool ended_ = false;
  std::vector<std::pair<const nn::Param*, Part>> parts_;
  std::vector<Slice> slices_;
  std::vector<Measured> measured_;
};

}  // namespace trireme::parallel
