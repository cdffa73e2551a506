// parallel/shards.h -- what a rank keeps of each parameter where that is not what layers compute with: ZeRO, offload.
//
// Depends on: layout, nn.
#pragma once

#include "trireme/parallel/bucket_plan.h"
#include "trireme/parallel/host_link.h"

namespace trireme::parallel {

/// Adds to `shards` one for each of `params`, in their order, and gives buckets the memory of both. `link`: the way to
/// the host of offload from a GPU; null: there is none.
void make_shards(BucketPlan& plan, nn::Params& params, nn::Params& shards, const layout::Mesh& mesh,
                 const DataParallelOptions& options, HostLink* link);

}  // namespace trireme::parallel
