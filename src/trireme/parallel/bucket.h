// parallel/bucket.h -- parameters side by side in flat memory: what one call reduces, scatters or gathers.
//
// Which lie side by side is a value, a BucketPlan, made before any of them has memory. A bucket holds parameters whose
// gradients are summed over the same ranks, as their placements say: dense ones over all copies of the model, an
// expert, which is split along a part of them, over the rest. ZeRO shards a bucket along what `shard` names of its
// axes.
// Depends on: base, layout, comm, device, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/layout/mesh.h"
#include "trireme/nn/param.h"
#include "trireme/parallel/bucket_reducer.h"
#include "trireme/spec/compress.h"

namespace trireme::parallel {

struct DataParallelOptions {
  int zero = 0;
  /// Axes whose ranks have other tokens. Which of them a gradient is summed along, its placement says; those sums run
  /// bucket by bucket while backward goes on, sums along other axes follow in one exchange (slice_reduction.h).
  layout::AxisNames data;
  layout::AxisNames shard;  ///< of them, those (or parts of those) that share out; empty without ZeRO
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< of gradients; 0: one bucket
  std::int64_t first_bucket_bytes = 0;  ///< of the bucket that backward completes first; 0: as the others
  int reduce_groups = 1;                ///< groups of the same ranks that buckets take in turn
  bool find_unused = false;             ///< parameters may have no gradient in a step
  bool reduce_bf16 = false;             ///< gradients are rounded for the way
  bool offload = false;                 ///< owned() lives on the host
  bool late_updates = false;            ///< another thread than the rank's own updates it
  nn::Precision precision = nn::Precision::kFp32;
  at::Device device = at::kCPU;               ///< where layers compute
  MakeReducer* reducer = make_dense_reducer;  ///< how a bucket's gradients become their sum
  // Of reducers in parallel/compress/.
  spec::CompressConfig compress = {};
  layout::AxisNames copies = {};  ///< of `data`, those that compression or local updates go along; the rest is dense
  std::map<std::string, int> holders = {};  ///< parameters that several ranks of a pipeline hold: how many do
  std::uint64_t seed = 0;
  double grad_clip_norm = 0;  ///< for compress.local_clip

  /// What a rank updates is not what layers compute with.
  bool has_separate_shards() const { return zero > 0 || offload; }
  /// Nor do its gradients lie where layers add to them.
  bool has_separate_gradients() const { return zero > 1 || offload; }
  at::TensorOptions on_device(at::ScalarType type) const { return at::TensorOptions(type).device(device); }
};

/// What runs one after the other: an entry of a model's chain, whose weights are needed at the same time.
struct ShardUnit {
  std::vector<nn::Param*> params;
  int key = 0;  ///< buckets hold parameters of one key: those whose gradients are complete together
};

/// Flat memory to be lent again and again: as much as was ever lent at once.
class BufferPool {
 public:
  at::Tensor take(std::int64_t elements, const at::TensorOptions& options);
  void give(at::Tensor buffer);
  std::int64_t bytes() const { return bytes_; }

 private:
  std::map<at::ScalarType, std::multimap<std::int64_t, at::Tensor>> free_;
  std::int64_t bytes_ = 0;
};

struct BucketMember {
  nn::Param* param = nullptr;
  nn::Param* shard = nullptr;  ///< what this rank keeps of it; null without ZeRO
  std::int64_t offset = 0;     ///< in elements
  bool contributed = false;    ///< some layer has added to its gradient in this step
};

struct Bucket {
  std::vector<BucketMember> members;
  int key = 0;
  bool trainable = true;
  at::ScalarType master_type = at::kFloat, gradient_type = at::kFloat;  ///< of its members
  // Whom its gradients are summed over follows from the placements of its members, which all say the same.
  layout::AxisNames axes;           ///< along which they are summed
  layout::AxisNames shard_axes;     ///< of these, those along which ZeRO shares it out
  comm::Group* group = nullptr;     ///< along shard_axes with ZeRO, else along axes; null: this rank is alone
  comm::Group* rest = nullptr;      ///< ZeRO: along what shard_axes leaves of axes; null: nothing
  comm::Group* everyone = nullptr;  ///< find_unused: along axes; null: this rank is alone
  std::int64_t elements = 0;        ///< of memory, a multiple of the ranks that share it
  std::int64_t begin = 0, end = 0;  ///< this rank's part

  at::Tensor gradient;        ///< all of it; with ZeRO 2 and 3 only while backward fills it
  at::Tensor gradient_shard;  ///< this rank's part of the sum
  at::Tensor value;           ///< all of it, in the compute type; with ZeRO 3 only while layers use it
  at::Tensor value_shard, master_shard;
  at::Tensor version_shard;  ///< ZeRO 3: another version of value_shard, which layers compute with; undefined: none
  /// Takes turns with gradient_shard where updates are late or may be taken back; undefined until then.
  at::Tensor gradient_other;
  // Offload: what is kept and updated is on the host, where `gradient_shard` and `master_shard` then are too.
  at::Tensor host_value;  ///< new weights in the compute type, before they go to value_shard

  std::int64_t sent = -1;  ///< version_of() that layers compute with; -1: none
  // Offload from a GPU: new weights on their way to value_shard.
  std::int64_t uploaded = -1;  ///< version_of() of the last that set out
  std::uint64_t upload = 0;    ///< the copy that computing has still to wait for; 0: none
  int updated = 0;             ///< members that the update under way has done

  // A sum under way. The work is destroyed, and waits, before the memory that it borrows.
  at::Tensor in_flight;          ///< ZeRO 2 and 3: the gradient that was taken from `gradient`, which is free again
  at::Tensor sending, arriving;  ///< this rank's gradients; its part of their sum (bucket_reducer.h)
  comm::Work work;
  bool launched = false;
  int expected = 0, arrived = 0;  ///< contributions a micro
  bool accumulated = false;       ///< gradient_shard holds sums of earlier micros
  // Weights on their way.
  comm::Work fetching;
  bool is_fetching = false, is_whole = false;
  int users = 0;
};

/// What a member has in flat memory that holds a whole bucket, in its own shape.
at::Tensor view_in(const at::Tensor& flat, const BucketMember& member);
/// Which elements of a member this rank owns; empty where begin == end.
layout::Range owned_range(const Bucket& bucket, const BucketMember& member);
/// What this rank owns of a member, in flat memory that holds the rank's part of the bucket.
at::Tensor owned_part(const Bucket& bucket, const BucketMember& member, const at::Tensor& part);
/// Raised by whatever changes a number of the bucket; the same on all ranks.
std::int64_t version_of(const Bucket& bucket);
/// The member that is this parameter.
BucketMember& member_of(Bucket& bucket, const nn::Param& param);

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
