// parallel/slice_reduction.h -- sums of gradients along axes beyond those that their bucket is summed along.
//
// Two reasons: with sequence parallelism ranks that split matrices hold copies of norms and have computed parts of
// their gradients; and of a fused q, k, v with grouped queries some ranks hold copies of k and v alone, so that one
// parameter, which lies in one bucket, has parts with other sums. They are few numbers: one exchange a step for each
// set of axes, in full precision, when buckets are done.
// Depends on: comm, layout, nn.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

class SliceReduction {
 public:
  /// `axes` is not empty; the group is made by prepare().
  explicit SliceReduction(layout::AxisNames axes) : axes_(std::move(axes)) {}
  const layout::AxisNames& axes() const { return axes_; }
  void add(nn::Param& owned, layout::Range range) { slices_.push_back({&owned, range}); }
  void prepare(MeshGroups& groups) { group_ = groups.along(axes_); }

  void sum();
  /// That are summed over so many ranks.
  std::int64_t elements(int ranks) const;

 private:
  struct Slice {
    nn::Param* param = nullptr;
    layout::Range range;
  };
  layout::AxisNames axes_;
  comm::Group* group_ = nullptr;
  std::vector<Slice> slices_;
  at::Tensor buffer_;
};

/// What the placements of `owned` ask for beyond the axes of the buckets, by axes, ascending.
std::vector<SliceReduction> find_slices(nn::Params& params, nn::Params& owned, const BucketPlan& plan,
                                        const layout::Mesh& mesh);

}  // namespace trireme::parallel
