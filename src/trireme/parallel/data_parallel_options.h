// parallel/data_parallel_options.h -- what DataParallel is made from: how copies agree, and the parts a model runs in.
//
// Depends on: layout, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/layout/mesh.h"
#include "trireme/nn/param.h"
#include "trireme/parallel/bucket_reducer.h"

namespace trireme::parallel {

struct DataParallelOptions {
  int zero = 0;
  /// Axes whose ranks have other tokens. Which of them a gradient is summed along, its placement says; those sums run
  /// bucket by bucket while backward goes on, sums along other axes follow in one exchange (slice_reduction.h).
  layout::AxisNames data;
  layout::AxisNames shard;  ///< of them, those (or parts of those) that share out; empty without ZeRO
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< of gradients; 0: one bucket
  bool reduce_bf16 = false;                            ///< gradients are rounded for the way
  bool offload = false;                                ///< owned() lives on the host
  nn::Precision precision = nn::Precision::kFp32;
  at::Device device = at::kCPU;               ///< where layers compute
  MakeReducer* reducer = make_dense_reducer;  ///< how a bucket's gradients become their sum

  /// What a rank updates is not what layers compute with.
  bool owns_apart() const { return zero > 0 || offload; }
  at::TensorOptions on_device(at::ScalarType type) const { return at::TensorOptions(type).device(device); }
};

/// What runs one after the other: an entry of a model's chain, whose weights are needed at the same time.
struct ShardUnit {
  std::vector<nn::Param*> params;
  int key = 0;  ///< buckets hold parameters of one key: those whose gradients are complete together
};

}  // namespace trireme::parallel
