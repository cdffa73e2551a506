// parallel/bucket_plan.h -- which parameters lie side by side: a value, made before any of them has memory.
//
// A bucket holds parameters whose gradients are summed over the same ranks, as their placements say: dense ones over
// all copies of the model, an expert, which is split along a part of them, over the rest. ZeRO shares a bucket out
// along what `shard` names of its axes.
// Depends on: base, layout, nn.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "trireme/parallel/bucket.h"
#include "trireme/parallel/data_parallel_options.h"

namespace trireme::parallel {

struct BucketPlan {
  std::vector<Bucket> buckets;  ///< in the order in which backward completes them; without memory
  std::map<const nn::Param*, std::size_t> bucket_of;
  std::vector<std::vector<std::size_t>> unit_buckets;  ///< what each unit needs
};

/// Where this rank stands.
struct MeshPoint {
  const layout::Mesh& mesh;
  int rank = 0;
};

/// `apart`: names whose bucket holds nothing else.
BucketPlan plan_buckets(const std::vector<ShardUnit>& units, nn::Params& params, const DataParallelOptions& options,
                        MeshPoint at, const std::vector<std::string>& apart);

}  // namespace trireme::parallel
