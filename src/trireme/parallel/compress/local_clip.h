// parallel/compress/local_clip.h -- a copy clips its own gradient before it is compressed (Lin et al. 2018, section
// 3.2): of N independent gradients whose sum has the norm that is clipped to, each has about 1 / sqrt(N) of it.
//
// A copy may be several ranks (tensor and pipeline parallelism): they add up the squares of their parts, each number
// once; of what several stages hold, each counts its share. What they hold together and have each a part of the
// gradient of (norms with sequence parallelism) is summed for the norm first.
// Depends on: layout, parallel.
#pragma once

#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

class LocalClip {
 public:
  /// All borrowed. On all ranks together.
  LocalClip(const BucketPlan& plan, MeshGroups& groups, const DataParallelOptions& options);
  /// Clips what buckets are about to send. On all ranks of a copy together.
  void clip(BucketPlan& plan, int copies);

 private:
  /// A stretch of a bucket that this rank counts, or has a part of.
  struct Stretch {
    std::size_t bucket = 0;
    std::int64_t begin = 0, count = 0;
    bool counts = false;
    double weight = 1;  ///< of its squares: what several stages hold counts once
  };
  struct Partial {
    layout::AxisNames axes;
    comm::Group* group = nullptr;
    std::vector<Stretch> stretches = {};
  };
  double squares(const BucketPlan& plan);

  double limit_;
  comm::Group* parts_ = nullptr;  // the ranks of a copy; null: one
  std::vector<Stretch> whole_;
  std::vector<Partial> partial_;  // by axes, ascending
};

}  // namespace trireme::parallel
