// parallel/bucket_plan.h -- which parameters lie side by side: a value, made before any of them has memory.
//
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
  std::vector<Bucket> buckets;  ///< about in the order in which backward completes them; without memory
  std::map<const nn::Param*, std::size_t> bucket_of;
  std::vector<std::vector<std::size_t>> unit_buckets;  ///< what each unit needs
};

/// Which of the equal parts of every bucket is this rank's.
struct BucketShare {
  int count = 1, rank = 0;
};

/// `apart`: names whose bucket holds nothing else.
BucketPlan plan_buckets(const std::vector<ShardUnit>& units, nn::Params& params, const DataParallelOptions& options,
                        BucketShare share, const std::vector<std::string>& apart);

}  // namespace trireme::parallel
